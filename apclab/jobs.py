"""One background job: start, progress, cancel, throttled publishing. No widgets, no measuring."""

import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

Status = Literal["idle", "running", "done", "cancelled", "error"]
Steps = Callable[[], Iterator[tuple[float, Any]]]

# one measuring job per process: two threads inside numba's workqueue layer abort the process
_measuring = threading.Lock()
_holder: "Job | None" = None
_refused: "set[Job]" = set()  # that found the process busy, and hear when it is free


def busy() -> str:
    """Name of the job that is running in this process, "" when none is."""
    return _holder.name if _holder else ""


def cancel() -> str:
    """Ask the job that is running in this process to stop; its name, "" when none is."""
    job = _holder
    if job is None:
        return ""
    job.cancel()
    return job.name


class Job:
    """A piece of long work in one worker thread, one per process at a time.

    The worker itself publishes, between two steps or inside `report` and `cancelled`, so that
    drawing never runs beside a timed call. A value that came too soon after the last one is
    held back and goes out with the next chance; the last value always arrives.

    Attributes:
        name: what other panels are told when they find the process busy.
        status: idle, running, done, cancelled or error.
        error: what went wrong, in words, "" when nothing did.
        exception: the exception behind `error`, for callers that want to raise it.
        progress: fraction done, 0 to 1.
        latest: the last value reported.
    """

    def __init__(
        self, name: str, on_change: Callable[[], None] | None = None, *, hz: float = 10.0
    ) -> None:
        """Prepare a job.

        Args:
            name: shown to whoever finds the process busy.
            on_change: called without arguments when something changed, at most `hz` times a
                second plus once at each start and end. From the worker thread, mostly.
            hz: publishing rate, per second.
        """
        if not hz > 0:
            raise ValueError(f"hz must be positive, got {hz}")
        self.name = name
        self.status: Status = "idle"
        self.error = ""
        self.exception: Exception | None = None
        self.progress = 0.0
        self.latest: Any = None
        self._on_change = on_change
        self._period = 1.0 / hz
        self._cancel = threading.Event()
        self._ended = threading.Event()
        self._ended.set()
        self._worker: int | None = None
        self._pending = False
        self._published = 0.0
        self._since, self._at = 0.0, 0.0  # when the step that runs began, and at what progress
        self._last: tuple[float, float] | None = None  # seconds and progress of the last step

    def start(self, steps: Steps) -> bool:
        """Run `steps()` in a worker thread; it yields (fraction done, value) after each step.

        Returns:
            False when this or another job of the process is running (`busy()` names it); its end
            is published by this one, too.
        """
        global _holder
        if not _measuring.acquire(blocking=False):
            _refused.add(self)
            return False
        _holder = self
        _refused.discard(self)
        self._cancel.clear()
        self._ended.clear()
        self.error, self.exception, self.latest = "", None, None
        self.progress, self.status = 0.0, "running"
        self._since, self._at, self._last = time.monotonic(), 0.0, None
        self._publish()
        # ipykernel finds the cell a message belongs to through context variables
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(self._work, steps), daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no threads here (Pyodide)
            self._work(steps)
        return True

    def cancel(self) -> None:
        """Ask the running job to stop; it ends at its next look at `cancelled`."""
        if self.status == "running":
            self._cancel.set()

    def cancelled(self) -> bool:
        """Tell whether to stop; long steps ask this often, also a chance to publish."""
        if threading.get_ident() == self._worker:
            self._publish_if_due()
        return self._cancel.is_set()

    def report(self, fraction: float, value: Any = None) -> None:
        """Set progress from inside a step."""
        self.progress = min(max(float(fraction), 0.0), 1.0)
        self.latest = value
        self._pending = True
        self._publish_if_due()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the job ended; False when `timeout` seconds passed before."""
        return self._ended.wait(timeout)

    @property
    def remaining_s(self) -> float | None:
        """Seconds left if the steps to come take as long as the last whole one, None before it.

        The first step does not count: in it kernels are compiled and the machine is looked at,
        once. Nor does the progress inside a step: what is not timing takes its time and hardly
        moves it.
        """
        if self.status != "running" or self._last is None:
            return None
        seconds, part = self._last
        steps = (1.0 - self._at) / part
        spent = min(time.monotonic() - self._since, seconds)
        return max(steps * seconds - spent, 0.0)

    def _work(self, steps: Steps) -> None:
        global _holder
        self._worker = threading.get_ident()
        end: Status = "cancelled"  # what an interrupt leaves behind when there are no threads
        try:
            for fraction, value in steps():
                self._step_done(fraction)
                self.report(fraction, value)
                if self._cancel.is_set():
                    break
            end = "cancelled" if self._cancel.is_set() and self.progress < 1.0 else "done"
        except Exception as exception:
            end = "error"
            self._fail(exception)
        finally:
            self._worker = None
            self.status = end
            _holder = None
            _measuring.release()
            self._publish()
            self._ended.set()
            while _refused:
                _refused.pop()._publish()

    def _step_done(self, fraction: float) -> None:
        now = time.monotonic()
        if self._at > 0.0 and fraction > self._at:
            self._last = (now - self._since, fraction - self._at)
        self._since, self._at = now, fraction

    def _publish_if_due(self) -> None:
        if self._pending and time.monotonic() - self._published >= self._period:
            self._publish()

    def _publish(self) -> None:
        self._pending = False
        self._published = time.monotonic()
        if self._on_change is None:
            return
        try:
            self._on_change()
        except Exception as exception:  # a picture that fails must not cost a measurement
            self._fail(exception)

    def _fail(self, exception: Exception) -> None:
        self.exception = exception
        self.error = f"{type(exception).__name__}: {exception}"
