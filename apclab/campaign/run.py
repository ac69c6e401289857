"""A campaign from the outside: the budget, the process that measures, the file that grows.

Nothing here touches a device, so that nothing of a device's failures reaches it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from apclab import process, results
from apclab.campaign.child import Missing, Worker
from apclab.campaign.context import Item, Settings
from apclab.campaign.table import roofline_rows
from apclab.results import Record

# seconds past its time after which an item that does not answer is given up
GRACE_S = 60.0
# seconds to come to an end after Ctrl-C
STOP_S = 15.0
# and for a process to start: torch, a CUDA context
START_S = 120.0
_LAST = 2.0  # for the table


@dataclass
class Campaign:
    """What was found, item by item; each part is in the file before it is here."""

    path: Path
    budget_s: float
    facts: dict[str, Any] = field(default_factory=dict)
    ends: list[Record] = field(default_factory=list)  # of kind "campaign", one an item
    records: list[Record] = field(default_factory=list)  # decode steps
    rates: list[Record] = field(default_factory=list)  # calibration
    seconds: float = 0.0
    stopped: bool = False
    error: OSError | None = None  # why the file takes no more; nothing is measured after it
    unwritten: list[Record] = field(default_factory=list)  # what the file lacks

    @property
    def wrong(self) -> bool:
        """Whether a kernel gave a wrong result."""
        rows = [row for end in self.ends for row in end["rows"]]
        return any(row.get("within") is False or row.get("error") == "WrongResult" for row in rows)


def run_campaign(
    path: Path,
    *,
    budget_s: float,
    items: Sequence[Item],
    settings: Settings,
    stop: Callable[[], bool] = lambda: False,
    tell: Callable[[str], None] = lambda _text: None,
) -> Campaign:
    """Run the items in order until the time is over.

    Args:
        path: file of records, appended to.
        budget_s: seconds for everything, the start of the process included.
        items: the most valuable first.
        settings: what they measure.
        stop: asked often; true ends the campaign and keeps what was done.
        tell: told what is going on, often.

    Raises:
        Missing: nothing can be measured on this machine.
    """
    start = time.monotonic()
    end = start + budget_s
    campaign = Campaign(path, budget_s)

    def ends() -> bool:
        return stop() or campaign.error is not None

    worker: Worker | None = None
    lost = ""
    points: dict[Callable[..., None], int] = {}  # how far an item came that comes again
    try:
        for number, item in enumerate(items):
            left = end - time.monotonic() - _LAST
            if ends():
                _close(campaign, item, "stopped", f"{_why(campaign)} before it began")
                continue
            if lost:
                _close(campaign, item, "lost", lost)
                continue
            if worker is None:
                worker, said = _start(campaign, settings, items, ends)
                if worker is None and not campaign.facts:
                    raise Missing(said)
                if worker is None:
                    lost = f"device lost: {said}"
                    _close(campaign, item, "lost", lost)
                    continue
            if campaign.facts["kind"] not in item.kinds:
                _close(campaign, item, "left out", f"needs {' or '.join(item.kinds)}")
                continue
            if left < item.least_s:
                why = f"no time: {max(left, 0.0):.0f} s left, it needs {item.least_s:.0f}"
                _close(campaign, item, "left out", why)
                continue
            shares = [other.share for other in items[number:]]
            seconds = min(left, max(item.least_s, left * item.share / sum(shares)))
            tell(f"{item.name} ({number + 1} of {len(items)}, {left:.0f} s left)")
            task = (number, seconds, left, points.get(item.act, 0))
            useless, points[item.act] = _do(campaign, worker, item, task, ends, tell)
            if useless:
                worker = None
        campaign.stopped = stop()
    except KeyboardInterrupt:  # the second one
        if worker is not None:
            worker.process.kill()
        raise
    finally:
        if worker is not None:
            worker.stop.set()
            worker.close()
        campaign.seconds = time.monotonic() - start
    _roofline(campaign)
    return campaign


def _start(
    campaign: Campaign, settings: Settings, items: Sequence[Item], stop: Callable[[], bool]
) -> tuple[Worker | None, str]:
    """A process that answered; None and the reason if it did not."""
    worker = Worker(settings, items)
    deadline = time.monotonic() + START_S
    try:
        while time.monotonic() < deadline and not stop():
            if (message := worker.receive(0.2)) is None:
                continue
            what, thing = message
            if what == "hello":
                campaign.facts = thing
                return worker, ""
            worker.close()
            return None, thing
    except EOFError:
        return None, worker.close()
    worker.close()
    return None, _why(campaign) if stop() else f"no answer within {START_S:.0f} s"


def _do(
    campaign: Campaign,
    worker: Worker,
    item: Item,
    task: tuple[int, float, float, int],
    stop: Callable[[], bool],
    tell: Callable[[str], None],
) -> tuple[bool, int]:
    """Run one item to its end: whether the process is of no more use, and the points done."""
    begin = time.monotonic()
    _, seconds, _, first = task
    rows: list[dict[str, Any]] = []
    status, reason, useless = "failed", "", True
    try:
        worker.send(task)
        while True:
            message = worker.receive(0.2)
            if stop() and not worker.stop.is_set():
                worker.stop.set()
                seconds = min(seconds, time.monotonic() - begin + STOP_S - GRACE_S)
            if time.monotonic() - begin > seconds + GRACE_S and (message or [""])[0] != "end":
                reason = (
                    _why(campaign)
                    if stop()
                    else f"not done {GRACE_S:.0f} s after its time was over"
                )
                status = "stopped" if stop() else "failed"
                worker.process.kill()
                worker.close()
                break
            match message:
                case ("end", (status, reason, useless, first)):
                    reason = _why(campaign) if status == "stopped" else reason
                    break
                case ("row", row):
                    rows.append(row)
                case ("records", records):
                    _keep(campaign, records)
                case ("progress", what):
                    tell(f"{item.name}: {what}")
    except EOFError:
        reason = worker.close()
    else:
        if useless:
            worker.close()
    _close(campaign, item, status, reason, time.monotonic() - begin, rows)
    return useless, first


def _why(campaign: Campaign) -> str:
    """Why nothing more is measured."""
    if campaign.error is not None:
        return campaign.error.strerror or str(campaign.error)
    return process.reason_to_stop()


def _keep(campaign: Campaign, records: list[Record]) -> None:
    """Append what was measured."""
    _append(campaign, records)
    campaign.records += [r for r in records if results.kind_of(r) == "decode"]
    campaign.rates += [r for r in records if results.kind_of(r) == "calibration"]


def _append(campaign: Campaign, records: list[Record]) -> None:
    """Append records; where the disk takes no more, keep them for the screen and end."""
    try:
        results.append(campaign.path, records)
    except OSError as error:
        campaign.error = campaign.error or error
        campaign.unwritten += records


def _close(
    campaign: Campaign,
    item: Item,
    status: str,
    reason: str,
    seconds: float = 0.0,
    rows: Sequence[dict[str, Any]] = (),
) -> None:
    """Append the end of an item."""
    facts = campaign.facts
    record: Record = {
        "schema": results.SCHEMA,
        "kind": "campaign",
        "apclab": facts.get("apclab", "unknown"),
        "commit": facts.get("commit"),
        "dirty": facts.get("dirty"),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": facts.get("device", {}),
        "environment": {},
        "notes": [],
        "item": item.name,
        "status": status,
        "reason": reason,
        "seconds": seconds,
        "rows": list(rows),
    }
    _append(campaign, [record])
    campaign.ends.append(record)


def _roofline(campaign: Campaign) -> None:
    """The reuse roofline of what was measured, as numbers."""
    rows = roofline_rows(campaign.records)
    item = Item("reuse roofline", lambda _context: None, 0.0, 0.0)
    status, why = ("done", "") if rows else ("left out", "no step was measured")
    _close(campaign, item, status, why, 0.0, rows)
