"""Read rates of this machine's caches and memory."""

from collections.abc import Callable
from functools import partial
from typing import Any

from apclab.attention import plan_stream, set_threads
from apclab.bench.buffers import scratch_buffer
from apclab.clock import Replay, alone, event_time, interleave, machine, memory_available

Ladder = list[dict[str, Any]]

_ladders: dict[tuple[str, int | None], Ladder] = {}
# bytes that one timed call reads at least, so that starting it does not count
_CALL_BYTES = {"cpu": 2**27, "cuda": 2**32}


@alone("measure_ladder")
def measure_ladder(
    *,
    kind: str = "cpu",
    threads: int | None = None,
    budget_s: float = 0.2,
    cancelled: Callable[[], bool] | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> Ladder:
    """Read rates of L2, last-level cache and DRAM with all threads.

    The rates are ceilings, so each is that of the fastest call of this process: every measurement
    reads again, since the first may have met a busy machine.

    On a CPU the footprints are half of the L2s together, four times the L2s or a sixteenth of the
    last level, and twice the last level (less where memory is short); on a GPU, whose last level is
    the L2, half of it and eight times it.

    Args:
        kind: "cpu" or "cuda".
        threads: of the CPU; None leaves them.
        budget_s: seconds of timing.
        cancelled: asked between calls.
        progress: told the part done and what is going on.

    Returns:
        [{"level", "footprint_bytes", "gb_per_s", "threads"}], rates in 1e9 bytes per second.

    Raises:
        Cancelled: `cancelled` said so.
    """
    count = set_threads(threads) if kind == "cpu" else None
    rungs = _ladder(kind, count, budget_s, cancelled, progress)
    known = _ladders.get((kind, count), rungs)
    _ladders[kind, count] = [
        max(pair, key=lambda rung: rung["gb_per_s"]) for pair in zip(known, rungs, strict=True)
    ]
    return _ladders[kind, count]


def footprints(kind: str, threads: int | None) -> dict[str, int]:
    """Level -> bytes that are read to find its rate; DRAM's is the largest."""
    device = machine(kind)
    room = memory_available(kind) // 4
    if kind == "cuda":
        l2 = device["llc_bytes"]
        return {"L2": l2 // 2, "DRAM": min(8 * l2, room)}
    l2 = (threads or 1) * device["l2_bytes"]
    last = device["llc_bytes"]
    return {"L2": l2 // 2, "L3": max(2 * l2, last // 16), "DRAM": min(2 * last, room)}


def _ladder(
    kind: str,
    threads: int | None,
    budget_s: float,
    cancelled: Callable[[], bool] | None,
    progress: Callable[[float, str], None] | None,
) -> Ladder:
    sizes = footprints(kind, threads)
    buffer = scratch_buffer(max(sizes.values()), kind, cancelled)
    launches: dict[str, Callable[[], None]] = {}
    read = {}
    for level, footprint in sizes.items():
        passes = max(1, _CALL_BYTES[kind] // footprint)
        launch, read[level] = plan_stream(buffer[: footprint // 4], passes)
        launches[level] = Replay([launch]) if kind == "cuda" else launch
    told = partial(_tell, progress) if progress else None
    samples = interleave(
        {level: [launch] for level, launch in launches.items()},
        budget_s=budget_s, min_rounds=5, cancelled=cancelled, progress=told,
        timer=event_time if kind == "cuda" else None,
    )  # fmt: skip
    return [
        {
            "level": level,
            "footprint_bytes": int(sizes[level]),
            "gb_per_s": read[level] / min(times) / 1e9,
            "threads": threads,
        }
        for level, times in samples.items()
    ]


def _tell(progress: Callable[[float, str], None], part: float) -> None:
    progress(part, "reading the machine's caches and memory")
