"""Titles that state what a sweep found. What may be said is decided in `results`; draws nothing."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from apclab.figures.points import Line
from apclab.figures.style import significant, times
from apclab.results import SAME_PRIVATE, Gain, Point, floor_of, middle_of

_SETTING_WORDS = {
    "batch": "batch {:g}",
    "input_len": "{:g} in",
    "output_len": "{:g} out",
    "cache_hit": "hit {:g}",
    "prefix_groups": "groups {:g}",
    "block_size": "block {:g}",
}


class Told(NamedTuple):
    """The place of a sweep that its titles speak of."""

    place: str  # in words
    points: list[Point]  # in the order of the cases
    floor: float  # see `results.floor_of`
    median: tuple[float, float] | None  # range over all places, where nobody asked for one

    def gain(self, base: int, other: int) -> Gain:
        """Of two of its points."""
        return Gain(self.points[base], self.points[other], self.floor)


def told_place(measured: Sequence[Line], x: str, asked: float | None = None) -> Told | None:
    """The place that was asked for, else the one where the second case has its median gain.

    Args:
        measured: lines of a sweep; of several sweeps the last one counts.
        x: what runs along the x axis.
        asked: a value of x.

    Returns:
        None without a point.
    """
    last = {line.case: dict(zip(line.x, line.points(), strict=True)) for line in measured}
    places = {
        value: {case: points[value] for case, points in last.items() if value in points}
        for value in sorted({value for points in last.values() for value in points})
    }
    # a place with one case compares nothing
    most = max((min(len(cases), 2) for cases in places.values()), default=0)
    places = {value: cases for value, cases in places.items() if len(cases) >= most}
    if not places:
        return None
    of_all = floor_of(list(places.values()))
    floors = [of_all if x in SAME_PRIVATE else floor_of([cases]) for cases in places.values()]
    here = [
        Told(_SETTING_WORDS[x].format(value), list(cases.values()), floor, None)
        for (value, cases), floor in zip(places.items(), floors, strict=True)
    ]
    if asked in places:
        return here[list(places).index(asked)]
    if most < 2:
        return here[-1]
    gains = [told.gain(0, 1) for told in here]
    ratios = [gain.ratio for gain in gains]
    spread = (min(ratios), max(ratios)) if len(here) > 1 else None
    return here[middle_of(gains)]._replace(median=spread)


def time_title(told: Told | None) -> str:
    """How the second case compares with the first one, and the third; "" without a second."""
    if told is None or len(told.points) < 2:
        return ""
    first, second, *third = (point.case for point in told.points)
    gain = told.gain(0, 1)
    place = f"at {told.place}"
    if told.median:
        low, high = map(times, told.median)
        place += f" (median of {low} to {high})"
    if gain.same_work:
        noise = f", {_apart(gain)} is noise" if gain.verdict == "unclear" else ""
        return f"no block is shared {place}:<br>{second} is the same work{noise}"
    beside = ""
    if third and told.gain(1, 2).verdict in ("faster", "slower"):
        beside = f", {third[0]} {times(told.gain(0, 2).ratio)}"
    match gain.verdict:
        case "faster" if beside:
            return f"{second} is {times(gain.ratio)} faster{beside},<br>{place}"
        case "faster":
            return f"{second} is {times(gain.ratio)} faster<br>than {first} {place}"
        case "slower":
            return f"{second} is {times(1 / gain.ratio)} slower<br>than {first} {place}{beside}"
        case "same":
            return f"{second} and {first} take the<br>same time {place}{beside}"
    return f"{_apart(gain)} between {second} and {first} {place}<br>is noise: this machine was busy"


def _apart(gain: Gain) -> str:
    return times(max(gain.ratio, 1 / gain.ratio))


def bandwidth_title(told: Told | None) -> str:
    """The highest rate in units of the DRAM rate; "" when there is none."""
    if told is None:
        return ""
    best = max(told.points, key=lambda point: point.gb_per_s)
    rate = f"{best.case} reads {significant(best.gb_per_s)} GB/s"
    if math.isnan(best.y):
        return rate
    return f"{rate},<br>{times(best.y)} what DRAM delivers"


def roofline_title(told: Told | None) -> str:
    """What reuse allowed and what came; "" when nothing was measured."""
    if told is None:
        return ""
    best = max(told.points, key=lambda point: point.x)
    if math.isnan(best.y):
        return "the DRAM rate is unknown:<br>no place for these points"
    if best.x < 1.05:
        return f"no reuse: {best.case} gets<br>{times(best.y)} the DRAM rate"
    return f"reuse {significant(best.x)}: {best.case} gets<br>{times(best.y)} the DRAM rate"


def settings_text(values: dict[str, Any], x: str) -> str:
    """The settings that a sweep holds fixed: "batch 100, 300 in, 20 out"."""
    words = [text.format(values[name]) for name, text in _SETTING_WORDS.items() if name != x]
    return ", ".join(words)
