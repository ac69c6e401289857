"""Titles that state what a sweep found. Compares lines, draws nothing."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from apclab.figures.points import Line
from apclab.figures.style import significant, times

# a difference of medians below this is not claimed, as in the sentence of `results`
_SAME = 0.02
_SETTING_WORDS = {
    "batch": "batch {:g}",
    "input_len": "{:g} in",
    "output_len": "{:g} out",
    "cache_hit": "hit {:g}",
    "prefix_groups": "groups {:g}",
    "block_size": "block {:g}",
}


class Point(NamedTuple):
    """One case at one place of the x axis."""

    case: str
    x: float
    low: float
    middle: float
    high: float
    gb_per_s: float
    reuse: float
    relative: float


def best_points(measured: Sequence[Line]) -> list[Point]:
    """The points of all cases at the place where the second case gains most over the first one.

    A gain counts where the ranges of the two are apart; if that is nowhere, anywhere.
    """
    places = [_points(measured, x) for x in (measured[-1].x if measured else [])]
    pairs = [points for points in places if len(points) > 1]
    clear = [points for points in pairs if _gain(points) > 1 and _apart(points)]
    # without a second case there is no gain: take the last point
    return max(clear or pairs, key=_gain, default=places[-1] if places else [])


def _points(measured: Sequence[Line], x: float) -> list[Point]:
    found = []
    for line in measured:
        if x in line.x:
            i = line.x.index(x)
            found.append(Point(line.case, *(values[i] for values in line[1:8])))
    return found


def _gain(points: Sequence[Point]) -> float:
    return points[0].middle / points[1].middle


def _apart(points: Sequence[Point]) -> bool:
    first, second = points[0], points[1]
    return second.high < first.low or first.high < second.low


def time_title(points: Sequence[Point], x: str) -> str:
    """How the second case compares with the first one, and the third; "" without a second."""
    if len(points) < 2:
        return ""
    first, second, gain = points[0], points[1], _gain(points)
    third = points[-1]
    beside = _apart(points[1:]) and abs(_gain(points[1:]) - 1) >= _SAME if points[2:] else False
    if not _apart(points) or abs(gain - 1) < _SAME:
        if beside:
            ratio = times(first.middle / third.middle)
            return f"{second.case} and {first.case} take the<br>same time, {third.case} {ratio}"
        return f"{second.case} and {first.case} take<br>the same time within noise"
    if gain < 1:
        return f"{second.case} is nowhere faster<br>than {first.case}"
    place = _SETTING_WORDS[x].format(second.x)
    if beside:
        ratio = times(first.middle / third.middle)
        return f"{second.case} is {times(gain)} faster, {third.case}<br>{ratio}, at {place}"
    return f"{second.case} is {times(gain)} faster<br>than {first.case} at {place}"


def bandwidth_title(points: Sequence[Point]) -> str:
    """The highest rate in units of the DRAM rate; "" when there is none."""
    if not points:
        return ""
    best = max(points, key=lambda point: point.gb_per_s)
    rate = f"{best.case} reads {significant(best.gb_per_s)} GB/s"
    if math.isnan(best.relative):
        return rate
    return f"{rate},<br>{times(best.relative)} what DRAM delivers"


def roofline_title(points: Sequence[Point]) -> str:
    """What reuse allowed and what came; "" when nothing was measured."""
    if not points:
        return ""
    best = max(points, key=lambda point: point.reuse)
    if math.isnan(best.relative):
        return "the DRAM rate is unknown:<br>no place for these points"
    if best.reuse < 1.05:
        return f"no reuse: {best.case} gets<br>{times(best.relative)} the DRAM rate"
    return (
        f"reuse {significant(best.reuse)}: {best.case} gets<br>{times(best.relative)} the DRAM rate"
    )


def settings_text(values: dict[str, Any], x: str) -> str:
    """The settings that a sweep holds fixed: "batch 100, 300 in, 20 out"."""
    words = [text.format(values[name]) for name, text in _SETTING_WORDS.items() if name != x]
    return ", ".join(words)
