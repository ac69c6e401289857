"""The runs of a panel: what is measured, what of it is shown, what is not saved yet. No widgets."""

import threading
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path

from apclab import bench, jobs, results
from apclab.clock import alone
from apclab.jobs import Job
from apclab.results import Record
from apclab.widgets.cut import Note
from apclab.widgets.settings import Settings
from apclab.widgets.sweep import Progress, sweep


class Runs:
    """Sweeps in the background, one after the other.

    The records of a run stay until the next one has measured its first point: a run that is
    refused leaves them where they are. What was not saved is kept in any case.

    Args:
        name: of the panel.
        settings: that nothing was measured with yet.
        lock: held while records change.
        on_change: called when the job or its records changed.

    Attributes:
        job: the background job.
        records: of the last run that measured something, in the order of measuring.
        before: of the run before it.
        unsaved: of all runs.
        settings: that `records` were measured with.
    """

    def __init__(
        self,
        name: str,
        settings: Settings,
        lock: threading.RLock,
        on_change: Callable[[], None],
    ) -> None:
        self.name, self.settings = name, settings
        self.job = Job(name, on_change)
        self.records: list[Record] = []
        self.before: list[Record] = []
        self.unsaved: list[Record] = []
        self._lock = lock
        self._asked = settings  # of the run that was started last
        self._heard = 0  # points of it with records
        self._note = Note()

    def start(self, settings: Settings) -> None:
        """Measure in the background.

        Raises:
            RuntimeError: a panel of this process is measuring already.
        """
        with self._lock:
            before = self._asked, self._heard
            self._asked, self._heard = settings, 0
            if not self.job.start(self._steps):
                self._asked, self._heard = before
                holder = jobs.busy() or "another lab"  # that has ended since
                raise RuntimeError(f"{holder} is measuring: cancel it or wait for it")

    def save(self, path: str | PathLike[str] | None = None) -> tuple[Path, int]:
        """Append to a file what is not saved yet; the file and the number of records.

        Raises:
            ValueError: there is nothing new to save.
            OSError: the file cannot be written; nothing is lost.
        """
        with self._lock:
            if not (new := self.unsaved):
                raise ValueError("nothing to save: every record is saved, or none was measured")
            file = results.destination(new[0]) if path is None else Path(path)
            results.append(file, new)
            self.unsaved = []
            return file, len(new)

    @property
    def measured(self) -> bool:
        """Whether the run that was started last has measured anything."""
        return self._heard > 0

    @property
    def points_done(self) -> int:
        """Whole points of the run that was started last."""
        latest = self.job.latest
        return latest.done if isinstance(latest, Progress) else 0

    def pace(self) -> str:
        """Points done and time left: "5/9, 12 s left"; "" before a job has reported."""
        if not isinstance(self.job.latest, Progress):
            return ""
        seconds = self.job.remaining_s
        left = "" if seconds is None else f", {seconds:.0f} s left"
        return f"{self.points_done}/{self.job.latest.points}{left}"

    def state(self, settings: Settings) -> str:
        """What runs or ran, in words; what could run if the settings are others by now."""
        job, points = self.job, len(self._asked.xs())
        if job.status == "running":
            phase = job.latest.phase if isinstance(job.latest, Progress) else ""
            return f"{self.name} measures {points} points" + (phase and f": {phase}")
        to_save = self._to_save()
        if job.status == "idle" or not settings.measures_like(self._asked):
            return f"{self.name}: press Run to measure {len(settings.xs())} points" + to_save
        cut = self._heard - self.points_done
        short = f", {cut} cut short" if cut > 0 else ""
        return f"{job.status}: {self.points_done} of {points} points measured{short}{to_save}"

    def _to_save(self) -> str:
        count, own = len(self.unsaved), len(self.records) if self.measured else 0
        if not count:
            return ""
        if not own:
            return f", {count} records of earlier runs to save"
        return f", {count} records to save" + (f" ({count - own} of earlier runs)" * (count > own))

    def _steps(self) -> Iterator[tuple[float, Progress]]:
        """The sweep, with a note on disk for the case that the kernel dies in it."""
        with alone(self.name):
            self._note.begin(self.name, len(self._asked.xs()))
            try:
                yield from sweep(self._asked, self.job, self._add)
            finally:
                self._note.end()
                bench.release()  # gigabytes that only the points of a sweep share

    def _add(self, records: list[Record]) -> None:
        with self._lock:
            if not self._heard:
                self.before = self.records or self.before
                self.records, self.settings = [], self._asked
            self._heard += 1
            self.records = [*self.records, *records]
            self.unsaved = [*self.unsaved, *records]
        self._note.add(records)
