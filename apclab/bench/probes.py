"""Read rates of this machine: the ladder of its caches, and a decode's addresses only loaded."""

from collections.abc import Callable
from functools import partial
from typing import Any

from apclab.attention import plan_stream, set_threads
from apclab.bench.memory import scratch_buffer
from apclab.clock import cpu, interleave, memory_available

_ladders: dict[int, list[dict[str, Any]]] = {}
# bytes that one timed call reads at least, so that starting threads does not count
_CALL_BYTES = 2**27


def measure_ladder(
    *,
    threads: int | None = None,
    budget_s: float = 0.2,
    cancelled: Callable[[], bool] | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> list[dict[str, Any]]:
    """Read rates of L2, last-level cache and DRAM with all threads.

    The rates are ceilings, so each is that of the fastest call of this process: every measurement
    reads again, since the first may have met a busy machine.

    The footprints are half of the L2s together, four times the L2s or a sixteenth of the last
    level, and twice the last level (less where memory is short).

    Returns:
        [{"level", "footprint_bytes", "gb_per_s", "threads"}], rates in 1e9 bytes per second.

    Raises:
        Cancelled: `cancelled` said so.
    """
    count = set_threads(threads)
    rungs = _ladder(count, budget_s, cancelled, progress)
    known = _ladders.get(count, rungs)
    _ladders[count] = [
        max(pair, key=lambda rung: rung["gb_per_s"]) for pair in zip(known, rungs, strict=True)
    ]
    return _ladders[count]


def _ladder(
    threads: int,
    budget_s: float,
    cancelled: Callable[[], bool] | None,
    progress: Callable[[float, str], None] | None,
) -> list[dict[str, Any]]:
    machine = cpu()
    l2 = threads * machine["l2_bytes"]
    # DRAM last: its buffer holds the others
    dram = min(2 * machine["llc_bytes"], memory_available() // 4)
    footprints = {"L2": l2 // 2, "L3": max(2 * l2, machine["llc_bytes"] // 16), "DRAM": dram}
    buffer = scratch_buffer(dram, cancelled)
    launches, sizes = {}, {}
    for level, footprint in footprints.items():
        passes = max(1, _CALL_BYTES // footprint)
        launches[level], sizes[level] = plan_stream(buffer[: footprint // 4], passes)
    told = partial(_tell, progress) if progress else None
    samples = interleave(
        {level: [launch] for level, launch in launches.items()},
        budget_s=budget_s, min_rounds=5, cancelled=cancelled, progress=told,
    )  # fmt: skip
    return [
        {
            "level": level,
            "footprint_bytes": int(footprints[level]),
            "gb_per_s": sizes[level] / min(times) / 1e9,
            "threads": threads,
        }
        for level, times in samples.items()
    ]


def _tell(progress: Callable[[float, str], None], part: float) -> None:
    progress(part, "reading the machine's caches and memory")
