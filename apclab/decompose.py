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
from apclab.blocks import BlockPool, BlockPoolV0
from apclab.blocks.keys import KeyKind
from apclab.engine import EngineConfig, Request, Run, run
from apclab.engine.intake import workload_requests
from apclab.memory_model import StepRates, device_rates, roofline_step
from apclab.workload import Workload

ARMS = ("off", "engine", "on")


@dataclass(frozen=True, eq=False)
class Simulation:
    """Runs of one workload.

    Attributes:
        runs: "off", "engine" (caching on, kernel without reuse) and "on", as far as they came.
            Their steps have "logical_bytes" and "distinct_bytes" of KV, all layers, too.
        rates: what the steps were priced with.
        num_blocks: of each run's pool.
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
    arms: Iterable[str] = ARMS,
    keys: KeyKind = "exact",
    fixed_s: float = 0.0,
    cancelled: Callable[[], bool] | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> Simulation:
    """Run requests through the step engine with prefix caching off and on.

    Args:
        requests: a workload (all of it arrives at the start), or a function that makes the
            requests anew for each run, such as one that reads a trace.
        model: a name of `data/models.csv`, or a shape with its weights.
        device: a name of `data/devices.csv`, a row of it, or rates.
        config: of the engine; None takes vLLM's defaults.
        dtype: of weights and KV cache.
        block_size: tokens per block.
        num_blocks: of the pool; None: so many that nothing is ever preempted or evicted (for a
            workload only).
        arms: some of ARMS.
        keys: of the pool, see `blocks.BlockPool`.
        fixed_s: seconds of a step besides its work; for a device of the table.
        cancelled: asked now and then; true stops and keeps finished runs.
        progress: told the part done, 0 to 1, and what is going on.

    Raises:
        Stuck, TypeError, ValueError: as `engine.run`.
    """
    config = config or EngineConfig()
    shape = specs.model(model) if isinstance(model, str) else model
    if isinstance(device, str):
        device = specs.device(device)
    rates = device if isinstance(device, StepRates) else device_rates(device, fixed_s=fixed_s)
    chosen = [arm for arm in ARMS if arm in set(arms)]
    if unknown := set(arms) - set(ARMS):
        raise ValueError(f"arms must be some of {', '.join(ARMS)}, got {min(unknown)!r}")
    if num_blocks is None:
        if not isinstance(requests, Workload):
            raise ValueError("num_blocks must be given where requests are no workload")
        longest = requests.input_len + requests.output_len
        num_blocks = 1 + (requests.batch + requests.prefix_groups) * -(-longest // block_size)
        num_blocks += num_blocks // 50  # what the watermark of v0 keeps free
    runs: dict[str, Run] = {}
    for number, arm in enumerate(chosen):
        pool = _pool(config, num_blocks, block_size, arm != "off", keys)
        if isinstance(requests, Workload):
            if arm != "off":
                prime(pool, requests)
            asked: Iterable[Request] = workload_requests(requests)
        else:
            asked = requests()
        cost = roofline_step(shape, rates, dtype=dtype, block_size=block_size, reuse=arm == "on")
        told = None
        if progress:
            told = _part(progress, number, len(chosen), arm)
        found = run(asked, config, pool, cost, cancelled=cancelled, progress=told)
        if found.stopped:
            break
        token_bytes = shape.token_bytes(dtype) * shape.num_layers
        found.steps["logical_bytes"] = found.steps["context_tokens"] * token_bytes
        found.steps["distinct_bytes"] = found.steps["distinct_blocks"] * block_size * token_bytes
        runs[arm] = found
    return Simulation(runs, rates, num_blocks)


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
        pool.admit(name)
        pool.free(name)


# what a point of a sweep may set, beside the fields of a workload
ENGINE_FIELDS = (*("policy", "queue", "max_num_batched_tokens", "max_num_seqs", "drop_last_block"),)
OTHER_FIELDS = ("model", "device", "dtype", "block_size", "num_blocks", "fixed_s")


def simulate_point(**point: Any) -> dict[str, Any]:
    """One point of a sweep: what `simulate` gives for a workload, as what JSON can hold.

    Args:
        point: fields of `Workload`, and some of ENGINE_FIELDS and OTHER_FIELDS.

    Returns:
        "rows" and "finding" of the `Simulation`; what is no number is None.

    Raises:
        TypeError, ValueError: as `simulate`, and for a name that nothing here has.
    """
    fields = set(Workload.__dataclass_fields__)
    if unknown := set(point) - fields - {*ENGINE_FIELDS, *OTHER_FIELDS}:
        known = sorted({*fields, *ENGINE_FIELDS, *OTHER_FIELDS})
        raise ValueError(f"a point may set {', '.join(known)}; got {min(unknown)!r}")
    asked = {name: value for name, value in point.items() if name in fields}
    config = EngineConfig(**{name: point[name] for name in ENGINE_FIELDS if name in point})
    others = {name: point[name] for name in OTHER_FIELDS if name in point}
    found = simulate(Workload(**asked), config=config, **others)
    rows = [
        {name: None if value != value else value for name, value in row.items()}
        for row in found.rows()
    ]
    return {"rows": rows, "finding": found.finding()}
