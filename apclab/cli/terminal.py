"""What every command shares: the two consoles, a stop with a status, a progress bar with Ctrl-C."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from apclab import process


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
    file = cast(IO[str], process.Remarks()) if stderr else None
    # a remark is one line, however long: what reads a pipe has no width
    console = Console(file=file, highlight=False, soft_wrap=stderr)
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
    """Show a progress bar with the time left on stderr; the first signal only asks to stop.

    It may be Ctrl-C, SIGTERM or SIGHUP; a second one raises KeyboardInterrupt at once.

    Args:
        saying: the one line where no bar can be drawn.
    """
    console = stderr()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task("starting", total=1.0)

    said = threading.Event()

    def on_stop() -> None:
        bar.update(task, description="stopping (again: at once)")

    def on_progress(done: float, text: str) -> None:
        if not stop():
            bar.update(task, completed=done, description=text)
        # where no bar can be drawn, one line tells that the arguments were fine and time passes
        if not console.is_terminal and not said.is_set():
            said.set()
            console.print(saying)

    with process.waiting(on_stop) as stop, bar:
        yield Watch(stop, on_progress)
