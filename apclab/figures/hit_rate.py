"""Hit rate of a prefix cache against its capacity."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from apclab.figures.style import GREY, Panel, alone, axis, small

# Okabe and Ito's colours that no case has; the bound is no policy that one can run, so dashed grey
_POLICIES = {
    "lru": ("LRU", "#56B4E9", "solid"),
    "fifo": ("FIFO", "#CC79A7", "solid"),
    "belady": ("Belady", GREY, "dash"),
}
_POINTS = 400  # of a curve that has a step a block


def hit_rate(
    table: pd.DataFrame, curve: pd.DataFrame | None = None, *, title: str = "", theme: str = "auto"
) -> go.Figure:
    """Draw one line a policy over capacity, and what a cache without limit would hit.

    Args:
        table: what `replay.replay` returns.
        curve: the whole LRU curve, capacity_tokens and hit_rate; None draws the table's points.
        title: the finding.
        theme: "auto", "light" or "dark".
    """
    sized = table[np.isfinite(table["capacity_tokens"])]
    traces = []
    for policy, (name, colour, dash) in _POLICIES.items():
        rows, shape = sized[sized["policy"] == policy], "linear"
        if policy == "lru" and curve is not None and len(curve):
            rows, shape = _thinned(curve), "hv"
        if rows.empty:
            continue
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": rows["capacity_tokens"].tolist(),
                "y": (100 * rows["hit_rate"]).tolist(),
                "line": {"color": colour, "dash": dash, "width": 2.5, "shape": shape},
                "hovertemplate": f"{name}: %{{y:.1f}} % at %{{x:,.0f}} tokens<extra></extra>",
            }
        )
    without = table[np.isinf(table["capacity_tokens"])]["hit_rate"]
    xs = [x for trace in traces for x in (trace["x"][0], trace["x"][-1])]
    if len(without) and xs:
        most = 100 * float(without.max())
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+text",
                "name": "no limit",
                "x": [min(xs), max(xs)],
                "y": [most, most],
                "text": [f"no limit: {most:.1f} %", ""],
                "textposition": "top right",
                "textfont": {"color": GREY},
                "line": {"color": GREY, "width": 1, "dash": "dot"},
                "hoverinfo": "skip",
            }
        )
    panel = Panel(
        traces,
        axis(f"capacity of the cache{small('tokens')}", type="log"),
        axis(f"hit rate{small('% of prompt tokens')}", rangemode="tozero"),
        title[:1].upper() + title[1:].replace("; ", ";<br>", 1),
    )
    figure = alone(panel, theme)
    legend = {"orientation": "h", "y": 1.01, "yanchor": "bottom", "x": 0}
    return figure.update_layout(showlegend=True, legend=legend, margin_t=90, title_font_size=13)


def _thinned(curve: pd.DataFrame) -> pd.DataFrame:
    if len(curve) <= _POINTS:
        return curve
    tokens = curve["capacity_tokens"].to_numpy()
    wanted = np.geomspace(tokens[0], tokens[-1], _POINTS)
    chosen = np.unique(np.searchsorted(tokens, wanted).clip(0, len(tokens) - 1))
    return curve.iloc[chosen]
