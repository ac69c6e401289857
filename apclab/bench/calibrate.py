"""Rates of the kernel itself on this machine, from block tables that leave one thing to limit it.

The same kernel reads blocks that are all its own (DRAM), the same for all requests (cache), and one
block again and again (execution on a CPU; the nearest cache on a GPU, whose loads bypass L1). What
that means for another step is predicted elsewhere: no model of a kernel lives here.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from apclab.arguments import INT32_MOST, whole_number
from apclab.attention import Comparison, Rates, advise
from apclab.bench.bound import Bound, bind, ladder_of, warm_up
from apclab.bench.buffers import key_value_pool
from apclab.bench.how import How
from apclab.bench.memory import asked_needs, check_room, plan_memory, room, step_needs
from apclab.bench.probes import Ladder
from apclab.bench.product import Product, plan_product
from apclab.bench.record import bytes_of, model_of, stamp, timed
from apclab.bench.step import Step, blocks_of, tables_step
from apclab.blocks import BlockTable
from apclab.clock import Cancelled, Replay, alone, interleave
from apclab.results import PROBES, Record, load, measured_dir
from apclab.specs import DTYPE_BYTES, ModelShape
from apclab.specs import model as model_named

# the length of the step: 19 blocks of 16, as issue 4860 has
SEQ_LEN = 304
# K and V of the batch: far more than a fixed cost takes, little enough to be filled in a second
_BATCH_BYTES = {"cpu": 400 * 10**6, "cuda": 1600 * 10**6}
_BATCHES = 1024  # requests at most

# fields of a record's model that its rates depend on
_SHAPE = ("num_heads", "num_kv_heads", "head_size", "dtype", "block_size", "layout")

_made: list[Record] = []  # calibrations of this process


class Probe(NamedTuple):
    """A step that is timed to find one rate."""

    bound: Bound
    case: str  # of the bound step
    check: Comparison


@alone("calibrate")
def calibrate(
    model: str | ModelShape = "llama-13b",
    *,
    backend: str = "auto",
    dtype: str = "bfloat16",
    layout: str = "auto",
    order: str = "auto",
    block_size: int = 16,
    batch: int | None = None,
    threads: int | None = None,
    budget_s: float = 1.0,
    cancelled: Callable[[], bool] | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> list[Record]:
    """Measure what this machine lets the kernel do; each probe is checked in float64 first.

    The probes of the kernel are interleaved; the product of matrices is timed after them.

    Args:
        model: whose heads: a name of `data/models.csv`, or a shape.
        backend: "cpu", "triton", "reference" or "auto".
        dtype: of the KV cache: "float32", "float16", "bfloat16".
        layout: "NHD", "HND" or "auto".
        order: "request", "head" or "auto".
        block_size: tokens per block.
        batch: requests; None takes as many as have 400 MB of K and V (1.6 GB on a GPU).
        threads: of the CPU kernel; None means all. The product of matrices takes what its library
            takes.
        budget_s: seconds of timing; at least five rounds are measured in any case.
        cancelled: asked several times a second; true stops.
        progress: told the part done, 0 to 1, and what is going on.

    Returns:
        One record of kind "calibration" a probe, in the order of `results.PROBES`: `distinct` and
        `shared` are cold, the others warm.

    Raises:
        Cancelled: `cancelled` said so; its `records` hold what was timed until then.
        OutOfMemory, TypeError, ValueError, Unavailable, WrongResult: as `compare_decode`.
    """
    how = How(
        ("private", "shared"), backend, dtype, layout, order, "cold", budget_s, None, threads, 64,
        cancelled, progress,
    ).resolved()  # fmt: skip
    shape = model_named(model)
    block_size = whole_number("block_size", block_size, 1)
    batch = None if batch is None else whole_number("batch", batch, 1, INT32_MOST)
    return _measure(shape, how, block_size, batch)


def rates_of(records: list[Record]) -> Rates:
    """The rates of one calibration's records; bytes and operations per second, seconds."""
    value = {record["probe"]: record["value"] for record in records}
    return Rates(
        product_flop_per_s=value["product"], dram_bytes_per_s=value["distinct"],
        cache_bytes_per_s=value["shared"], run_s=value["launch"], launch_s=value["launch"],
    )  # fmt: skip


def advice_of(bound: Bound, measured: Record) -> dict[str, Any] | None:
    """What calibrated rates of this machine say of the prefix-aware kernel: a record's `advice`.

    Args:
        bound: the step.
        measured: the record of a case of it.

    Returns:
        {"kernel": "paged" or "cascade", "saved_us", "basis"}; None where no calibration of this
        device, backend, shape, dtype, layout and order is known, be it of this process or saved.
    """
    probes: dict[str, Record] = {}
    for record in sorted([*_saved(), *_made], key=lambda record: str(record["created"])):
        if _what(record) == _what(measured):
            probes[record["probe"]] = record  # the latest
    if probes.keys() != PROBES.keys():
        return None
    table = bound.tables[measured["case"]]
    advice = advise(
        bound.query, bound.keys[0], table.block_tables, table.seq_lens,
        layout=bound.how.layout, rates=rates_of(list(probes.values())),
    )  # fmt: skip
    day = min(record["created"] for record in probes.values())[:10]
    return {
        "kernel": advice.kernel,
        "saved_us": advice.saved_s * 1e6,
        "basis": f"rates calibrated on {day}",
    }


@cache
def _saved() -> list[Record]:
    """Calibrations that are kept in the folder of measurements; read once a process."""
    folder = measured_dir()
    return load(folder, kind="calibration")[0] if folder.is_dir() else []


def _what(record: Record) -> tuple[Any, ...]:
    """What rates depend on."""
    shape = tuple(record["model"][name] for name in _SHAPE)
    return (record["device"]["name"], record["backend"], record["order"], record["threads"], *shape)


def _measure(model: ModelShape, how: How, block_size: int, batch: int | None) -> list[Record]:
    warm_up(model, how)
    batch = _batch(model, how) if batch is None else batch
    # before its tables are made
    check_room(
        asked_needs(blocks_of(batch, SEQ_LEN, block_size), batch, SEQ_LEN, model, how, block_size),
        how,
    )
    steps = _steps(batch, block_size)
    needs = {name: step_needs(step, model, how) for name, (step, _, _) in steps.items()}
    # the largest first: all probes read one pool, which must not grow under those that are bound
    largest = max(needs.values(), key=lambda need: need.layer)
    ladder = ladder_of(how, check_room(largest, how))
    plans = {
        name: plan_memory(needs[name], replace(how, l2=l2), ladder.cold_bytes)
        for name, (_, _, l2) in steps.items()
    }
    elements = max(plan.pool_bytes for plan in plans.values()) // 2 // DTYPE_BYTES[how.dtype]
    how.tell(0.0, "filling the KV pool")
    key_value_pool(elements, how.dtype, how.kind, how.cancelled)
    probes: dict[str, Probe] = {}
    for name, (step, case, l2) in steps.items():
        how.tell(0.0, f"checking probe {name} against float64")
        bound = bind(step, model, replace(how, cases=(case,), l2=l2, progress=None), plans[name])
        probes[name] = Probe(bound, case, bound.check(case))
    product = plan_product(how)
    how.tell(0.1, "timing")
    try:
        samples = _timed(probes, product, how)
    except Cancelled as stop:
        done = {name: times for name, times in stop.samples.items() if times}
        stop.records = _records(probes, product, ladder, how, done)
        for record in stop.records:
            record["notes"].append("stopped before its time")
        raise
    records = _records(probes, product, ladder, how, samples)
    _made.extend(records)
    return records


def _batch(model: ModelShape, how: How) -> int:
    of_request = SEQ_LEN * model.token_bytes(how.dtype)
    # a third of the room for one layer: the rest is for what makes calls cold, and the check
    wanted = min(_BATCH_BYTES[how.kind], room(how) // 3) // of_request
    return max(1, min(wanted, _BATCHES))


def _steps(batch: int, block_size: int) -> dict[str, tuple[Step, str, str]]:
    """Probe -> its step, the case of the step that is meant, and the state of the caches."""
    columns = -(-SEQ_LEN // block_size)
    lens = np.full(batch, SEQ_LEN, np.int32)
    ids = np.tile(np.arange(1, columns + 1, dtype=np.int32), (batch, 1))
    alike = tables_step(BlockTable(ids, lens, block_size))
    one = tables_step(BlockTable(np.ones_like(ids), lens, block_size))
    least = tables_step(BlockTable(np.ones((1, 1), np.int32), np.ones(1, np.int32), block_size))
    return {
        "distinct": (alike, "private", "cold"),
        "shared": (alike, "shared", "cold"),
        "one_block": (one, "shared", "warm"),
        "launch": (least, "shared", "warm"),
    }


def _timed(probes: Mapping[str, Probe], product: Product, how: How) -> dict[str, list[float]]:
    """Seconds of each probe and of the product; raises Cancelled with what was timed."""
    calls: dict[str, list[Callable[[], None]]] = {
        name: probe.bound.timed()[probe.case] for name, probe in probes.items()
    }
    # each probe has the caches that it asks for
    before = {
        id(call): probe.bound.between
        for name, probe in probes.items()
        for call in calls[name]
        if probe.bound.between is not None
    }

    def between(call: Callable[[], None]) -> None:
        if (prepare := before.get(id(call))) is not None:
            prepare(call)

    samples = interleave(
        calls, budget_s=0.8 * how.budget_s, between=between, cancelled=how.cancelled,
        timer=how.timer, progress=lambda part: how.tell(0.1 + 0.8 * part, "timing"),
    )  # fmt: skip
    # not between the others: on a CPU the library's threads spin for some 30 ms after a call
    act = Replay([product.act]) if how.kind == "cuda" else product.act
    try:
        return samples | interleave(
            {"product": [act]}, budget_s=0.2 * how.budget_s, cancelled=how.cancelled,
            timer=how.timer,
        )  # fmt: skip
    except Cancelled as stop:
        stop.samples |= samples
        raise


def _records(
    probes: Mapping[str, Probe],
    product: Product,
    ladder: Ladder,
    how: How,
    samples: Mapping[str, list[float]],
) -> list[Record]:
    first = probes["distinct"].bound
    common = stamp(how, ladder) | {
        "kind": "calibration",
        "model": model_of(first),
        "backend": how.backend,
        "order": how.order,
        "threads": first.threads,
    }
    made = [_of_step(name, probe) for name, probe in probes.items()] + [product.fields()]
    records = []
    for fields in made:
        if fields["probe"] not in samples:
            continue
        times = timed(samples[fields["probe"]])
        unit, seconds = PROBES[fields["probe"]], times["p50_us"] / 1e6
        amount = {"bytes/s": fields["logical_bytes"], "flop/s": fields["flops"], "s": seconds**2}
        value = {"value": amount[unit] / seconds, "unit": unit}
        notes = {"notes": [*common["notes"], *fields["notes"]]}
        records.append(common | fields | notes | times | value)
    return records


def _of_step(name: str, probe: Probe) -> Record:
    bound, lens = probe.bound, probe.bound.tables[probe.case].seq_lens
    return {
        "probe": name,
        "asked": {"batch": len(lens), "seq_len": int(lens.max())},
        "l2": bound.memory.l2,
        **bytes_of(bound, probe.case),
        "flops": 0,
        **probe.check._asdict(),
        "notes": list(bound.memory.notes),
    }
