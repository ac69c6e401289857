"""Titles that state what a sweep found. Compares lines, draws nothing."""

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
    """The points of all cases where the last case gains most over the first one."""
    if not measured:
        return []
    first, last = measured[0], measured[-1]
    gains = {
        x: first.middle[first.x.index(x)] / middle
        for x, middle in zip(last.x, last.middle, strict=True)
        if x in first.x
    }
    # without a second case there is no gain: take the last point
    place = max(gains, key=lambda x: (gains[x], x)) if gains else last.x[-1]
    found = []
    for line in measured:
        if place in line.x:
            i = line.x.index(place)
            found.append(Point(line.case, *(values[i] for values in line[1:8])))
    return found


def time_title(points: Sequence[Point], x: str) -> str:
    """How the last case compares with the first one; "" when there are not two."""
    if len(points) < 2:
        return ""
    first, last = points[0], points[-1]
    ratio = first.middle / last.middle
    apart = last.high < first.low or first.high < last.low
    if not apart or abs(ratio - 1) < _SAME:
        return f"{last.case} and {first.case} take<br>the same time within noise"
    if ratio < 1:
        return f"{last.case} is nowhere faster<br>than {first.case}"
    place = _SETTING_WORDS[x].format(last.x)
    return f"{last.case} is {times(ratio)} faster<br>than {first.case} at {place}"


def bandwidth_title(points: Sequence[Point]) -> str:
    """The highest rate in units of the DRAM rate; "" when there is none."""
    if not points:
        return ""
    best = max(points, key=lambda point: point.gb_per_s)
    return (
        f"{best.case} reads {significant(best.gb_per_s)} GB/s,"
        f"<br>{times(best.relative)} what DRAM delivers"
    )


def roofline_title(points: Sequence[Point]) -> str:
    """What reuse allowed and what came; "" when nothing was measured."""
    if not points:
        return ""
    best = max(points, key=lambda point: point.reuse)
    if best.reuse < 1.05:
        return f"no reuse: {best.case} gets<br>{times(best.relative)} the DRAM rate"
    return (
        f"reuse {significant(best.reuse)}: {best.case} gets<br>{times(best.relative)} the DRAM rate"
    )


def settings_text(values: dict[str, Any], x: str) -> str:
    """The settings that a sweep holds fixed: "batch 100, 300 in, 20 out"."""
    words = [text.format(values[name]) for name, text in _SETTING_WORDS.items() if name != x]
    return ", ".join(words)
