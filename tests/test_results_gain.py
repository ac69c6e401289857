"""What may be said of two cases: edges of the verdict, pooling, the wish for more rounds."""

import math

import numpy as np
import pytest

from apclab.results import Gain, Point, floor_of, middle_of, plain_read, pooled, unsettled
from apclab.results.gain import _band
from tests.fakes import LADDER


def point(case: str, middle: float, width: float = 0.0, x: float = 1.0) -> Point:
    return Point(
        case, middle * (1 - width), middle, middle * (1 + width), 100 / middle, x, 5 / middle
    )


@pytest.mark.parametrize(
    ("other", "width", "verdict", "busy"),
    [
        (50.0, 0.05, "faster", False),
        (200.0, 0.05, "slower", False),
        (99.0, 0.0, "same", False),  # apart, by less than anybody should claim
        (96.0, 0.0, "faster", False),
        (96.0, 0.03, "same", False),  # bands overlap, and both are about as wide
        (96.0, 0.20, "same", True),  # the same as far as one can see, which is not far
        (60.0, 0.30, "unclear", True),  # 1.7 between medians, bands that overlap
        (170.0, 0.30, "unclear", True),
    ],
)
def test_a_verdict_needs_a_gap_that_is_clear_of_the_noise(
    other: float, width: float, verdict: str, busy: bool
) -> None:
    gain = Gain(point("private", 100.0, width), point("shared", other, width, x=2.0))
    assert (gain.verdict, gain.busy) == (verdict, busy)
    low, high = gain.interval
    assert low <= gain.ratio <= high
    assert (low > 1 or high < 1) == (verdict in ("faster", "slower") or other == 99.0)
    # the same, seen from the other case
    opposite = {"faster": "slower", "slower": "faster"}.get(verdict, verdict)
    assert Gain(gain.other, gain.base).verdict == opposite


def test_the_same_work_is_never_faster_and_sets_what_counts_as_noise() -> None:
    places = [
        {"private": point("private", 140.0), "shared": point("shared", 100.0)},
        {"private": point("private", 140.0), "shared": point("shared", 20.0, x=9.0)},
        {"private": point("private", 140.0)},
    ]
    one, other = (Gain(cases["private"], cases["shared"], 1.02) for cases in places[:2])
    assert (one.same_work, one.verdict) == (True, "unclear")
    assert (other.same_work, other.verdict) == (False, "faster")
    # a little apart is no sign of a busy machine
    near = Gain(point("private", 105.0), point("shared", 100.0))
    assert (near.verdict, near.busy) == ("same", False)
    assert floor_of(places) == pytest.approx(1.4)
    assert floor_of(places[1:]) == floor_of([]) == 1.02
    # another kernel on the same blocks is other work
    assert not Gain(point("private", 140.0), point("cascade", 100.0)).same_work


def test_the_middle_gain_is_no_lucky_one() -> None:
    gains = [Gain(point("private", 100.0), point("shared", t, x=2.0)) for t in (50, 5, 80, 40)]
    assert middle_of(gains) == 0
    idle = Gain(point("private", 100.0), point("shared", 100.0))
    # nothing shared, nothing to tell, unless there is nothing else
    assert middle_of([idle, idle, idle, gains[1]]) == 3
    assert middle_of([idle]) == 0


def test_pooled_points_have_one_time_and_rates_that_go_with_it() -> None:
    points = [point("private", us, 0.02) for us in (100.0, 300.0, 101.0, 99.0, 98.0)]
    made = pooled(points)
    assert {one.middle for one in made} == {100.0}
    assert {one.gb_per_s for one in made} == {1.0}
    assert {one.y for one in made} == {0.05}
    assert made[0].low <= 98.0
    assert made[0].high >= 101.0
    # what is pooled already stays so
    assert pooled(made) == made
    assert pooled(points[:1]) == points[:1]
    assert pooled([]) == []


def test_more_rounds_are_wanted_while_bands_are_wider_than_the_gap() -> None:
    steady, slower = [1.0, 1.01, 0.99] * 3, [1.7, 1.71, 1.69] * 3
    assert not unsettled({"private": slower, "shared": steady})
    assert not unsettled({"private": steady, "shared": steady})
    assert not unsettled({"private": steady})
    noisy = [0.9, 1.7, 2.5] * 3
    assert unsettled({"private": noisy, "shared": steady})
    # any two of the cases
    assert unsettled({"private": [9.0] * 9, "shared": steady, "cascade": noisy})


def test_bands_are_those_of_a_record() -> None:
    times = np.random.default_rng(0).exponential(size=23)
    assert _band(times.tolist()) == pytest.approx(np.percentile(times, [20, 50, 80]))
    assert _band([3.0]) == (3.0, 3.0, 3.0)


def test_an_unknown_rate_has_no_place() -> None:
    lost = point("private", 100.0)._replace(y=math.nan)
    assert all(math.isnan(one.y) for one in pooled([lost, lost]))


def test_a_plain_read_is_that_of_the_last_cache() -> None:
    assert plain_read(LADDER) == ("L3", 3.0)
    assert plain_read(LADDER[:2]) is None
    assert plain_read(LADDER[2:]) is None
