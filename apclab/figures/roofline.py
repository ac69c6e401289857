"""The reuse roofline: bytes that the cache must serve, against bytes that it did serve."""

import math
from collections.abc import Iterable
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from apclab.figures.points import Line, lines
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
    times,
)
from apclab.figures.titles import roofline_title, told_place
from apclab.results import plain_read

# cascade and shared often lie at one place
_NAME_AT = {"private": "bottom right", "shared": "middle right", "cascade": "top right"}


def reuse_roofline(
    frame: pd.DataFrame,
    published: pd.DataFrame | None = None,
    *,
    ladder: Ladder = (),
    asked: float | None = None,
    theme: str = "auto",
) -> go.Figure:
    """Draw measured and published cases under the roof: reuse times the rate of DRAM.

    A point above 1 read more bytes a second than DRAM can deliver: a cache served the rest. What
    a plain read of the last-level cache gives is drawn as a measure; a kernel that finds its
    blocks in a nearer cache, or in registers as cascade does, gets more.

    Args:
        frame: one row a record, as `results.frame` makes it.
        published: one row a published case, as `results.published` makes it.
        ladder: the machine's levels, for the plain read of its cache.
        asked: the cache hit that the title speaks of; None takes the median gain.
        theme: "auto", "light" or "dark".
    """
    measured = lines(frame, "cache_hit")
    title = roofline_title(told_place(measured, "cache_hit", asked))
    return alone(roofline_panel(measured, published, ladder, title=title), theme)


def roofline_panel(
    measured: Iterable[Line],
    published: pd.DataFrame | None,
    ladder: Ladder,
    *,
    saved: Iterable[Line] = (),
    title: str = "",
) -> Panel:
    """The same as one panel of a page; roof, plain read, published, seed, saved, the cases."""
    measured, saved = _placed(measured), _placed(saved)
    hollow = _published(published)
    seed = _unknown_reuse(published)
    found = [*measured, *saved]
    cache = plain_read(ladder)
    least = cache[1] if cache else 1.0  # so that it is in the picture
    reuses = [least, *(value for line in found for value in line.reuse), *hollow["x"], *seed["x"]]
    heights = [1.0, least, *(value for line in found for value in line.relative), *hollow["y"]]
    widest = 1.6 * max(reuses)
    # later traces lie on top
    traces = [_roof(widest), _plain_read(cache, widest), hollow, seed, _saved(saved)]
    traces += [_case(case, measured) for case in CASES]
    return Panel(
        traces,
        axis(
            "reuse: logical / distinct bytes" + small("hollow: published, dotted: vLLM issue 4860"),
            type="log",
            range=[math.log10(0.8), math.log10(widest)],
            tickvals=LOG_TICKS,
            ticktext=TICK_WORDS,
        ),
        axis(
            "logical GB/s / DRAM GB/s",
            type="log",
            range=[math.log10(0.7 * min(heights)), math.log10(2.0 * max(heights))],
            tickvals=LOG_TICKS,
            ticktext=TICK_WORDS,
        ),
        title or "above 1 the cache delivers<br>what DRAM cannot",
    )


def _placed(found: Iterable[Line]) -> list[Line]:
    """The points that have a place: where the DRAM rate is unknown, there is none."""
    placed = []
    for line in found:
        known = [i for i, value in enumerate(line.relative) if math.isfinite(value)]
        kept: list[Any] = [[values[i] for i in known] for values in line[1:]]
        placed.append(Line(line.case, *kept))
    return [line for line in placed if line.x]


def _case(case: str, measured: Iterable[Line]) -> dict[str, Any]:
    mine = [line for line in measured if line.case == case]
    reuse = [value for line in mine for value in line.reuse]
    relative = [value for line in mine for value in line.relative]
    # the name goes where others are least in its way
    named = max(
        range(len(reuse)),
        key=lambda i: -relative[i] if case == "private" else reuse[i],
        default=0,
    )
    return {
        "type": "scatter",
        "name": case,
        "x": reuse,
        "y": relative,
        "mode": "markers+text",
        "marker": {"color": COLOURS[case], "size": 9},
        "text": [f"<b>{case}</b>" if i == named else NO_TEXT for i in range(len(reuse))],
        "textposition": _NAME_AT[case],
        "customdata": [text for line in mine for text in line.hover],
        "hovertemplate": "reuse %{x:.2f}, %{y:.2f} of DRAM<br>%{customdata}<extra></extra>",
    }


def _saved(saved: list[Line]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "x": [value for line in saved for value in line.reuse],
        "y": [value for line in saved for value in line.relative],
        "mode": "markers",
        "marker": {
            "color": [COLOURS[line.case] for line in saved for _ in line.x],
            "size": 8,
            "symbol": "circle-open-dot",
        },
        "customdata": [f"saved: {text}" for line in saved for text in line.hover],
        "hovertemplate": "reuse %{x:.2f}, %{y:.2f} of DRAM<br>%{customdata}<extra></extra>",
    }


def _published(published: pd.DataFrame | None) -> dict[str, Any]:
    rows = [] if published is None else published.dropna(subset=["x"]).to_dict("records")
    return {
        "type": "scatter",
        "x": [float(row["x"]) for row in rows],
        "y": [float(row["y"]) for row in rows],
        "mode": "markers",
        "marker": {
            "color": [COLOURS.get(row["case"], GREY) for row in rows],
            "size": 7,
            "symbol": "diamond-open",
        },
        "customdata": [_source(row) for row in rows],
        "hovertemplate": "reuse %{x:.2f}, %{y:.2f} of DRAM<br>%{customdata}<extra></extra>",
    }


def _unknown_reuse(published: pd.DataFrame | None) -> dict[str, Any]:
    """Cases that do not state what was shared: a line over what it can be."""
    rows: list[dict[Any, Any]] = []
    if published is not None:
        unknown = published["x"].isna() & published["x_high"].notna()
        rows = published[unknown].to_dict("records")
    ends = [(float(x), float(row["y"])) for row in rows for x in (row["x_low"], row["x_high"])]
    return {
        "type": "scatter",
        "x": [x for x, _ in ends],
        "y": [y for _, y in ends],
        "mode": "lines",
        "line": {"color": COLOURS["shared"], "width": 1.5, "dash": "dot"},
        "customdata": [_source(row) for row in rows for _ in range(2)],
        "hovertemplate": "%{y:.2f} of DRAM, reuse not stated<br>%{customdata}<extra></extra>",
    }


def _roof(widest: float) -> dict[str, Any]:
    """A cold call can be no faster than DRAM delivers each distinct byte once."""
    return {
        "type": "scatter",
        "x": [0.8, widest],
        "y": [0.8, widest],
        "mode": "lines",
        "line": {"color": GREY, "width": 1.5},
        "hoverinfo": "skip",
    }


def _plain_read(cache: tuple[str, float] | None, widest: float) -> dict[str, Any]:
    """The rate of a plain read of the last-level cache, from the roof to the right."""
    level, ratio = cache or ("", 0.0)
    return {
        "type": "scatter",
        "x": [ratio, widest] if cache else [],
        "y": [ratio, ratio] if cache else [],
        "mode": "lines+text",
        "line": {"color": GREY, "width": 1, "dash": "dash"},
        "text": [NO_TEXT, f"plain read of {level}: {times(ratio)}"] if cache else [],
        "textposition": "bottom left",
        "textfont": {"size": 11},
        "hoverinfo": "skip",
    }


def _source(row: dict[Any, Any]) -> str:
    return (
        f"published: <b>{row['case']}</b> {row['kernel']}<br>{row['device']}, "
        f"batch {row['batch']}, {row['seq_len']:g} tokens<br>{row['study']}"
    )
