"""What two cases say of each other: gain, noise, place on the roofline, cause. No sentences."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from statistics import median, quantiles
from typing import Any, Literal, NamedTuple

from apclab.results.field import Record

# medians closer than this are the same, however tight their bands
_SAME = 1.02
# medians that noise may have moved, and that are farther apart than this, leave the question open
_OPEN = 1.1
# below this part of DRAM's rate a kernel waits for something else
_BOUND = 0.5
# More runnable threads than this for a core are others' as well: ours are one a core.
_CROWDED = 1.5
# with this part of its cores' time a process was alone, whatever the load of the last minute
_ALONE = 0.85
# what may differ while private does the same work: who else could read its blocks
SAME_PRIVATE = ("cache_hit", "prefix_groups", "primed")

Verdict = Literal["faster", "slower", "same", "unclear"]


class Point(NamedTuple):
    """One case at one point of a sweep."""

    case: str
    low: float  # p20, in any unit of time
    middle: float  # p50
    high: float  # p80
    gb_per_s: float  # logical
    x: float  # reuse: logical / distinct bytes
    y: float  # logical GB/s / read rate of DRAM, NaN when that is unknown


class Gain(NamedTuple):
    """How many times faster `other` is than `base`, and whether that can be said."""

    base: Point
    other: Point
    floor: float = _SAME  # how far apart medians come without a cause

    @property
    def ratio(self) -> float:
        """Of the medians; above 1 `other` is faster."""
        return self.base.middle / self.other.middle

    @property
    def interval(self) -> tuple[float, float]:
        """The least and the largest ratio that the bands from p20 to p80 allow."""
        return self.base.low / self.other.high, self.base.high / self.other.low

    @property
    def fewer(self) -> float:
        """How many times fewer distinct bytes `other` has."""
        return self.other.x / self.base.x

    @property
    def same_work(self) -> bool:
        """True where no block is shared: then private and shared are one step measured twice."""
        return {self.base.case, self.other.case} == {"private", "shared"} and self.fewer == 1

    @property
    def verdict(self) -> Verdict:
        """What may be claimed; "unclear" where the noise is wider than the difference."""
        apart = _apart(self.ratio)
        if apart <= _SAME:
            return "same"
        low, high = self.interval
        if low <= 1 <= high or self.same_work or apart <= self.floor:
            return "unclear" if apart > _OPEN else "same"
        return "faster" if self.ratio > 1 else "slower"

    @property
    def busy(self) -> bool:
        """True where something disturbed the times: the bands are wider than the difference."""
        low, high = self.interval
        return self.verdict == "unclear" or (self.verdict == "same" and high / low > _OPEN**2)


Places = Sequence[Mapping[str, Point]]  # of one sweep, each with its cases


def pooled(points: Sequence[Point]) -> list[Point]:
    """Points that all measured the same work, each with the times of all of them together.

    The band is no narrower than that of the middle point, nor than the scatter of the medians.
    """
    if len(points) < 2:
        return list(points)
    low, middle, high = _band([point.middle for point in points])
    low = min(low, median(point.low for point in points))
    high = max(high, median(point.high for point in points))
    return [
        point._replace(
            low=low, middle=middle, high=high,
            gb_per_s=point.gb_per_s * point.middle / middle, y=point.y * point.middle / middle,
        )
        for point in points
    ]  # fmt: skip


def floor_of(places: Places) -> float:
    """How far apart private and shared came where both do the same work; 2 % at least."""
    pairs = (
        Gain(cases["private"], cases["shared"])
        for cases in places
        if {"private", "shared"} <= cases.keys()
    )
    return max([_SAME, *(_apart(gain.ratio) for gain in pairs if gain.same_work)])


def middle_of(gains: Sequence[Gain]) -> int:
    """Which of several gains stands for all: the median one of those with work to save."""
    counted = [i for i, gain in enumerate(gains) if not gain.same_work] or range(len(gains))
    return sorted(counted, key=lambda i: gains[i].ratio)[(len(counted) - 1) // 2]


def unsettled(samples: Mapping[str, Sequence[float]]) -> bool:
    """Whether more rounds are wanted: two cases whose bands are wider than what is between them.

    Args:
        samples: case -> times so far, in any unit.
    """
    points = [
        Point(case, *_band(times), math.nan, math.nan, math.nan) for case, times in samples.items()
    ]
    return any(Gain(base, other).verdict == "unclear" for base, other in combinations(points, 2))


def dram_rates(records: Sequence[Record]) -> list[float | None]:
    """GB/s of DRAM that each record is held against, None where that is unknown.

    A busy machine lowers what a probe measures, so all records of one device and thread count are
    held against the highest rate that was measured there.
    """
    best: dict[Any, float] = {}
    for record in records:
        if rate := record["device"]["dram_gb_per_s"]:
            key = _device_key(record)
            best[key] = max(rate, best.get(key, 0.0))
    return [
        best.get(_device_key(record))
        if record["device"]["dram_basis"] == "measured"
        else record["device"]["dram_gb_per_s"]
        for record in records
    ]


def point_of(record: Record, dram_gb_per_s: float | None) -> Point:
    """A record's times, and its place on the reuse roofline."""
    return Point(
        case=record["case"],
        low=float(record["p20_us"]),
        middle=float(record["p50_us"]),
        high=float(record["p80_us"]),
        gb_per_s=float(record["gb_per_s"]),
        x=record["logical_bytes"] / record["distinct_bytes"],
        y=record["gb_per_s"] / dram_gb_per_s if dram_gb_per_s else math.nan,
    )


def gain_of(base: Record, other: Record) -> Gain:
    """The gain of two records of one point, on their own."""
    rates = dram_rates([base, other])
    return Gain(point_of(base, rates[0]), point_of(other, rates[1]))


def plain_read(ladder: Iterable[Mapping[str, Any]]) -> tuple[str, float] | None:
    """The last-level cache and its rate in a plain read, in units of DRAM's; None when unknown.

    No ceiling: a kernel that finds its blocks in a nearer cache, or in registers, gets more.
    """
    ladder = list(ladder)
    dram = [rung["gb_per_s"] for rung in ladder if rung["level"] == "DRAM"]
    caches = [rung for rung in ladder if rung["level"] != "DRAM"]
    if not dram or not caches:
        return None
    last = max(caches, key=lambda rung: rung["footprint_bytes"])
    return str(last["level"]), float(last["gb_per_s"] / dram[0])


class Pair(NamedTuple):
    """Two records of one point, and what they say."""

    base: Record  # private, or shared where cascade is compared with it
    other: Record
    gain: Gain

    @property
    def cause(self) -> str:
        """What bytes and rates say about the times; "dram" only where they support it.

        "same work", "same bytes": nothing to save. "both fit", "fits", "warm": of a warm cache.
        "busy": others had a part of the rates. "unknown": no rate of DRAM. "not dram": `base` asks
        for less than half of what DRAM can give, so that it waits for something else. "dram and
        more": faster than bytes explain.
        """
        gain = self.gain
        if gain.same_work:
            return "same work"
        if gain.fewer < _SAME:
            return "same bytes"
        if self.other["l2"] == "warm":
            if _fits(self.base):
                return "both fit"
            return "fits" if _fits(self.other) else "warm"
        if self.crowded:
            return "busy"
        if math.isnan(gain.base.y):
            return "unknown"
        if gain.base.y < _BOUND:
            return "not dram"
        return "dram and more" if gain.ratio > _OPEN * gain.fewer else "dram"

    @property
    def load(self) -> tuple[float, int] | None:
        """Load average of the last minute and cores, our own threads included; None if unknown."""
        environment = self.other["environment"]
        average, cores = environment.get("load_average"), environment.get("cores")
        return (float(average[0]), int(cores)) if average and cores else None

    @property
    def share(self) -> float | None:
        """Part of its cores that the process got while it timed; None if unknown."""
        share = self.other["environment"].get("cpu_share")
        return None if share is None else float(share)

    @property
    def crowded(self) -> bool:
        """True where others took part of the machine, by its load and by what was left to us."""
        if self.share is not None:
            return self.share < _ALONE
        # a record of a GPU, or of an earlier version
        return self.load is not None and self.load[0] > _CROWDED * self.load[1]

    @property
    def disturbed(self) -> bool:
        """True where the times or the load say that the machine was busy."""
        return self.gain.busy or self.crowded


def _fits(record: Record) -> bool:
    return bool(record["distinct_bytes"] <= (record["device"]["llc_bytes"] or 0))


def _device_key(record: Record) -> tuple[Any, ...]:
    return record["device"]["name"], record["threads"], record["device"]["dram_basis"]


def _apart(ratio: float) -> float:
    return max(ratio, 1 / ratio)


def _band(times: Sequence[float]) -> tuple[float, float, float]:
    """p20, p50 and p80 of samples, as NumPy's percentiles have them."""
    if len(times) < 2:
        return times[0], times[0], times[0]
    fifths = quantiles(times, n=5, method="inclusive")
    return fifths[0], median(times), fifths[-1]
