"""One measurement at a time on a machine: two side by side would time each other.

A lock file in the folder for temporary files, one a user. The system holds the lock, so that a
process that died holds none. Measures nothing.
"""

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

if sys.platform != "win32":
    import fcntl

_guard = threading.Lock()
_thread: int | None = None  # of this process, that measures
_what = ""


class Busy(RuntimeError):  # noqa: N818 - a state of the machine, not a mistake
    """Another measurement runs; the message says which, since when, and what to do."""


@contextmanager
def alone(what: str) -> Iterator[None]:
    """Keep every other measurement of this machine away; inside of one of this thread, do nothing.

    Works as a decorator, too.

    Args:
        what: measures, in the words that others are told.

    Raises:
        Busy: another thread or process measures. Nothing waits.
    """
    global _thread, _what
    me = threading.get_ident()
    with _guard:
        nested = _thread == me
        if not nested:
            if _thread is not None:
                raise Busy(f"{_what} is measuring in this process: cancel it or wait for it")
            handle = _take(what)
            _thread, _what = me, what
    try:
        yield
    finally:
        if not nested:
            with _guard:
                _thread, _what = None, ""
                if handle is not None:
                    os.close(handle)  # also lets go of the lock


def lock_file() -> Path:
    """Where the processes of a user meet."""
    user = os.getuid() if hasattr(os, "getuid") else "user"
    return Path(tempfile.gettempdir(), f"apclab-measuring-{user}.lock")


def _take(what: str) -> int | None:
    """The locked file; None where the platform or the folder has no locks."""
    if sys.platform == "win32":
        return None
    try:
        handle = os.open(lock_file(), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        told = os.read(handle, 200).decode("utf-8", "replace").strip()
        os.close(handle)
        now = datetime.now().strftime("%H:%M:%S")
        raise Busy(
            f"not started at {now}: another measurement runs on this machine"
            + (f" since {told}" if told else "")
            + "; wait for it or stop it"
        ) from None
    except OSError:  # some network file systems have no locks
        os.close(handle)
        return None
    with suppress(OSError):  # a full disk: the lock holds all the same
        os.ftruncate(handle, 0)
        since = datetime.now().strftime("%H:%M:%S")
        os.write(handle, f"{since} (pid {os.getpid()}, {what})"[:190].encode())
    return handle
