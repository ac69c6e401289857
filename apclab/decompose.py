"""A workload with prefix caching off and on, and how much of the gain each mechanism explains.

Three runs of the step engine: caching off; on, but every step priced as if each request read its
own copy of what it shares; on. From the first to the second the engine gains (prefill that is not
computed, room for more requests), from the second to the third the kernel (bytes that the cache
serves). No formula of a kernel lives here.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from apclab import specs
from apclab.arguments import (
    INT32_MOST,
    function_or_none,
    instance,
    not_negative,
    positive,
    shown,
    some_of,
    whole_number,
)
from apclab.blocks import BlockPool, BlockPoolV0
from apclab.blocks.keys import KeyKind
from apclab.clock import memory_available, memory_words
from apclab.engine import EngineConfig, Request, Run, run
from apclab.engine.intake import workload_requests
from apclab.memory_model import StepRates, device_rates, roofline_step
from apclab.workload import VOCABULARY, Workload

ARMS = ("off", "engine", "on")

# What a simulation's own bookkeeping takes at most, in bytes, as `tracemalloc` counts it (held by a
# test): a block of a pool (96 to 120), a token of a request with its keys (up to 40), a step. The
# pool of each arm stays with its run.
BLOCK_BYTES, TOKEN_BYTES, STEP_BYTES = 120, 40, 400
# of the memory at hand: the rest is for others
_MEMORY_PART = 0.8


@dataclass(frozen=True, eq=False)
class Simulation:
    """Runs of one workload.

    Attributes:
        runs: "off", "engine" (caching on, kernel without reuse) and "on", as far as they came.
            Their steps have "logical_bytes" and "distinct_bytes" of KV, all layers, too.
        rates: what the steps were priced with.
        num_blocks: of each run's pool, as asked; those that a workload can never reach are not
            made.
    """

    runs: dict[str, Run]
    rates: StepRates
    num_blocks: int

    def rows(self) -> list[dict[str, Any]]:
        """A row an arm: its summary, and the mean terms of TPOT in seconds a token."""
        return [
            {"arm": arm, **found.summary(), **mean_terms(found)} for arm, found in self.runs.items()
        ]

    def finding(self) -> str:
        """One sentence on TPOT, "" where arms are missing or no request has two tokens."""
        if set(self.runs) != set(ARMS):
            return ""
        off, engine, on = (self.runs[arm].summary()["tpot_s_mean"] * 1e3 for arm in ARMS)
        if not (off > 0 and on > 0):
            return ""
        if abs(off - on) < 0.05:
            return f"prefix caching leaves mean TPOT at {off:.1f} ms."
        return (
            f"with prefix caching mean TPOT {'falls' if on < off else 'rises'} from {off:.1f} to "
            f"{on:.1f} ms: {_less(off - engine)} by what the engine saves, {_less(engine - on)} by "
            f"shared blocks that the cache serves."
        )


def _less(gain_ms: float) -> str:
    return f"{abs(gain_ms):.1f} ms {'less' if gain_ms >= 0 else 'more'}"


def mean_terms(found: Run) -> dict[str, float]:
    """Seconds a generated token that requests waited for each kind of step, over all requests."""
    terms = found.tpot_terms()
    more = terms["tokens"] > 0
    names = ("decode", "prefill", "mixed", "preemption")
    if not more.any():
        return dict.fromkeys((f"tpot_{name}_s" for name in names), float("nan"))
    return {
        f"tpot_{name}_s": float((terms[f"{name}_s"][more] / terms["tokens"][more]).mean())
        for name in names
    }


def simulate(
    requests: Workload | Callable[[], Iterable[Request]],
    model: str | specs.ModelShape = "llama-13b",
    device: str | specs.Device | StepRates = "A100-SXM4-80GB",
    *,
    config: EngineConfig | None = None,
    dtype: str = "float16",
    block_size: int = 16,
    num_blocks: int | None = None,
    rate_per_s: float = float("inf"),
    samples: int = 1,
    arms: Iterable[str] = ARMS,
    keys: KeyKind = "exact",
    fixed_s: float = 0.0,
    cancelled: Callable[[], bool] | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> Simulation:
    """Run requests through the step engine with prefix caching off and on.

    Args:
        requests: a workload, or a function that makes the requests anew for each run, such as one
            that reads a trace.
        model: a name of `data/models.csv`, or a shape with its weights.
        device: a name of `data/devices.csv`, a row of it, or rates.
        config: of the engine; None takes vLLM's defaults.
        dtype: of weights and KV cache.
        block_size: tokens per block.
        num_blocks: of the pool; None: so many that nothing is ever preempted or evicted (for a
            workload only).
        rate_per_s: mean arrivals a second of a workload (Poisson); inf: all at the start.
        samples: answers to each prompt of a workload.
        arms: some of ARMS.
        keys: of the pool, see `blocks.BlockPool`.
        fixed_s: seconds of a step besides its work; for a device of the table.
        cancelled: asked now and then; true stops and keeps finished runs.
        progress: told the part done, 0 to 1, and what is going on.

    Raises:
        MemoryError: the bookkeeping would not fit; the message holds the arithmetic.
        Stuck, TypeError, ValueError: as `engine.run`, and for an argument that is wrong.
    """
    if not isinstance(requests, Workload) and not callable(requests):
        instance("requests", requests, Workload, "a Workload or a function that makes requests")
    config = EngineConfig() if config is None else config
    instance("config", config, EngineConfig, "an EngineConfig or None")
    shape = specs.model(model)
    block_size = whole_number("block_size", block_size, 1, INT32_MOST)
    if isinstance(device, StepRates):
        rates = device
        if not_negative("fixed_s", fixed_s):
            raise ValueError(f"fixed_s is for a device of the table, rates have it; got {fixed_s}")
    else:
        rates = device_rates(specs.device(device), fixed_s=fixed_s)
    asked = some_of("arms", arms, ARMS)
    chosen = [arm for arm in ARMS if arm in asked]
    make, most, intake_bytes = _intake(requests, rate_per_s, samples, block_size)
    num_blocks = (
        most if num_blocks is None else whole_number("num_blocks", num_blocks, 2, INT32_MOST)
    )
    if num_blocks is None:
        raise ValueError("num_blocks must be given where requests are no workload")
    # blocks that the workload never reaches cost memory and change nothing: they are only counted
    spare = 0 if most is None else max(0, num_blocks - most)
    for name, value in (("cancelled", cancelled), ("progress", progress)):
        function_or_none(name, value)
    costs = [
        roofline_step(shape, rates, dtype=dtype, block_size=block_size, reuse=arm == "on")
        for arm in chosen
    ]
    _check_memory(num_blocks - spare, intake_bytes, len(chosen))
    runs: dict[str, Run] = {}
    for number, (arm, cost) in enumerate(zip(chosen, costs, strict=True)):
        pool = _pool(config, num_blocks - spare, block_size, arm != "off", keys)
        if isinstance(requests, Workload) and arm != "off":
            prime(pool, requests)
        told = None
        if progress:
            told = _part(progress, number, len(chosen), arm)
        found = run(make(), config, pool, cost, cancelled=cancelled, progress=told)
        if found.stopped:
            break
        found.steps["free_blocks"] += spare
        token_bytes = shape.token_bytes(dtype) * shape.num_layers
        found.steps["logical_bytes"] = found.steps["context_tokens"] * token_bytes
        found.steps["distinct_bytes"] = found.steps["distinct_blocks"] * block_size * token_bytes
        runs[arm] = found
    return Simulation(runs, rates, num_blocks)


def _intake(
    requests: Workload | Callable[[], Iterable[Request]],
    rate_per_s: float,
    samples: int,
    block_size: int,
) -> tuple[Callable[[], Iterable[Request]], int | None, int]:
    """What makes the requests; as far as known, blocks that are always enough, and bytes."""
    if not isinstance(requests, Workload):
        if (rate_per_s, samples) != (float("inf"), 1):
            raise ValueError("rate_per_s and samples are for a workload, requests are none")
        return requests, None, 0
    workload = requests
    rate_per_s = positive("rate_per_s", rate_per_s, endless=True)
    samples = whole_number("samples", samples, 1, VOCABULARY)
    longest = workload.input_len + workload.output_len
    count = workload.batch * samples
    most = 1 + (count + workload.prefix_groups) * -(-longest // block_size)
    most += most // 50  # what the watermark of v0 keeps free
    return (
        lambda: workload_requests(workload, rate_per_s=rate_per_s, samples=samples),
        most,
        count * longest * TOKEN_BYTES + workload.output_len * STEP_BYTES,
    )


def _check_memory(num_blocks: int, intake_bytes: int, arms: int) -> None:
    """MemoryError, with the arithmetic, where the bookkeeping of all runs would not fit."""
    pools, requests = arms * num_blocks * BLOCK_BYTES, arms * intake_bytes
    at_hand = _MEMORY_PART * memory_available()
    if pools + requests > at_hand:
        raise MemoryError(
            f"{num_blocks:,} blocks x {BLOCK_BYTES} bytes x {arms} runs = {pools / 1e9:,.2f} GB "
            f"for the bookkeeping of the pools, {requests / 1e9:,.2f} GB for that of the requests, "
            f"and {at_hand / 1e9:.2f} GB may be used ({_MEMORY_PART:.0%} of what is "
            f"{memory_words()}); take fewer blocks, fewer requests or shorter ones"
        )


def _part(
    progress: Callable[[float, str], None], number: int, count: int, arm: str
) -> Callable[[float, str], None]:
    return lambda part, text: progress((number + part) / count, f"caching {arm}: {text}")


def _pool(
    config: EngineConfig, num_blocks: int, block_size: int, caching: bool, keys: KeyKind
) -> BlockPool | BlockPoolV0:
    if config.policy == "v0":
        return BlockPoolV0(num_blocks, block_size=block_size, enable_prefix_caching=caching)
    return BlockPool(
        num_blocks, block_size=block_size, enable_prefix_caching=caching, keys=keys,
        drop_last_block=config.drop_last_block,
    )  # fmt: skip


def prime(pool: BlockPool | BlockPoolV0, workload: Workload) -> None:
    """Leave a workload's prefixes in the cache, as requests before it would have, untimed."""
    for number, prompt in enumerate(workload.primers()):
        name = ("primer", number)
        pool.add_request(name, prompt)
        pool.admit(name) if isinstance(pool, BlockPool) else pool.admit(name, 0)
        if isinstance(pool, BlockPoolV0):
            pool.mark_computed(name)
        pool.free(name)


# what a point of a sweep may set, beside the fields of a workload
ENGINE_FIELDS = (
    *("policy", "queue", "max_num_batched_tokens", "max_num_seqs", "scheduler_reserve_full_isl"),
    "drop_last_block",
)
OTHER_FIELDS = (
    *("model", "device", "dtype", "block_size", "num_blocks", "fixed_s", "rate_per_s", "samples"),
)
POINT_FIELDS = (*Workload.__dataclass_fields__, *ENGINE_FIELDS, *OTHER_FIELDS)


def simulate_point(**point: Any) -> dict[str, Any]:
    """One point of a sweep: what `simulate` gives for a workload, as what JSON can hold.

    Args:
        point: some of POINT_FIELDS.

    Returns:
        "rows" and "finding" of the `Simulation`; what is no number is None.

    Raises:
        TypeError, ValueError: as `simulate`, and for a name that nothing here has.
    """
    if unknown := set(point) - set(POINT_FIELDS):
        raise ValueError(f"a point may set {', '.join(POINT_FIELDS)}; got {min(unknown)!r}")
    fields = Workload.__dataclass_fields__
    asked = {name: value for name, value in point.items() if name in fields}
    config = EngineConfig(**{name: point[name] for name in ENGINE_FIELDS if name in point})
    others = {name: point[name] for name in OTHER_FIELDS if name in point}
    found = simulate(Workload(**asked), config=config, **others)
    rows = [
        {name: None if value != value else value for name, value in row.items()}
        for row in found.rows()
    ]
    return {"rows": rows, "finding": found.finding()}


def check_point(result: Any) -> None:
    """Check what a file holds as the result of `simulate_point`; ValueError names what is wrong."""
    rows = result.get("rows") if isinstance(result, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"rows must be a list of objects, got {shown(result)}")
    if [row.get("arm") for row in rows] != list(ARMS):
        raise ValueError(f"rows must be of the arms {', '.join(ARMS)}, got {shown(rows)}")
    for row in rows:
        for name in ("hit_rate", "ttft_s_mean", "tpot_s_mean"):
            value = row.get(name, "nothing")
            if isinstance(value, bool) or not isinstance(value, int | float | None):
                raise ValueError(f"{name} must be a number or null, got {shown(value)}")
