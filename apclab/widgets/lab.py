"""The decode lab: controls, a page of four pictures, a sweep in the background. No arithmetic."""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import Any

import ipywidgets as ipw
import pandas as pd
import plotly.graph_objects as go

from apclab import jobs, results
from apclab.jobs import Job
from apclab.results import Record
from apclab.specs import ModelShape
from apclab.widgets import actions
from apclab.widgets.controls import Controls, flow
from apclab.widgets.cut import GONE, Note, cut_before, hint_in_page
from apclab.widgets.page import Page
from apclab.widgets.settings import Settings, start
from apclab.widgets.sweep import Progress, sweep
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
        self._job = Job(self.name, self._guarded(self._follow))
        self._measured = first  # what the records were measured with
        self._records: list[Record] = []
        self._before: list[Record] = []
        self._drawn = self._saved = 0  # how many of the records are
        self._view = first.view  # that is drawn
        self._overlay = results.frame([])
        self._page = Page(first, theme, self._lock)
        self._controls = Controls(first, self._guarded(self._moved))
        self._actions = actions.Actions(
            run=self._guarded(self.run),
            cancel=self._guarded(self.cancel),
            save=self._guarded(self.save),
            overlay=self._guarded(self._choose_overlay),
        )
        what, sliders, kernel = self._controls.rows()
        rows = (what, sliders, [*kernel, *self._actions.buttons], self._actions.lines)
        picture = flow(self._controls.by_name["blocks"], self._page.readout)
        children = [*(flow(*row) for row in rows), self._actions.notice, picture]
        super().__init__([*children, *self._page.widgets], layout={"width": "100%"})
        self.add_class("apclab-lab")
        self._note = Note()
        if cut := cut_before():
            self._actions.warn(cut.text)
            self._before = cut.records
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
        """Records of the last run in the order of measuring, one for each case of a point."""
        with self._lock:
            return list(self._records)

    @property
    def results(self) -> pd.DataFrame:
        """Records of the last run as a table, one row a record."""
        return results.frame(self.records)

    @property
    def status(self) -> str:
        """State of the last run: idle, running, done, cancelled or error."""
        return self._job.status

    def run(self, *, block: bool = False) -> None:
        """Measure the sweep that the controls describe, point by point, in the background.

        Args:
            block: wait for the end and print a line a point. An interrupt cancels the run and
                keeps what was measured.

        Raises:
            RuntimeError: a lab of this process is measuring already.
            Exception: with `block`, what stopped the run.
        """
        with self._lock:
            if holder := jobs.busy():
                raise RuntimeError(f"{holder} is measuring: cancel it or wait for it")
            self._before = self._records or self._before
            self._measured, self._records = self.settings, []
            self._drawn = self._saved = 0
            self._draw_sweep()
            if not self._job.start(self._steps):
                raise RuntimeError("another lab began to measure just now")
        if block:
            self._wait()
            if self._job.exception is not None:
                raise self._job.exception

    def cancel(self) -> None:
        """Stop the run; what was measured stays."""
        self._job.cancel()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the run to end; False when `timeout` seconds passed before."""
        return self._job.wait(timeout)

    def save(self, path: str | PathLike[str] | None = None) -> Path:
        """Append the records of the last run to a file; a second save adds only newer ones.

        Args:
            path: a .jsonl file; by default the one that `results.destination` names.

        Raises:
            ValueError: there is nothing new to save.
            OSError: the file cannot be written.
        """
        with self._telling(), self._lock:
            new = self._records[self._saved :]
            if not new:
                raise ValueError("nothing to save: every record is saved, or none was measured")
            file = results.destination(new[0]) if path is None else Path(path)
            results.append(file, new)
            self._saved = len(self._records)
        self._actions.list_overlays()
        self._actions.say(f"{len(new)} records saved to {file}")
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

    def figure(self, *, theme: str | None = None) -> go.Figure:
        """The page as a plain figure without controls: for files, slides and plain viewers."""
        with self._lock:
            return self._page.static(theme)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        with self._lock:
            self._page.refresh()
        bundle = super()._repr_mimebundle_(**kwargs)
        hint_in_page()
        return {**bundle, "text/plain": f"{self.name}: {GONE}"}

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
            self._actions.say(f"{type(error).__name__}: {error}", bad=True)
            raise

    def _moved(self, settings: Settings) -> None:
        with self._lock:
            self._page.show_step(settings)
            # what was measured stays in view until the next run
            if not self._records or settings.view != self._view:
                self._draw_sweep()

    def _steps(self) -> Iterator[tuple[float, Progress]]:
        """The sweep, with a note on disk for the case that the kernel dies in it."""
        self._note.begin(self.name, len(self._measured.xs()))
        try:
            yield from sweep(self._measured, self._job, self._add)
        finally:
            self._note.end()

    def _add(self, records: list[Record]) -> None:
        with self._lock:
            self._records = [*self._records, *records]
        self._note.add(records)

    def _follow(self) -> None:
        """Show where the job is; called at most ten times a second."""
        if len(self._records) != self._drawn:
            self._draw_sweep()
        self._actions.follow(self._job)
        if self._job.status == "done":
            self._actions.warn("")
        self._actions.say(self._job.error or self._state(), bad=bool(self._job.error))

    def _state(self) -> str:
        """The state of the job in words."""
        job, points = self._job, len(self._measured.xs())
        match job.status:
            case "idle":
                return f"{self.name}: press Run to measure {points} points"
            case "running":
                phase = job.latest.phase if isinstance(job.latest, Progress) else ""
                return f"{self.name} measures {points} points" + (phase and f": {phase}")
            case _:
                left = len(self._records) - self._saved
                done = f"{job.status}: {actions.points_done(job)} of {points} points measured"
                return done + (f", {left} records to save" if left else "")

    def _draw_sweep(self) -> None:
        self._drawn, self._view = len(self._records), self.settings.view
        shown = self._measured if self._records else self.settings
        self._page.show_sweep(shown, self._records, self._overlay, self.settings.view)

    def _choose_overlay(self, chosen: str) -> None:
        match chosen:
            case actions.NO_OVERLAY:
                self.overlay(None)
            case actions.RUN_BEFORE:
                self._show_overlay(self._before)
            case path:
                self.overlay(path)

    def _show_overlay(self, records: list[Record]) -> None:
        with self._lock:
            self._overlay = results.frame(records)
            self._draw_sweep()

    def _wait(self) -> None:
        """Wait for the run and print a line a point, from this thread: others lose their cell."""
        told, ended = 0, False
        try:
            while not ended:
                ended = self._job.wait(0.2)
                if told != (now := actions.points_done(self._job)):
                    told = now
                    print(f"{self.name}: {actions.pace(self._job)}", flush=True)
        except KeyboardInterrupt:
            self.cancel()
            self._job.wait()
        print(self._actions.status)
