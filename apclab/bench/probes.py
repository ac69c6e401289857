"""Read rates of this machine's caches and memory, and how much empties its caches: measured."""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from apclab.attention import plan_stream, set_threads
from apclab.bench.buffers import scratch_buffer
from apclab.bench.memory import at_hand
from apclab.clock import CpuShare, Replay, alone, event_time, interleave, machine

# bytes that one timed call reads at least, so that starting it does not count
_CALL_BYTES = {"cpu": 2**27, "cuda": 2**32}
# the footprint grows by this until it is read at a steady rate: within 7 % of the one before
_GROWTH, _STEADY = 1.5, 0.93
# growth ends at so many last-level caches, wherever the rate is then
_MOST_CACHES = 16
# a read that should find nothing in the caches is not faster than DRAM by more than this
_COLD = 1.25
# a burst is quiet if the process got so much of its cores; with a busy neighbour it gets about half
_QUIET = 0.85
# of a busy machine no rate is believed: there so many last-level caches are taken to empty them
_BUSY_CACHES = 4
_ROUNDS = 7
# looks for DRAM's footprint of a process whose machine is always busy
_MOST_TRIES = 3
# bursts of a footprint that are kept: DRAM of a shared host gave 33 GB/s, and 57 minutes later
_LATEST = 5


class Burst(NamedTuple):
    """Some calls in a row: their rate, and how much of its cores the process got."""

    gb_per_s: float  # of the median call; where it is busy, of the fastest tenth
    share: float  # see `CpuShare`; 1 on a GPU

    @property
    def quiet(self) -> bool:
        """Whether no other work took part of the machine."""
        return self.share >= _QUIET


def believed(bursts: Collection[Burst]) -> Burst:
    """What several bursts of one footprint say: the median of the quiet ones.

    That is neither the luckiest nor one that met a neighbour. Where none was quiet, the fastest.
    """
    quiet = sorted((burst for burst in bursts if burst.quiet), key=lambda b: b.gb_per_s)
    return quiet[len(quiet) // 2] if quiet else max(bursts)


@dataclass(frozen=True)
class Ladder:
    """What this machine reads per second from each level, with all threads.

    Attributes:
        rungs: {"level", "footprint_bytes", "gb_per_s", "threads"} of L2, the last level and DRAM,
            rates in 1e9 bytes per second, medians of a quiet burst. DRAM is missing where no
            footprint was read at a steady rate: one that still falls is partly a cache's.
        curve: [footprint in bytes, GB/s] of all that was read, small to large.
        cold_bytes: reading so much leaves nothing of before in the caches; proven by a read after
            it that is not faster than DRAM. None where no such size was found.
        why: what is missing or doubtful, and why; "" if nothing.
        share: least part of its cores that the process got for a rung.
    """

    rungs: list[dict[str, Any]]
    curve: list[list[float]]
    cold_bytes: int | None
    why: str = ""
    share: float = 1.0

    @property
    def dram_gb_per_s(self) -> float | None:
        """The read rate of DRAM; None where it was not found."""
        return next((r["gb_per_s"] for r in self.rungs if r["level"] == "DRAM"), None)


@dataclass
class _Known:
    """What this process has found of a device: footprints by level, all bursts by footprint."""

    footprints: dict[str, int]
    bursts: dict[int, deque[Burst]] = field(default_factory=dict)
    cold_bytes: int | None = None
    why: str = ""
    room: int = 0  # that it had
    quiet: bool = True  # while it looked
    tries: int = 0

    def worth_another_look(self, room: int) -> bool:
        """Whether looking again may find more: there is more room, or the neighbours may rest."""
        more_room = self.cold_bytes is None and room > _GROWTH * self.room
        return more_room or (not self.quiet and self.tries < _MOST_TRIES)

    def add(self, read: Mapping[int, Burst]) -> None:
        """Keep what was read."""
        for size, burst in read.items():
            self.bursts.setdefault(size, deque(maxlen=_LATEST)).append(burst)


_known: dict[tuple[str, int | None], _Known] = {}


@alone("measure_ladder")
def measure_ladder(
    *,
    kind: str = "cpu",
    threads: int | None = None,
    room: int | None = None,
    budget_s: float = 0.2,
    cancelled: Callable[[], bool] | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> Ladder:
    """Read rates of L2, last-level cache and DRAM with all threads.

    DRAM's footprint is found, not assumed: from the last level's size on it grows by half until the
    rate stays. That is done once a process, and again if the machine was busy; later calls read the
    three footprints again. A ceiling is the median of a quiet burst of calls.

    Args:
        kind: "cpu" or "cuda".
        threads: of the CPU; None leaves them.
        room: bytes that it may take; None means a part of what is at hand.
        budget_s: seconds of timing.
        cancelled: asked between calls.
        progress: told the part done and what is going on.

    Raises:
        Cancelled: `cancelled` said so.
    """
    count = set_threads(threads) if kind == "cpu" else None
    room = at_hand(kind) if room is None else room
    read = partial(_read, kind=kind, cancelled=cancelled, budget_s=budget_s)
    known = _known.get((kind, count))
    if known is None or known.worth_another_look(room):
        tries = known.tries if known else 0
        known = _find(kind, count, room, read)
        known.tries = tries + 1
        _known[kind, count] = known
    told = partial(_tell, progress) if progress else None
    sizes = {level: size for level, size in known.footprints.items() if size <= room}
    known.add(read(set(sizes.values()), progress=told))
    found = {level: believed(known.bursts[size]) for level, size in sizes.items()}
    rungs = [
        {"level": level, "footprint_bytes": sizes[level], "gb_per_s": burst.gb_per_s,
         "threads": count}
        for level, burst in found.items()
    ]  # fmt: skip
    curve = [[size, believed(bursts).gb_per_s] for size, bursts in sorted(known.bursts.items())]
    share = min((burst.share for burst in found.values()), default=1.0)
    why = known.why
    if share < _QUIET:
        why = (
            f"{why + '; ' if why else ''}this machine was busy while its read rates were "
            f"measured (the process got {share:.0%} of its cores), so they are too low"
        )
    return Ladder(rungs, curve, known.cold_bytes, why, share)


def _find(
    kind: str, threads: int | None, room: int, read: Callable[..., dict[int, Burst]]
) -> _Known:
    """Grow the footprint until the rate stays, and prove that reading it empties the caches."""
    device = machine(kind)
    last = device["llc_bytes"]
    l2 = device["llc_bytes"] if kind == "cuda" else (threads or 1) * device["l2_bytes"]
    levels = {"L2": l2 // 2} if kind == "cuda" else {"L2": l2 // 2, "L3": max(2 * l2, last // 16)}
    known = _Known({level: size for level, size in levels.items() if size <= room}, room=room)
    size, small = last, min(last // 2, *known.footprints.values(), last)
    while (larger := int(_GROWTH * size) // 4096 * 4096) + small <= min(room, _MOST_CACHES * last):
        bursts = read({size, larger})
        known.add(bursts)
        known.quiet &= bursts[larger].quiet
        steady = bursts[larger].gb_per_s >= _STEADY * bursts[size].gb_per_s
        if not known.quiet and size >= _BUSY_CACHES * last:
            known.footprints["DRAM"] = larger
            return replace(known, cold_bytes=larger)
        if known.quiet and steady:
            known.footprints["DRAM"] = larger
            if _rate_after(kind, larger, small) <= _COLD * bursts[larger].gb_per_s:
                return replace(known, cold_bytes=larger)
        size = larger
    if "DRAM" in known.footprints:
        return replace(known, why=f"a read after {size / 1e6:.0f} MB was still served by caches")
    words = f"at {size / 1e6:.0f} MB the rate still fell" if known.bursts else "no room to look"
    return replace(known, why=f"no DRAM rate: {words}, {room / 1e6:.0f} MB may be read")


def _read(
    sizes: Collection[int],
    *,
    kind: str,
    budget_s: float,
    cancelled: Callable[[], bool] | None,
    progress: Callable[[float], None] | None = None,
) -> dict[int, Burst]:
    """Read some footprints, interleaved."""
    if not sizes:
        return {}
    buffer = scratch_buffer(max(sizes), kind, cancelled)
    launches: dict[str, list[Callable[[], None]]] = {}
    amount = {}
    for size in sorted(sizes):
        launch, amount[size] = plan_stream(buffer[: size // 4], max(1, _CALL_BYTES[kind] // size))
        launches[str(size)] = [Replay([launch]) if kind == "cuda" else launch]
    with CpuShare(set_threads() if kind == "cpu" else 1) as cores:
        samples = interleave(
            launches, budget_s=budget_s, min_rounds=_ROUNDS, cancelled=cancelled,
            progress=progress, timer=event_time if kind == "cuda" else None,
        )  # fmt: skip
    share = cores.value if kind == "cpu" and cores.value is not None else 1.0
    made = {}
    for size in amount:
        seconds = float(np.percentile(samples[str(size)], 50 if share >= _QUIET else 10))
        made[size] = Burst(amount[size] / seconds / 1e9, share)
    return made


def _rate_after(kind: str, scratch: int, size: int) -> float:
    """GB/s of one read of a small footprint after a scratch buffer was read."""
    buffer = scratch_buffer(scratch + size, kind)
    empty, _ = plan_stream(buffer[: scratch // 4], 1)
    launch, amount = plan_stream(buffer[scratch // 4 :], 1)
    timed: Callable[[], None] = Replay([launch]) if kind == "cuda" else launch
    samples = interleave(
        {"after": [timed]}, budget_s=0.0, min_rounds=_ROUNDS, between=lambda _launch: empty(),
        timer=event_time if kind == "cuda" else None,
    )  # fmt: skip
    return float(amount / np.median(samples["after"]) / 1e9)


def _tell(progress: Callable[[float, str], None], part: float) -> None:
    progress(part, "reading the machine's caches and memory")
