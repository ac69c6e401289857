"""What a process owes its surroundings: signals, streams and files. Knows no command.

SIGINT, SIGTERM and SIGHUP become one clean stop; a stream that is closed or full costs no work; a
file that is replaced is whole at any time.
"""

import errno
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
# what `signal.getsignal` returns
_Handler = Callable[[int, FrameType | None], Any] | int | None
# of this process, since `run` began
_heard: list[int] = []


class Stop:
    """A wish to stop, as seen by what works: asked once, it ends cleanly; again, at once."""

    def __init__(self, on_stop: Callable[[], None]) -> None:
        self._on_stop = on_stop
        self._times = 0

    def __call__(self) -> bool:
        """Whether somebody asked."""
        return self._times > 0

    def hear(self, number: int, frame: FrameType | None) -> None:
        """The handler of the signals."""
        _heard.append(number)
        self._times += 1
        if self._times == 2:
            raise KeyboardInterrupt
        if self._times > 2:
            _leave(number, frame)
        self._on_stop()


@contextmanager
def waiting(on_stop: Callable[[], None] = lambda: None) -> Iterator[Stop]:
    """While the body runs, a signal is a wish to stop; a second raises KeyboardInterrupt.

    Args:
        on_stop: called at the first signal, in its handler.
    """
    stop = Stop(on_stop)
    # only the main thread may set a handler; elsewhere signals keep their usual meaning
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = _listen(stop.hear)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _listen(handler: Callable[[int, FrameType | None], None]) -> dict[int, _Handler]:
    """Set the handler; what the caller ignores (nohup, a background job) stays ignored."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    heard: dict[int, _Handler] = {
        n: was for n, was in before.items() if was not in (signal.SIG_IGN, None)
    }
    for number in heard:
        signal.signal(number, handler)
    return heard


def _leave(number: int, _frame: FrameType | None) -> None:
    """End now: there is nothing to keep, and an exception may get lost in an import."""
    with suppress(OSError):
        os.write(2, b"apclab: stopped\n")
    os._exit(128 + number)


@contextmanager
def shielded() -> Iterator[None]:
    """What is started in the body hears no signal from its first moment on."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def exit_status() -> int:
    """128 + the number of the first signal that was heard; 0 without one."""
    return 128 + _heard[0] if _heard else 0


def reason_to_stop() -> str:
    """What stopped the process, in a user's words."""
    first = _heard[0] if _heard else signal.SIGINT
    return "Ctrl-C" if first == signal.SIGINT else signal.Signals(first).name


def run(command: Callable[[], int]) -> int:
    """Run a command as the process's whole work and return its exit status.

    Args:
        command: returns a status; imports what it needs itself, so that no signal meets an import
            that is not listened to.
    """
    _listen(_leave)
    _open_closed_streams()
    status = command()
    # what waits in a buffer, while an error can still be told
    try:
        sys.stdout.flush()
    except OSError as error:
        return tell_output_error(error)
    return status


def begin() -> None:
    """Forget the signals of a command before this one."""
    _heard.clear()


def _open_closed_streams() -> None:
    """Give a closed stdout or stderr a place, before a file gets its number."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            # opened for the wrong direction, so that using it is an error, as of a closed one
            mode = os.O_WRONLY if name == "stdin" else os.O_RDONLY
            number = os.open(os.devnull, mode)
            setattr(sys, name, open(number, "r" if name == "stdin" else "w", closefd=False))  # noqa: SIM115 - for good


def tell_output_error(error: OSError) -> int:
    """Say that stdout takes no more, and return the status: 141 where its reader has gone."""
    silence(sys.stdout)
    if isinstance(error, BrokenPipeError):
        return 141
    say(f"apclab: stdout: cannot write: {error.strerror or error}")
    return 3 if error.errno == errno.ENOSPC else 2


def say(text: str) -> None:
    """Print one line on stderr; if that is closed or full, the work is worth more."""
    try:
        print(one_line(text), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        silence(sys.stderr)


def silence(stream: TextIO) -> None:
    """Lead a stream that takes no more to nowhere, so that the end of the process is quiet."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def one_line(text: str) -> str:
    """A text with line ends and other signs that no terminal shows written as escapes."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


class Remarks:
    """Stderr for those who draw on it: what cannot be written there is left out."""

    def __getattr__(self, name: str) -> object:
        return getattr(sys.stderr, name)

    def write(self, text: str) -> int:
        """Write what can be written."""
        try:
            return sys.stderr.write(text)
        except (OSError, ValueError):
            silence(sys.stderr)
            return len(text)

    def flush(self) -> None:
        """Flush what can be flushed."""
        try:
            sys.stderr.flush()
        except (OSError, ValueError):
            silence(sys.stderr)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    """Write a text file anew: beside it, then renamed, so that a full disk destroys nothing.

    Args:
        path: the file, made when missing; a device or a pipe is written to as it is.

    Raises:
        OSError: it cannot be written; what was there is still there.
    """
    target = Path(os.path.realpath(path))
    mode = target.stat().st_mode if target.exists() else None
    if mode is not None and not stat.S_ISREG(mode):
        with target.open("w", encoding="utf-8") as file:
            yield file
        return
    beside = target.with_name(f".{target.name[:200]}.{os.getpid()}")
    try:
        with waiting():
            with beside.open("w", encoding="utf-8") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if mode is not None:
                beside.chmod(stat.S_IMODE(mode))
            beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
