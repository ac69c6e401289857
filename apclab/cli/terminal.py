"""What every command shares: the two consoles, a stop with a status, a progress bar with Ctrl-C."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


class CommandError(Exception):
    """End the command with one line on stderr and this exit status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def stdout() -> Console:
    """For tables and sentences; wide enough for a whole table where no terminal sets a width."""
    return _console(stderr=False)


def stderr() -> Console:
    """For progress and remarks, so that stdout can be piped."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False, soft_wrap=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 120
    return console


@dataclass(frozen=True)
class Watch:
    """A running measurement, seen from its terminal."""

    cancelled: Callable[[], bool]
    progress: Callable[[float, str], None]  # fraction done 0..1, what is being done


@contextmanager
def watch(
    saying: str = "measuring; Ctrl-C stops and keeps what was measured",
) -> Iterator[Watch]:
    """Show a progress bar with the time left on stderr; the first Ctrl-C only asks to stop.

    A second Ctrl-C raises KeyboardInterrupt at once.

    Args:
        saying: the one line where no bar can be drawn.
    """
    stop = threading.Event()
    console = stderr()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task("starting", total=1.0)

    said = threading.Event()

    def on_progress(done: float, text: str) -> None:
        if not stop.is_set():
            bar.update(task, completed=done, description=text)
        # where no bar can be drawn, one line tells that the arguments were fine and time passes
        if not console.is_terminal and not said.is_set():
            said.set()
            console.print(saying)

    def on_interrupt(_signal: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        bar.update(task, description="stopping (again: at once)")

    # only the main thread may set a handler; elsewhere Ctrl-C keeps its usual meaning
    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, on_interrupt) if in_main else None
    try:
        with bar:
            yield Watch(stop.is_set, on_progress)
    finally:
        if in_main:
            signal.signal(signal.SIGINT, before)
