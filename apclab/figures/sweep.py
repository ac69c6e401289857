"""Times and bandwidths of a sweep against its x axis. Draws records, measures nothing."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from apclab.figures.points import VIEWS, X_AXES, Line, check_axes, lines
from apclab.figures.style import (
    CASES,
    COLOURS,
    GREY,
    LOG_TICKS,
    NO_TEXT,
    TICK_WORDS,
    Ladder,
    Panel,
    alone,
    axis,
    small,
    translucent,
)
from apclab.figures.titles import bandwidth_title, time_title, told_place

_RUNGS = 4  # levels of a ladder that are drawn
_LABEL_ROOM = 0.24  # of the x axis, right of the last point


def decode_time(
    frame: pd.DataFrame,
    x: str = "cache_hit",
    view: str = "layer",
    *,
    num_layers: int | None = None,
    asked: float | None = None,
    theme: str = "auto",
) -> go.Figure:
    """Draw the time of each case against `x`: the median, with a band from p20 to p80.

    Args:
        frame: one row a record, as `results.frame` makes it.
        x: column along the x axis: cache_hit, batch, input_len, prefix_groups or block_size.
        view: "layer" (µs), "token" (all layers, ms) or "output" (all layers and tokens, ms).
        num_layers: layers of the model; wanted for "token" and "output".
        asked: the value of `x` that the title speaks of; None takes the median gain.
        theme: "auto", "light" or "dark".

    Raises:
        ValueError: an unknown x, view or theme, or num_layers missing.
    """
    measured = lines(frame, x, view, num_layers)
    title = time_title(told_place(measured, x, asked))
    return alone(time_panel(measured, x, view, title=title), theme)


def bandwidth(
    frame: pd.DataFrame,
    ladder: Ladder,
    x: str = "cache_hit",
    *,
    asked: float | None = None,
    theme: str = "auto",
) -> go.Figure:
    """Draw the logical GB/s of each case against `x`, over the machine's measured read rates.

    Args:
        frame: one row a record, as `results.frame` makes it.
        ladder: the machine's levels, each with `level` and `gb_per_s`, from `record["device"]`.
        x: column along the x axis, as in `decode_time`.
        asked: as in `decode_time`.
        theme: "auto", "light" or "dark".
    """
    measured = lines(frame, x)
    title = bandwidth_title(told_place(measured, x, asked))
    return alone(bandwidth_panel(measured, ladder, x, title=title), theme)


def time_panel(
    measured: Iterable[Line],
    x: str,
    view: str = "layer",
    *,
    saved: Iterable[Line] = (),
    xs: Sequence[float] = (),
    title: str = "",
    given: str = "",
) -> Panel:
    """The same as one panel of a page; three traces a case: band, medians, saved medians.

    Args:
        measured: lines of this sweep, at most one a case.
        x: what runs along the x axis.
        view: "layer", "token" or "output".
        saved: lines of earlier sweeps, drawn dotted and hollow.
        xs: where the sweep will put points, so that the axis does not move while it runs.
        title: what was found; a call to press Run when empty.
        given: the settings that do not vary, put under the x axis.
    """
    check_axes(x, view)
    measured, saved = list(measured), list(saved)
    positions = _label_positions(measured, "middle", logarithmic=False)
    traces: list[dict[str, Any]] = []
    for case in CASES:
        position = positions.get(case, "middle right")
        traces += [
            _band(case, measured),
            _line(case, measured, "middle", position),
            _saved(case, saved, "middle"),
        ]
    top = max((value for line in [*measured, *saved] for value in line.high), default=1.0)
    return Panel(
        traces,
        _x_axis(x, [*xs, *_values([*measured, *saved])], given),
        axis(
            VIEWS[view],
            range=[0, 1.12 * top],
            tickformat=",",
            nticks=6,
            showticklabels=bool(measured or saved),
        ),
        title or "decode time of each case:<br>press Run to measure it",
    )


def bandwidth_panel(
    measured: Iterable[Line],
    ladder: Ladder,
    x: str,
    *,
    saved: Iterable[Line] = (),
    xs: Sequence[float] = (),
    title: str = "",
) -> Panel:
    """GB/s against x as one panel of a page; two traces a case, then the ladder's."""
    check_axes(x)
    measured, saved = list(measured), list(saved)
    positions = _label_positions(measured, "gb_per_s", logarithmic=True)
    traces: list[dict[str, Any]] = []
    for case in CASES:
        position = positions.get(case, "middle right")
        traces += [
            _line(case, measured, "gb_per_s", position),
            _saved(case, saved, "gb_per_s"),
        ]
    xaxis = _x_axis(x, [*xs, *_values([*measured, *saved])])
    traces += _ladder(ladder, xaxis)
    rates = [rung["gb_per_s"] for rung in ladder]
    rates += [value for line in [*measured, *saved] for value in line.gb_per_s]
    low, high = (min(rates), max(rates)) if rates else (1.0, 10.0)
    return Panel(
        traces,
        xaxis,
        axis(
            "read by the kernel, GB/s",
            type="log",
            range=[math.log10(0.8 * low), math.log10(1.3 * high)],
            tickvals=LOG_TICKS,
            ticktext=TICK_WORDS,
            showticklabels=bool(rates),
        ),
        title or "read rate of each case<br>against this machine's memory",
    )


def _band(case: str, measured: Iterable[Line]) -> dict[str, Any]:
    mine = [line for line in measured if line.case == case]
    return {
        "type": "scatter",
        "x": _joined([*line.x, *line.x[::-1]] for line in mine),
        "y": _joined([*line.high, *line.low[::-1]] for line in mine),
        "mode": "lines",
        "fill": "toself",
        "fillcolor": translucent(COLOURS[case], 0.25),
        # a sweep of one point still shows its spread
        "line": {"color": translucent(COLOURS[case], 0.5), "width": 1},
        "hoverinfo": "skip",
    }


def _line(case: str, measured: Iterable[Line], quantity: str, position: str) -> dict[str, Any]:
    name = f"<b>{case}</b>"
    mine = [line for line in measured if line.case == case]
    return {
        "type": "scatter",
        "name": case,
        "x": _joined(line.x for line in mine),
        "y": _joined(getattr(line, quantity) for line in mine),
        "mode": "lines+markers+text",
        "line": {"color": COLOURS[case], "width": 2.5},
        "marker": {"color": COLOURS[case], "size": 7},
        # the name stands at the end of a line
        "text": _joined([*[NO_TEXT] * (len(line.x) - 1), name] for line in mine),
        "textposition": position,
        "cliponaxis": False,
        "customdata": _joined(line.hover for line in mine),
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _saved(case: str, saved: Iterable[Line], quantity: str) -> dict[str, Any]:
    mine = [line for line in saved if line.case == case]
    return {
        "type": "scatter",
        "x": _joined(line.x for line in mine),
        "y": _joined(getattr(line, quantity) for line in mine),
        "mode": "lines+markers",
        "line": {"color": COLOURS[case], "width": 1.5, "dash": "dot"},
        "marker": {"color": COLOURS[case], "size": 8, "symbol": "circle-open"},
        "customdata": _joined(line.hover for line in mine),
        "hovertemplate": "saved: %{customdata}<extra></extra>",
    }


def _joined(parts: Iterable[list[Any]]) -> list[Any]:
    """Values of several lines in one trace, None between them, where plotly leaves a gap."""
    joined: list[Any] = []
    for part in parts:
        joined += [None, *part] if joined else part
    return joined


def _ladder(ladder: Ladder, xaxis: dict[str, Any]) -> list[dict[str, Any]]:
    """A line across for each level, its name over the left end; always `_RUNGS` traces.

    The right end belongs to the names of the cases.
    """
    left, right = xaxis["range"]
    left += 1e-3 * (right - left)  # a point on the very edge may count as outside
    ends = [10**left, 10**right] if xaxis["type"] == "log" else [left, right]
    rungs = [*ladder[:_RUNGS], *[None] * (_RUNGS - len(ladder))]
    return [
        {
            "type": "scatter",
            "x": ends if rung else [],
            "y": [rung["gb_per_s"]] * 2 if rung else [],
            "mode": "lines+text",
            "line": {"color": GREY, "width": 1, "dash": "dash"},
            "text": [f"{rung['level']} {rung['gb_per_s']:.0f}", NO_TEXT] if rung else [],
            # a level as fast as the one before it is named below its line
            "textposition": "bottom right" if near else "top right",
            "textfont": {"size": 10},
            "cliponaxis": False,
            "hoverinfo": "skip",
        }
        for rung, near in zip(rungs, [False, *map(_near, rungs, rungs[1:])], strict=True)
    ]


def _near(rung: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> bool:
    if rung is None or other is None:
        return False
    rates = sorted((rung["gb_per_s"], other["gb_per_s"]))
    return bool(rates[1] < 1.3 * rates[0])


def _label_positions(found: Iterable[Line], quantity: str, *, logarithmic: bool) -> dict[str, str]:
    """Where to write the names: beside the last points, apart where those lie close together."""
    last: dict[str, float] = {line.case: getattr(line, quantity)[-1] for line in found}
    ends = sorted((value, case) for case, value in last.items())
    highest = max(last.values(), default=1.0)
    positions: dict[str, str] = {}
    for (low, lower), (high, upper) in pairwise(ends):
        near = high / low < 1.25 if logarithmic else (high - low) / highest < 0.1
        if near:
            # the middle one of three stays beside its point
            positions[lower] = "middle right" if lower in positions else "bottom right"
            positions[upper] = "top right"
    return positions


def _values(found: Iterable[Line]) -> list[float]:
    return [value for line in found for value in line.x]


def _x_axis(x: str, values: Sequence[float], given: str = "") -> dict[str, Any]:
    """The axis of a sweep, with room for names on the right; powers of two on a log axis."""
    title = X_AXES[x] + (small(given) if given else "")
    if x == "cache_hit":
        ends, kind, ticks = [-0.04, 1.04 + _LABEL_ROOM], "linear", [0, 0.25, 0.5, 0.75, 1]
    else:
        ticks = sorted(set(values)) or [1.0]
        low, high = math.log10(ticks[0]), math.log10(ticks[-1])
        span = max(high - low, 0.3)
        ends, kind = [low - 0.04 * span, high + (0.04 + _LABEL_ROOM) * span], "log"
    ticktext = [f"{tick:g}" for tick in ticks]
    return axis(title, type=kind, range=ends, tickvals=ticks, ticktext=ticktext)
