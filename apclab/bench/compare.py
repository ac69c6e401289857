"""One decode step measured in every case: made by the pool, checked in float64, then timed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from apclab.arguments import instance
from apclab.attention import Comparison
from apclab.bench.bound import Bound, ready, warm_up
from apclab.bench.calibrate import advice_of
from apclab.bench.how import How
from apclab.bench.memory import asked_needs, check_room
from apclab.bench.probes import Ladder
from apclab.bench.record import make_records
from apclab.bench.step import Step, blocks_of, decode_step, tables_step
from apclab.blocks import BlockTable
from apclab.clock import Cancelled, alone, interleave
from apclab.results import Record, unsettled
from apclab.specs import ModelShape
from apclab.specs import model as model_named
from apclab.workload import Workload


@alone("compare_decode")
def compare_decode(
    workload: Workload,
    model: str | ModelShape = "llama-13b",
    *,
    cases: tuple[str, ...] = ("private", "shared"),
    backend: str = "auto",
    dtype: str = "bfloat16",
    block_size: int = 16,
    layout: str = "auto",
    order: str = "auto",
    l2: str = "cold",
    step: str = "mid",
    budget_s: float = 1.0,
    memory_limit: int | None = None,
    threads: int | None = None,
    pairs: int | None = 64,
    cancelled: Callable[[], bool] | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> list[Record]:
    """Measure one decode step of a workload with private and with shared blocks.

    The cases private and shared run the same machine code on the same pool, interleaved; only the
    values in the block tables differ. Cascade has the tables of shared and the kernel that reads
    what requests share once for all of them; whether that pays is advice beside the measurement,
    in its record's `advice` where rates of this machine were calibrated before. Every case is
    compared with the float64 reference before it is timed.

    Args:
        workload: the requests.
        model: a name of `data/models.csv`, or a shape.
        cases: some of "private", "shared", "cascade".
        backend: "cpu", "triton", "reference", or "auto": the fastest that runs here.
        dtype: of the KV cache and the query: "float32", "float16", "bfloat16".
        block_size: tokens per block.
        layout: "NHD", "HND" or "auto".
        order: "request", "head" or "auto".
        l2: "cold": a call finds nothing of its own in the caches; "warm": all that fits.
        step: which decode step, "first", "mid" or "last".
        budget_s: seconds of timing; at least five rounds are measured in any case, and up to three
            budgets are spent while the noise is wider than what is between two cases.
        memory_limit: bytes that all of it may take; None means 80 % of what is at hand.
        threads: of the CPU kernel; None means all.
        pairs: (request, head) pairs compared with the reference; None means all.
        cancelled: asked several times a second; true stops.
        progress: told the part done, 0 to 1, and what is going on.

    Returns:
        One record a case, in the order of `cases`.

    Raises:
        Busy: another measurement runs on this machine.
        Cancelled: `cancelled` said so; its `records` hold what was timed until then.
        OutOfMemory: it does not fit; the message holds the arithmetic.
        TypeError, ValueError: an argument is wrong.
        Unavailable: this machine or version cannot do it.
        WrongResult: a kernel is wrong.
    """
    instance("workload", workload, Workload, "a Workload")
    how = How(
        cases, backend, dtype, layout, order, l2, budget_s, memory_limit, threads, pairs,
        cancelled, progress,
    ).resolved()  # fmt: skip
    shape = model_named(model)
    batch, seq_len = workload.batch, workload.seq_len(step)
    needs = asked_needs(
        blocks_of(batch, seq_len, block_size), batch, seq_len, shape, how, block_size
    )
    # before anything is compiled, and once more with what that leaves
    check_room(needs, how)
    warm_up(shape, how)
    check_room(needs, how)
    return _measure(decode_step(workload, block_size=block_size, step=step), shape, how)


@alone("compare_tables")
def compare_tables(
    tables: BlockTable, model: str | ModelShape = "llama-13b", **how: Any
) -> list[Record]:
    """Measure the decode step of real block tables: as they are, and de-shared.

    Args:
        tables: block tables and lengths of one step.
        model: a name of `data/models.csv`, or a shape.
        how: the other keywords of `compare_decode`, but block_size and step.

    Returns:
        As `compare_decode`, and it raises the same.
    """
    instance("tables", tables, BlockTable, "a BlockTable")
    return _measure(tables_step(tables), model_named(model), How(**how).resolved())


def _measure(step: Step, model: ModelShape, how: How) -> list[Record]:
    bound, ladder = ready(step, model, how)
    checks = {}
    for case in how.cases:
        how.look()
        how.tell(0.0, f"checking {case} against float64")
        checks[case] = bound.check(case)
    how.tell(0.05, "timing")
    more: list[bool] = []  # rounds beyond the budget

    def noisy(samples: Mapping[str, Sequence[float]]) -> bool:
        if found := unsettled(samples):
            more.append(found)
        return found

    try:
        with bound.cores:
            samples = interleave(
                bound.timed(), **bound.timing(), unsettled=noisy,
                progress=lambda part: how.tell(0.05 + 0.95 * part, "timing"),
            )  # fmt: skip
    except Cancelled as stop:
        if stop.samples and all(stop.samples.values()):
            bound.memory.notes.append("stopped before its time")
            stop.records = _records(bound, ladder, checks, stop.samples)
        raise
    if more:
        bound.memory.notes.append(
            f"rounds beyond the budget: {len(more)}, as the noise was wider than the gap"
        )
    return _records(bound, ladder, checks, samples)


def _records(
    bound: Bound, ladder: Ladder, checks: dict[str, Comparison], samples: dict[str, list[float]]
) -> list[Record]:
    records = make_records(bound, ladder, checks, samples)
    for record in records:
        if record["case"] == "cascade" and (advice := advice_of(bound, record)):
            record["advice"] = advice
    return records
