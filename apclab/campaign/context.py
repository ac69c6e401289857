"""What an item of a campaign sees: its settings, the time left, and where results go."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from apclab import bench
from apclab.clock import Cancelled
from apclab.results import Record
from apclab.workload import ISSUE_4860, Workload

Point = TypeVar("Point")


@dataclass(frozen=True)
class Settings:
    """What a campaign measures; only tests make it small."""

    backend: str = "auto"
    model: str = "llama-13b"
    dtype: str = "bfloat16"
    workload: Workload = ISSUE_4860
    most_bytes: int = 9 * 10**9  # K and V of one layer; larger points of the grid are left out


class DeviceLost(RuntimeError):  # noqa: N818 - says what happened
    """The GPU answers no more in this process."""


class Item(NamedTuple):
    """One part of a campaign."""

    name: str
    act: Callable[["Context"], None]  # of a module, so that another process finds it
    share: float  # of the time that is left, against the shares of the items after it
    least_s: float  # with less it is not begun
    kinds: tuple[str, ...] = ("cpu", "cuda")


@dataclass
class Context:
    """One item at work. Times are `time.monotonic`."""

    settings: Settings
    kind: str  # "cpu" or "cuda"
    backend: str
    cases: tuple[str, ...]  # those that this version has
    end: float  # no new point is begun after it
    last: float  # what is at work is stopped then: the campaign is over
    first: int  # the point to begin with: those before were done earlier
    asked_to_stop: Callable[[], bool]
    send: Callable[[str, Any], None]  # what, and the thing itself
    failures: list[str] = field(default_factory=list)
    left_out: str = ""
    done: int = 0

    def left(self) -> float:
        """Seconds that this item still has."""
        return self.end - time.monotonic()

    def cancelled(self) -> bool:
        """Whether to stop now: somebody asked, or the campaign is over."""
        return self.asked_to_stop() or time.monotonic() > self.last

    def tell(self, _part: float, what: str) -> None:
        """Progress in words."""
        self.send("progress", what)

    def points(self, points: Sequence[Point]) -> Iterator[Point]:
        """Go through points while there is time for one that takes as long as the longest."""
        longest = 0.0
        while self.first < len(points):
            if self.cancelled() or self.left() < longest:
                rest = len(points) - self.first
                self.left_out = f"no time for {rest} of {len(points)} points"
                return
            start = time.monotonic()
            yield points[self.first]
            self.first += 1
            longest = max(longest, time.monotonic() - start)

    def attempt(self, what: str, act: Callable[[], Any]) -> Any:
        """Do one thing; if it fails, record why and go on.

        Records are sent on when the thing returns them.

        Returns:
            What the thing returned, None if it failed.

        Raises:
            DeviceLost: after the failure the GPU does not answer.
        """
        self.tell(0.0, what)
        try:
            found = act()
        except Cancelled as stop:
            if stop.records:
                self.send("records", stop.records)
            self.left_out = f"stopped at: {what}"
            return None
        except Exception as error:
            why = reason(error)
            self.failures.append(f"{what}: {why}")
            self.send("row", {"point": what, "failed": why, "error": type(error).__name__})
            self.check_device(why)
            if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__:
                bench.release()
            return None
        self.done += 1
        if _records(found):
            self.send("records", found)
        return found

    def check_device(self, why: str) -> None:
        """Raise if the GPU does not answer: after a failed launch its context is of no more use.

        Raises:
            DeviceLost: it does not; says what came before.
        """
        if self.kind != "cuda":
            return
        try:
            bench.device_answers()
        except Exception as error:
            raise DeviceLost(f"{why}; after it: {reason(error)}") from error


def _records(found: Any) -> bool:
    return isinstance(found, list) and bool(found) and all("schema" in item for item in found)


def reason(error: BaseException) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:300]


def one(records: Sequence[Record] | None, case: str) -> Record | None:
    """The record of a case; None if there is none."""
    return next((record for record in records or [] if record.get("case") == case), None)
