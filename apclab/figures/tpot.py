"""Where the time between a request's tokens went, as stacked bars."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from apclab.figures.style import Panel, alone, axis, small

# Okabe and Ito's colours that no case has
_TERMS = {
    "decode": "#56B4E9",
    "mixed": "#CC79A7",
    "prefill": "#D55E00",
    "preemption": "#F0E442",
}
_ARMS = {"off": "caching off", "engine": "on, kernel<br>without reuse", "on": "caching on"}


def tpot_terms(
    rows: Sequence[Mapping[str, Any]], *, title: str = "", theme: str = "auto"
) -> go.Figure:
    """Draw a bar a run, stacked by what requests waited for between two tokens.

    Args:
        rows: what `decompose.Simulation.rows` returns.
        title: the finding.
        theme: "auto", "light" or "dark".
    """
    names = [_ARMS[row["arm"]] for row in rows]
    traces = []
    for term, colour in _TERMS.items():
        values = [1e3 * row[f"tpot_{term}_s"] for row in rows]
        if not any(value > 0 for value in values):
            continue
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": term,
                "y": names,
                "x": values,
                "marker": {"color": colour},
                "hovertemplate": f"{term}: %{{x:.2f}} ms a token<extra>%{{y}}</extra>",
            }
        )
    panel = Panel(
        traces,
        axis(f"time between tokens (TPOT){small('ms, mean over requests; modelled')}"),
        axis("", autorange="reversed", ticks=""),
        title.replace(": ", ":<br>", 1),
    )
    figure = alone(panel, theme)
    legend = {"orientation": "h", "y": 1.01, "yanchor": "bottom", "x": 0, "traceorder": "normal"}
    return figure.update_layout(
        barmode="stack", showlegend=True, legend=legend, margin_t=90, margin_l=120, height=320,
        title_font_size=13,
    )  # fmt: skip
