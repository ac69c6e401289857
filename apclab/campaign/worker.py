"""The process that measures: takes items one by one, sends what it finds, survives what raises.

A CUDA context is lost for good after a failed launch, and a kernel may hang or the system may kill
the process: the campaign then starts another. One worker serves all items as long as all is well,
since starting one takes seconds (torch, a CUDA context, the ladder).
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection, wait
from multiprocessing.synchronize import Event
from typing import Any

from apclab.campaign.context import Context, DeviceLost, Item, Settings, reason
from apclab.clock import Cancelled, alone


def work(pipe: Connection, stop: Event, settings: Settings, items: Sequence[Item]) -> None:
    """Answer "hello", then each (item's number, its seconds, the campaign's, its first point).

    Sends ("hello", facts) or ("missing", why), and for an item ("records" | "row" | "progress",
    ...) and last ("end", (status, reason, lost, points done)). The other end closes.
    """
    # a signal may reach the whole group; the campaign says when to stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_campaign, daemon=True).start()
    # what a library prints must not end up in the campaign's table
    sys.stdout = sys.stderr

    def send(what: str, thing: Any) -> None:
        try:
            pipe.send((what, thing))
        except OSError:  # the campaign is gone: there is nobody to measure for
            os._exit(1)

    held = ExitStack()  # until the process ends
    try:
        held.enter_context(alone("apclab campaign"))
        facts = _hello(settings)
    except Exception as error:
        send("missing", str(error) if _expected(error) else reason(error))
        return
    send("hello", facts)
    while True:
        try:
            number, seconds, rest, first = pipe.recv()
        except (EOFError, OSError):
            return
        now = time.monotonic()
        context = Context(
            settings, facts["kind"], facts["backend"], facts["cases"], now + seconds, now + rest,
            first, stop.is_set, send,
        )  # fmt: skip
        status, why, lost = _run(items[number], context)
        send("end", (status, why, lost, context.first))
        if lost:
            return


def _die_with_campaign() -> None:
    """End without a word when the campaign's process ends, also killed, in whatever we are."""
    if (campaign := multiprocessing.parent_process()) is not None:
        wait([campaign.sentinel])
        os._exit(1)


def _expected(error: Exception) -> bool:
    return type(error).__name__ in ("Busy", "Unavailable")


def _hello(settings: Settings) -> dict[str, Any]:
    """What runs here; raises what keeps it from running."""
    from apclab import bench

    both = ("private", "shared")
    how = bench.How(both, backend=settings.backend, dtype=settings.dtype).resolved()
    if how.kind == "cuda":
        bench.device_answers()
    return {
        "backend": how.backend,
        "kind": how.kind,
        "cases": bench.CASES,
        "asked": f"{settings.model}, {settings.dtype}",
        **bench.describe(how.kind),
    }


def _run(item: Item, context: Context) -> tuple[str, str, bool]:
    """Status and reason of an item, and whether the device is lost."""
    try:
        item.act(context)
    except DeviceLost as error:
        return "failed", str(error), True
    except Cancelled:
        context.left_out = "stopped before its end"
    except Exception as error:
        why = reason(error)
        try:
            context.check_device(why)
        except DeviceLost as lost:
            return "failed", str(lost), True
        return "failed", why, False
    if context.asked_to_stop():
        return "stopped", "Ctrl-C", False
    why = "; ".join(filter(None, [_of(context.failures), context.left_out]))
    if not why:
        return "done", "", False
    if context.done:
        return "part", why, False
    return ("failed" if context.failures else "left out"), why, False


def _of(failures: list[str]) -> str:
    if not failures:
        return ""
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    return f"{failures[0]}{more}"
