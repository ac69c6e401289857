"""The page of a lab: four panels in one figure with a fixed number of traces, drawn in place."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from apclab.figures.points import lines
from apclab.figures.roofline import roofline_panel
from apclab.figures.style import Ladder, Panel, faded, layout
from apclab.figures.sweep import bandwidth_panel, time_panel
from apclab.figures.titles import (
    bandwidth_title,
    roofline_title,
    settings_text,
    time_title,
    told_place,
)

HEIGHT = 820
MARGIN = {"l": 64, "r": 16, "t": 56, "b": 64}
# panel -> row, column; the order of `lab_page` and of the traces
PLACES = {"blocks": (1, 1), "time": (1, 2), "bandwidth": (2, 1), "roofline": (2, 2)}


def lab_page(panels: Mapping[str, Panel], *, theme: str = "auto") -> go.Figure:
    """Lay four panels out as a page.

    Args:
        panels: one for each of "blocks", "time", "bandwidth" and "roofline".
        theme: "auto", "light" or "dark".
    """
    page = make_subplots(
        rows=2,
        cols=2,
        subplot_titles=[panel.title for panel in (panels[name] for name in PLACES)],
        horizontal_spacing=0.19,  # of 550 pixels, too, for the words of the right axis
        vertical_spacing=0.24,
    )
    page.update_layout(layout(theme, height=HEIGHT, autosize=True, margin=MARGIN))
    for number, (name, (row, column)) in enumerate(PLACES.items()):
        page.add_traces(panels[name].traces, rows=row, cols=column)
        left = page.layout[_axis("xaxis", number)].domain[0]
        title = {"x": left, "xanchor": "left", "align": "left", "font": {"size": 14}}
        page.layout.annotations[number].update(title)
        page.layout[_axis("xaxis", number)].update(panels[name].xaxis)
        page.layout[_axis("yaxis", number)].update(panels[name].yaxis)
    # below the axis of its panel
    left, right = page.layout.xaxis.domain
    page.data[0].colorbar.update({"x": (left + right) / 2, "y": 0.525, "len": right - left})
    return page


def redraw(page: go.Figure, panels: Mapping[str, Panel], drawn: Mapping[str, Panel]) -> None:
    """Bring the named panels of a page up to date, in place and in one message.

    Args:
        page: as `lab_page` made it; a FigureWidget sends what changed to its views.
        panels: new ones.
        drawn: those that the page shows now; only differences are touched, which is what
            keeps a slider quick.
    """
    with page.batch_update():
        for number, name in enumerate(PLACES):
            if name not in panels:
                continue
            new, old = panels[name], drawn[name]
            mine = [trace for trace in page.data if (trace.xaxis or "x") == _axis("x", number)]
            for trace, now, before in zip(mine, new.traces, old.traces, strict=True):
                _update(trace, now, before)
            _update(page.layout[_axis("xaxis", number)], new.xaxis, old.xaxis)
            _update(page.layout[_axis("yaxis", number)], new.yaxis, old.yaxis)
            if new.title != old.title:
                page.layout.annotations[number].text = new.title


def _update(part: Any, now: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    if changed := {key: value for key, value in now.items() if value != before[key]}:
        part.update(changed)


def _axis(letter: str, number: int) -> str:
    return letter + ("" if number == 0 else str(number + 1))


def sweep_panels(
    frame: pd.DataFrame,
    x: str,
    view: str,
    *,
    overlay: pd.DataFrame,
    published: pd.DataFrame | None,
    ladder: Ladder,
    xs: Sequence[float],
    num_layers: int,
    settings: dict[str, Any],
    how: str = "",
    others: bool = False,
) -> dict[str, Panel]:
    """The three panels that show measured records: time, bandwidth and roofline.

    Args:
        frame: records of one sweep, as far as it came.
        x: what the sweep varies.
        view: "layer", "token" or "output".
        overlay: records of other sweeps.
        published: cases of others, for the roofline.
        ladder: the machine's measured read rates.
        xs: where the sweep puts points.
        num_layers: layers of the model.
        settings: workload fields and block_size: what was held fixed, and which point was asked.
        how: a second line of what was held fixed: model, dtype, device.
        others: the records belong to other settings than those that the reader sees: they turn
            grey, and no title claims anything.
    """
    measured, saved = lines(frame, x, view, num_layers), lines(overlay, x, view, num_layers)
    # rates and reuse are those of one layer in the middle step, whatever the view
    rates, saved_rates = lines(frame, x), lines(overlay, x)
    told = None if others else told_place(rates, x, settings[x])
    given = "<br>".join(filter(None, [settings_text(settings, x), how]))
    title = time_title(told_place(measured, x, settings[x]))
    if len(frame) and not measured:
        title = "first and last step are missing:<br>press Run to measure them"
    if others:
        title = "measured with other settings:<br>press Run for these"
    panels = {
        "time": time_panel(measured, x, view, saved=saved, xs=xs, title=title, given=given),
        "bandwidth": bandwidth_panel(
            rates,
            ladder,
            x,
            saved=saved_rates,
            xs=xs,
            title=bandwidth_title(told),
        ),
        "roofline": roofline_panel(
            rates, published, ladder, saved=saved_rates, title=roofline_title(told)
        ),
    }
    return {name: faded(panel) for name, panel in panels.items()} if others else panels
