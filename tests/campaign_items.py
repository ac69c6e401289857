"""Items for tests of the campaign: of a module, so that another process finds them."""

import os
import signal
import time

from apclab.campaign import Context
from apclab.campaign.context import DeviceLost
from tests.sample_records import sample_record


def good(context: Context) -> None:
    """Finds something."""
    context.done += 1
    context.send("row", {"pid": os.getpid()})


def measures(context: Context) -> None:
    """Sends a record, then works until it is told to stop."""
    context.send("records", [sample_record()])
    patient(context)


def raises(_context: Context) -> None:
    """Fails as code fails."""
    raise ZeroDivisionError("one line\nand another")


def exits(_context: Context) -> None:
    """Ends the process without a word."""
    os._exit(7)


def killed(context: Context) -> None:
    """Ends as the system ends a process that takes too much memory."""
    context.send("row", {"seen": True})
    os.kill(os.getpid(), signal.SIGKILL)


def hangs(_context: Context) -> None:
    """Looks at nothing."""
    time.sleep(120)


def loses(_context: Context) -> None:
    """A launch that fails for good."""
    raise DeviceLost("CUDA error: an illegal memory access was encountered")


def patient(context: Context) -> None:
    """Works until it is told to stop."""
    context.send("row", {"begun": True})
    while not context.cancelled():
        time.sleep(0.01)


def counts(context: Context) -> None:
    """Goes through five points of 0.2 s."""
    for point in context.points(range(5)):
        time.sleep(0.2)
        context.done += 1
        context.send("row", {"point": point})


def partly(context: Context) -> None:
    """Fails at one of three points."""
    for point in context.points([1, 0, 2]):
        context.attempt(f"1/{point}", lambda point=point: 1 / point)  # type: ignore[misc]
