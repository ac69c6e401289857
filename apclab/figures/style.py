"""Colours, themes and the parts that every figure shares. Knows no measurement."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

# Okabe and Ito, safe for colour-blind readers; one colour a case, the same everywhere
COLOURS = {"private": "#E69F00", "shared": "#0072B2", "cascade": "#009E73"}
CASES = tuple(COLOURS)

GREY = "#808080"  # contrast of about 4 on white and on JupyterLab's dark grey alike
_FADED = "rgba(128,128,128,0.6)"
FAINT = "rgba(128,128,128,0.22)"
CLEAR = "rgba(0,0,0,0)"
FONT = {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 12}

# name -> colour of text and axes, colour of the paper
_THEMES = {"auto": (GREY, CLEAR), "light": ("#333333", "#ffffff"), "dark": ("#dddddd", "#111111")}
THEMES = tuple(_THEMES)

# measured read rates of a machine: level, footprint_bytes, gb_per_s, threads each
Ladder = Sequence[Mapping[str, Any]]

LOG_TICKS = [step * 10.0**power for power in range(-3, 5) for step in (1, 2, 5)]
TICK_WORDS = [f"{tick:g}" for tick in LOG_TICKS]

# for points without a name: plotly would remove the text of an empty one, and never bring it back
NO_TEXT = " "


class Panel(NamedTuple):
    """One picture, ready to stand alone or in a grid; every panel has a fixed number of traces."""

    traces: list[dict[str, Any]]
    xaxis: dict[str, Any]
    yaxis: dict[str, Any]
    title: str  # states the finding, at most two lines


def layout(theme: str, **more: Any) -> dict[str, Any]:
    """Layout that all figures share.

    Args:
        theme: "auto" (transparent, mid-grey text: follows the page), "light" or "dark".
        more: further layout entries.

    Raises:
        ValueError: another theme.
    """
    if theme not in _THEMES:
        raise ValueError(f"theme must be one of {', '.join(THEMES)}, got {theme!r}")
    ink, paper = _THEMES[theme]
    return {
        "template": "plotly_dark" if theme == "dark" else "plotly_white",
        "font": {**FONT, "color": ink},
        "paper_bgcolor": paper,
        "plot_bgcolor": CLEAR,
        "showlegend": False,
        "modebar": {"bgcolor": CLEAR, "color": GREY, "activecolor": ink},
        "hoverlabel": {"font": {"size": 12}, "align": "left"},
        **more,
    }


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with its title, unit included, and quiet lines."""
    return {
        "title": {"text": title, "font": {"size": 12}, "standoff": 8},
        "gridcolor": FAINT,
        "linecolor": GREY,
        "tickcolor": GREY,
        "ticks": "outside",
        "ticklen": 4,
        "zeroline": False,
        "showline": True,
        **more,
    }


def alone(panel: Panel, theme: str) -> go.Figure:
    """The panel as a figure of its own."""
    title = {"text": panel.title, "x": 0.02, "font": {"size": 15}}
    around = layout(theme, title=title, height=420, margin={"l": 70, "r": 90, "t": 60, "b": 60})
    return go.Figure(panel.traces, {**around, "xaxis": panel.xaxis, "yaxis": panel.yaxis})


def faded(panel: Panel) -> Panel:
    """The same with what was measured in grey; what others published or was saved stays."""
    return panel._replace(traces=[_faded(trace) for trace in panel.traces])


def _faded(trace: dict[str, Any]) -> dict[str, Any]:
    if "fillcolor" in trace:  # a band
        return {**trace, "fillcolor": FAINT, "line": {**trace["line"], "color": FAINT}}
    if trace.get("name") not in COLOURS:
        return trace
    parts = [part for part in ("line", "marker") if part in trace]
    return trace | {part: {**trace[part], "color": _FADED} for part in parts}


def times(ratio: float) -> str:
    """A ratio for people: 2.4×, or 0.86×."""
    return f"{ratio:.1f}×" if ratio >= 1 else f"{ratio:.2f}×"


def small(text: str) -> str:
    """A second, smaller line of an axis title."""
    return f'<br><span style="font-size: 10px">{text}</span>'


def translucent(colour: str, alpha: float) -> str:
    """The colour "#rrggbb" with an opacity, as plotly wants it."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def bytes_text(count: float) -> str:
    """Bytes for people: 635 MB, 1.27 GB (powers of 1000, as in GB/s)."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{significant(count / size)} {unit}"
    return f"{count:.0f} bytes"


def significant(number: float) -> str:
    """Three significant digits, never in powers of ten: 1,234 or 6.55 or 0.9."""
    if abs(number) >= 100:
        return f"{number:,.0f}"
    return f"{number:.3g}"
