"""Records of a sweep as points of a picture: which rows, which x, which y, what hover says."""

import math
from typing import Any, NamedTuple

import pandas as pd

from apclab.figures.style import CASES, bytes_text, significant
from apclab.results import SAME_PRIVATE, Point, decode_times, pooled

# column of the records that may be an axis -> its title
X_AXES = {
    "cache_hit": "cache hit",
    "batch": "batch, requests",
    "input_len": "input length, tokens",
    "prefix_groups": "prefix groups",
    "block_size": "block size, tokens",
}
# view -> axis title with the unit of y
VIEWS = {
    "layer": "time of one layer, µs",
    "token": "time of one token, all layers, ms",
    "output": "time of the whole output, all layers, ms",
}
# what must agree for records to lie on one line, next to the case and apart from the x axis
_SWEEP = (
    *("batch", "input_len", "output_len", "cache_hit", "prefix_groups", "model", "dtype"),
    *("block_size", "layout", "backend", "order", "l2", "step", "device", "threads", "commit"),
)


class Line(NamedTuple):
    """Points of one case, sorted by x; lists, because some front ends cannot take arrays."""

    case: str
    x: list[float]
    low: list[float]  # p20, in the unit of the view
    middle: list[float]  # p50
    high: list[float]  # p80
    gb_per_s: list[float]  # logical
    reuse: list[float]  # logical bytes / distinct bytes
    relative: list[float]  # logical GB/s / DRAM GB/s of the device, NaN when that is unknown
    hover: list[str]

    def points(self) -> list[Point]:
        """What `results` compares, one an x."""
        columns = (self.low, self.middle, self.high, self.gb_per_s, self.reuse, self.relative)
        return [Point(self.case, *values) for values in zip(*columns, strict=True)]


def check_axes(x: str, view: str = "layer") -> None:
    """Refuse an unknown axis or view by a ValueError that lists the known ones."""
    if x not in X_AXES:
        raise ValueError(f"x must be one of {', '.join(X_AXES)}, got {x!r}")
    if view not in VIEWS:
        raise ValueError(f"view must be one of {', '.join(VIEWS)}, got {view!r}")


def lines(
    frame: pd.DataFrame, x: str, view: str = "layer", num_layers: int | None = None
) -> list[Line]:
    """Split measured records into lines, one a case and sweep, in the order of the cases.

    Of records that agree in everything but their times, the newest counts; those without a
    value of `x` are left out. Where `x` changes nothing in the work of `private`, its points are
    one measurement, and its line is flat; hover has what each of them measured.

    Args:
        frame: one row a record, as `results.frame` makes it; may be empty.
        x: column along the x axis, one of `X_AXES`.
        view: "layer", "token" (all layers of the model) or "output" (all tokens of the output,
            integrated from the first, middle and last step).
        num_layers: layers of the model; wanted for "token" and "output".

    Raises:
        ValueError: an unknown x or view, or num_layers missing.
    """
    check_axes(x, view)
    if view != "layer" and num_layers is None:
        raise ValueError(f"num_layers must be given for view {view!r}")
    frame = frame.dropna(subset=[x])  # records of given tables have no lengths and no hit
    if frame.empty:
        return []
    steps = set(frame["step"])
    if view == "output" and not {"first", "mid", "last"} <= steps:
        return []
    if view != "output" and len(steps) > 1:
        frame = frame[frame["step"] == ("mid" if "mid" in steps else min(steps))]
    times = decode_times(frame, view, num_layers or 1)
    # a batch smaller than the prefix groups takes them down with it
    free = {x, "prefix_groups"} if x == "batch" else {x}
    keys = [column for column in _SWEEP if column not in free]
    return [
        _line(case, sweep.drop_duplicates(x, keep="last").sort_values(x), x)
        for case in CASES
        for _, sweep in times[times["case"] == case].groupby(keys, dropna=False, sort=False)
    ]


def _line(case: str, rows: pd.DataFrame, x: str) -> Line:
    columns = ("p20", "p50", "p80", "gb_per_s", "x", "y")
    points = [
        Point(case, *values)
        for values in zip(*(map(float, rows[column]) for column in columns), strict=True)
    ]
    hover = [_hover(row) for row in rows.to_dict("records")]
    if case == "private" and x in SAME_PRIVATE and len(points) > 1:
        points = pooled(points)
        hover = [f"{text}<br>drawn: what all {len(points)} points measured" for text in hover]
    _, low, middle, high, gb_per_s, reuse, relative = map(list, zip(*points, strict=True))
    return Line(
        case, list(map(float, rows[x])), low, middle, high, gb_per_s, reuse, relative, hover
    )


def _hover(row: dict[Any, Any]) -> str:
    """The record behind a point, in words; what a record of given tables lacks is left out."""
    commit = str(row["commit"] or "no commit")[:7]
    asked = f"batch {row['batch']}"
    if not math.isnan(row["cache_hit"]):
        asked += f", {row['input_len']:g} in, {row['output_len']:g} out"
        asked += f", {row['prefix_groups']:g} prefix group(s)"
        asked += f"<br>hit {row['cache_hit']:.3g} asked, {row['realised_hit']:.3g} realised"
    threads = "" if math.isnan(row["threads"]) else f", {row['threads']:g} thread(s)"
    return "<br>".join(
        (
            f"<b>{row['case']}</b> {row['p50']:,.1f} {row['unit']} "
            f"({row['p20']:,.1f} to {row['p80']:,.1f})",
            f"{significant(row['gb_per_s'])} GB/s of {bytes_text(row['logical_bytes'])}, "
            f"{bytes_text(row['distinct_bytes'])} distinct",
            f"{asked}, readers {significant(row['readers_mean'])}",
            f"{row['model']} {row['dtype']}, block {row['block_size']}, {row['layout']}",
            f"{row['backend']}, order {row['order']}, {row['l2']}{threads}",
            f"{row['device']}, {commit}, {str(row['created'])[:16]}",
        )
    )
