"""The pictures of a decode lab and the sentences around them, drawn in place. No arithmetic."""

import html
import threading
from collections.abc import Sequence

import ipywidgets as ipw
import pandas as pd
import plotly.graph_objects as go

from apclab import bench, figures, results
from apclab.figures import Panel
from apclab.results import Record
from apclab.widgets.settings import WORKLOAD_FIELDS, Settings

# pictures take the text colour of JupyterLab's theme, and mid-grey where there is none
_STYLE = """<style>
.apclab-lab .cartesianlayer text, .apclab-lab .infolayer text
{ fill: var(--jp-content-font-color1, #808080) !important; }
</style>"""


class Page:
    """One live figure of four panels, a line above it and a sentence below.

    Args:
        settings: of the first picture.
        theme: "auto", "light" or "dark".
        lock: held while the figure is changed.

    Attributes:
        figure: the FigureWidget, made once: a second one would cost 5 MB and never be freed.
        readout: hit, readers and bytes of the step that the controls describe.
        finding: what the last sweep found.
    """

    def __init__(self, settings: Settings, theme: str, lock: threading.RLock) -> None:
        self._published = results.published()
        self._theme, self._lock = theme, lock
        self.readout, self.finding = ipw.HTML(), ipw.HTML()
        self._panels = self._step_panel(settings)
        self._panels |= self._sweep_panels(settings, [], results.frame([]), settings)
        # the layout must come with the constructor: what a view gets first is fixed there
        self._twin = figures.lab_page(self._panels, theme=theme)
        self.figure = go.FigureWidget(self._twin)
        for trace, live in zip(self._twin.data, self.figure.data, strict=True):
            trace.uid = live.uid  # by which a view names a trace
        # the page follows its window, which plotly does inside a VBox only
        self.figure._config = {**self.figure._config, "responsive": True, "displaylogo": False}
        self.figure.observe(self._fit, "_view_count")
        style = ipw.HTML(_STYLE if theme == "auto" else "", layout={"display": "none"})
        self.widgets = [style, self.figure, self.finding]

    def show_step(self, settings: Settings) -> None:
        """Draw the block tables of the step that the controls describe; nothing is measured."""
        self._draw(self._step_panel(settings))

    def show_sweep(
        self, measured: Settings, records: Sequence[Record], overlay: pd.DataFrame, asked: Settings
    ) -> None:
        """Draw measured records, in grey where they do not belong to what the controls say.

        Args:
            measured: what the records were measured with.
            records: of the sweep, as far as it came.
            overlay: saved records, as `results.frame` makes them.
            asked: what the controls say.
        """
        self._draw(self._sweep_panels(measured, records, overlay, asked))

    @property
    def words(self) -> str:
        """What the page found, and with which settings, without mark-up."""
        return self._words

    def refresh(self) -> None:
        """Hand the present figure to views that open later, after a reload of the page too.

        A nested FigureWidget does not do so by itself, and what it would hand over is not whole:
        it drops properties that a view has reported back.
        """
        present = self._twin.to_dict()
        self.figure._widget_data = present["data"]
        self.figure._widget_layout = present["layout"]

    def static(self, theme: str | None = None) -> go.Figure:
        """The same page as a plain figure, in its own theme unless another is given."""
        return figures.lab_page(self._panels, theme=theme or self._theme)

    def _fit(self, _: object) -> None:
        """Give a new view the width of its place: it was drawn before it had one."""
        with self._lock, self.figure.batch_update():
            self.figure.layout.meta = self.figure._view_count

    def _draw(self, panels: dict[str, Panel]) -> None:
        for page in (self.figure, self._twin):
            figures.redraw(page, panels, self._panels)
        self._panels |= panels
        self.refresh()

    def _step_panel(self, settings: Settings) -> dict[str, Panel]:
        step = bench.decode_step(settings.workload, block_size=settings.block_size)
        tokens = step.hit_blocks * step.block_size
        self.readout.value = (
            f"hit asked {settings.workload.cache_hit:.2f}, realised <b>{step.realised_hit:.2f}</b> "
            f"({tokens:,.0f} of {settings.workload.input_len:,} tokens of a prompt, in "
            f"{step.hit_blocks:.3g} of {step.prompt_blocks} full blocks) &emsp; "
            + html.escape(figures.step_text(step.shared, settings.token_bytes()))
        )
        return {"blocks": figures.block_panel(step.shared, settings.blocks)}

    def _sweep_panels(
        self, measured: Settings, records: Sequence[Record], overlay: pd.DataFrame, asked: Settings
    ) -> dict[str, Panel]:
        told = [record for record in records if record["step"] == "mid"]
        others = bool(told) and not asked.measures_like(measured)
        how = ", ".join([measured.words(), *sorted({r["device"]["name"] for r in told})])
        workload = {name: getattr(measured.workload, name) for name in WORKLOAD_FIELDS}
        given = workload | {"block_size": measured.block_size}
        found = ""
        if others:
            with_what = f"{figures.settings_text(given, measured.x)}, {how}"
            found = f"in grey: measured with {with_what}; press Run to measure what is set now"
        elif told:
            found = results.finding(told, {measured.x: given[measured.x]})
        self.finding.value = f"<b>{html.escape(found)}</b>" if found else ""
        self._words = found or "nothing was measured yet"
        return figures.sweep_panels(
            results.frame(records),
            measured.x,
            asked.view,
            overlay=overlay,
            published=self._published,
            ladder=results.ladder(records),
            xs=measured.xs(),
            num_layers=measured.shape.num_layers,
            settings=given,
            how=how,
            others=others,
        )
