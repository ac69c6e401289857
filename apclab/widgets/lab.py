"""The decode lab: controls, a page of four pictures, a sweep in the background. No arithmetic."""

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import Any

import ipywidgets as ipw
import pandas as pd
import plotly.graph_objects as go

from apclab import results
from apclab.results import Record
from apclab.specs import ModelShape
from apclab.widgets import actions
from apclab.widgets.controls import Controls, flow
from apclab.widgets.cut import cut_before, is_app
from apclab.widgets.kept import Kept
from apclab.widgets.page import Page
from apclab.widgets.runs import Runs
from apclab.widgets.settings import Settings, start
from apclab.widgets.stop import follow_stop_button
from apclab.workload import Workload

_NUMBERS = itertools.count(1)


class DecodeLab(ipw.VBox):  # type: ignore[misc]  # ipywidgets has no types
    """Measure decode attention with private and with shared blocks, and see why they differ.

    Show it as the last expression of a notebook cell. Moving a control redraws the block tables
    and their bytes, nothing is measured; Run measures the sweep in the background.

    Args:
        workload: what the sliders start from, a `Workload` or the name of a preset.
        model: short name of a model ("llama-13b") or a `ModelShape`.
        theme: "auto" (follows JupyterLab), "light" or "dark".
        settings: every other control by its name: batch, input_len, output_len, cache_hit and
            prefix_groups, which override the workload; dtype, block_size, backend, order, l2,
            cascade, x, view, blocks, points and budget_s. `Settings` says what they mean and take.

    Raises:
        TypeError: an argument that is unknown or of the wrong kind.
        ValueError: a value out of range; the message lists what is allowed.
    """

    def __init__(
        self,
        workload: Workload | str = "issue 4860",
        *,
        model: str | ModelShape = "llama-13b",
        theme: str = "auto",
        **settings: Any,
    ) -> None:
        first = Settings(start(workload), model).changed(**settings)
        self.name = f"decode lab {next(_NUMBERS)}"
        self._lock = threading.RLock()
        self._runs = Runs(self.name, first, self._lock, self._guarded(self._follow))
        self._drawn: list[Record] = []
        self._shown = first  # what the controls said when it was drawn
        self._overlay = results.frame([])
        self._page = Page(first, theme, self._lock)
        self._controls = Controls(first, self._guarded(self._moved), self._tell_error)
        self._actions = actions.Actions(
            run=self._guarded(self.run),
            cancel=self._guarded(self.cancel),
            save=self._guarded(self._save_or_offer),
            overlay=self._guarded(self._choose_overlay),
        )
        what, sliders, kernel = self._controls.rows()
        rows = (what, sliders, [*kernel, *self._actions.buttons], self._actions.lines)
        picture = flow(self._controls.by_name["blocks"], self._page.readout)
        children = [*(flow(*row) for row in rows), self._actions.notice, picture]
        self._kept = Kept()
        children += [*self._page.widgets, *self._kept.widgets]
        super().__init__(children, layout={"width": "100%"})
        self.add_class("apclab-lab")
        if cut := cut_before():
            self._actions.warn(cut.text)
            self._runs.before, self._runs.unsaved = cut.records, list(cut.records)
        self._follow()

    @property
    def settings(self) -> Settings:
        """What the controls are set to."""
        return self._controls.settings

    def change(self, **values: Any) -> None:
        """Move controls: `lab.change(batch=8, cache_hit=0.5)`; names as in the constructor.

        Raises:
            TypeError: as in the constructor.
            ValueError: as in the constructor.
        """
        with self._telling():
            settings = self.settings.changed(**values)
            self._controls.write(settings)
            self._moved(settings)

    @property
    def records(self) -> list[Record]:
        """Records in the order of measuring, one for each case of a point.

        Of the last run that measured something: one that is refused leaves them as they are.
        """
        with self._lock:
            return list(self._runs.records)

    @property
    def results(self) -> pd.DataFrame:
        """The records as a table, one row a record."""
        return results.frame(self.records)

    @property
    def status(self) -> str:
        """State of the last run: idle, running, done, cancelled or error."""
        return self._runs.job.status

    def run(self, *, block: bool = False) -> None:
        """Measure the sweep that the controls describe, point by point, in the background.

        Args:
            block: wait for the end and print a line a point. An interrupt cancels the run and
                keeps what was measured.

        Raises:
            RuntimeError: a lab of this process is measuring already.
            Exception: with `block`, what stopped the run.
        """
        follow_stop_button()
        self._runs.start(self.settings)
        if block:
            self._wait()
            if self._runs.job.exception is not None:
                raise self._runs.job.exception

    def cancel(self) -> None:
        """Stop the run; what was measured stays."""
        self._runs.job.cancel()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the run to end; False when `timeout` seconds passed before."""
        return self._runs.job.wait(timeout)

    def save(self, path: str | PathLike[str] | None = None) -> Path:
        """Append to a file what is not saved yet, also of runs before the last one.

        Args:
            path: a .jsonl file; by default the one that `results.destination` names.

        Raises:
            ValueError: there is nothing new to save.
            OSError: the file cannot be written.
        """
        with self._telling():
            file, count = self._runs.save(path)
        self._actions.list_overlays()
        self._actions.say(f"{count} records saved to {file}")
        return file

    def overlay(self, path: str | PathLike[str] | None) -> None:
        """Show saved records behind those of the last run, dotted and hollow.

        Args:
            path: a .jsonl file or a folder of them; None shows none.
        """
        with self._telling():
            records, problems = results.load(path) if path is not None else ([], [])
            self._show_overlay(records)
        if path is not None:
            lacking = int(self._overlay[self.settings.x].isna().sum())
            if lacking:
                problems.insert(0, f"{lacking} of them lack {self.settings.x}: not drawn")
            shown = f"{len(records)} records of {path} shown"
            self._actions.say("; ".join([shown, *problems]), bad=bool(problems))
        else:
            self._tell_state()

    def figure(self, *, theme: str | None = None) -> go.Figure:
        """The page as a plain figure without controls: for files, slides and plain viewers."""
        with self._lock:
            return self._page.static(theme)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        with self._lock:
            self._page.refresh()
        bundle = super()._repr_mimebundle_(**kwargs)
        self._kept.show()
        return {**bundle, "text/plain": f"{self.name}, a live panel: run the cell"}

    # callbacks: they may come from any thread, so they take the lock

    def _guarded(self, act: Callable[..., object]) -> Callable[..., None]:
        """The callback with its errors shown: nobody sees what a callback raises or prints."""

        def guarded(*args: Any) -> None:
            with suppress(Exception), self._telling(), self._lock:
                act(*args)

        return guarded

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Put what goes wrong on the status line, and pass it on."""
        try:
            yield
        except Exception as error:
            self._tell_error(error)
            raise

    def _tell_error(self, error: Exception) -> None:
        self._actions.say(f"{type(error).__name__}: {error}", bad=True)

    def _moved(self, settings: Settings) -> None:
        with self._lock:
            self._page.show_step(settings)
            measured, shown = self._runs.settings, self._shown
            # what was measured stays in view until the next run, in grey where it is of others
            same = settings.measures_like(measured) == shown.measures_like(measured)
            if not self._drawn or settings.view != shown.view or not same:
                self._draw_sweep()
            self._tell_state()
            self._keep()

    def _follow(self) -> None:
        """Show where the run is; called at most ten times a second."""
        if self._runs.records is not self._drawn:
            self._draw_sweep()
        self._actions.follow(self._runs)
        if self._runs.measured:  # what was left of a run before it is not to be had any more
            self._actions.warn("")
        if error := self._runs.job.error:
            self._actions.say(error, bad=True)
        else:
            self._tell_state()
        self._keep()

    def _tell_state(self) -> None:
        self._actions.say(self._runs.state(self.settings))

    def _keep(self) -> None:
        """Have the page photographed for the file of the notebook; never beside a timed call."""
        if self.status != "running":
            self._kept.take(self._page.words)

    def _draw_sweep(self) -> None:
        self._drawn, self._shown = self._runs.records, self.settings
        measured = self._runs.settings if self._drawn else self.settings
        self._page.show_sweep(measured, self._drawn, self._overlay, self.settings)

    def _save_or_offer(self) -> None:
        """Save; a visitor of a served page takes the records home instead."""
        if not is_app():
            self.save()
        elif records := self._runs.unsaved:
            content = "".join(json.dumps(record) + "\n" for record in records).encode()
            name = results.destination(records[0]).name
            self._actions.offer(f"download {len(records)} records", name, content)
        else:
            self._actions.say("nothing was measured yet")

    def _choose_overlay(self, chosen: str) -> None:
        match chosen:
            case actions.NO_OVERLAY:
                self.overlay(None)
            case actions.RUN_BEFORE:
                self._show_overlay(self._runs.before)
                self._tell_state()
            case path:
                self.overlay(path)

    def _show_overlay(self, records: list[Record]) -> None:
        with self._lock:
            self._overlay = results.frame(records)
            self._draw_sweep()

    def _wait(self) -> None:
        """Wait for the run and print a line a point, from this thread: others lose their cell."""
        runs, told, ended = self._runs, 0, False
        try:
            while not ended:
                ended = runs.job.wait(0.2)
                if told != (now := runs.points_done):
                    told = now
                    print(f"{self.name}: {runs.pace()}", flush=True)
        except KeyboardInterrupt:
            self.cancel()
            runs.job.wait()
        print(self._actions.status)
