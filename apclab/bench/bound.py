"""A step bound to memory: pools, block tables, queries, launches of every case, their check."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from apclab.attention import (
    Comparison,
    Launch,
    Rates,
    as_torch,
    compare,
    compare_on_device,
    dtype_of,
    plan,
    plan_stream,
    plan_touch,
    set_threads,
)
from apclab.bench.buffers import key_value_pool, scratch_buffer
from apclab.bench.how import How
from apclab.bench.memory import Plan, plan_memory
from apclab.bench.step import Step
from apclab.blocks import BlockTable
from apclab.clock import Replay, synchronize, wall_time
from apclab.specs import ModelShape


class WrongResult(RuntimeError):  # noqa: N818 - says what happened
    """A kernel's output is outside its error bound: no speed is reported."""


@dataclass(frozen=True, eq=False)
class Bound:
    """A step bound to memory: one launch a case and layer, and what goes between timed calls."""

    step: Step
    model: ModelShape
    how: How
    threads: int | None  # None on a GPU
    memory: Plan
    tables: dict[str, BlockTable]
    query: Any
    keys: Any  # [layers, num_blocks, ...] in the layout
    values: Any
    launches: dict[str, list[Launch]]
    # seconds of a case's first call: a kernel that is not in the cache is compiled then
    first_call_s: dict[str, float] = field(default_factory=dict)

    @property
    def between(self) -> Callable[[Callable[[], None]], None] | None:
        """Untimed before each timed call: empties the caches, or warms them with its data."""
        if self.memory.l2 == "warm":
            return lambda launch: launch()
        if not self.memory.scratch_bytes:
            return None
        scratch, _ = plan_stream(scratch_buffer(self.memory.scratch_bytes, self.how.kind), 1)
        return lambda _launch: scratch()

    def check(self, case: str) -> Comparison:
        """Run a case's first launch and hold it against the reference.

        Raises:
            WrongResult: an element is outside its bound.
        """
        launch, table = self.launches[case][0], self.tables[case]
        launch.out[...] = float("nan")
        self.first_call_s[case] = wall_time(lambda: self._finish(launch))
        # on a GPU in float64 on the device: it needs no bfloat16 of NumPy, and no copies
        held = compare_on_device if self.how.kind == "cuda" else compare
        found = held(
            launch, self.query, self.keys[0], self.values[0], table.block_tables, table.seq_lens,
            pairs=self.how.pairs, seed=0,
        )  # fmt: skip
        if not found.ok:
            raise WrongResult(
                f"{self.how.backend} kernel, case {case}: an output element is "
                f"{found.max_error:.3g} from float64, its bound is {found.error_bound:.3g} "
                f"({found.checked}); please report this with the output of `apclab doctor`"
            )
        return found

    def _finish(self, launch: Launch) -> None:
        launch()
        if self.how.kind == "cuda":
            synchronize()

    def timed(self) -> dict[str, list[Callable[[], None]]]:
        """What the clock calls: the launches, on a GPU as replays of CUDA graphs.

        Where calls cycle over layers one graph holds a launch of each layer; where something goes
        between the calls, each launch is a graph of its own.
        """
        if self.how.kind == "cpu":
            return {case: list(launches) for case, launches in self.launches.items()}
        if self.between is None:
            return {case: [Replay(launches)] for case, launches in self.launches.items()}
        return {
            case: [Replay([launch]) for launch in launches]
            for case, launches in self.launches.items()
        }

    def touches(self, case: str) -> list[Launch]:
        """Launches that only load what the case's launches would."""
        table = self.tables[case]
        return [
            plan_touch(
                keys, values, table.block_tables, table.seq_lens,
                layout=self.how.layout, order=self.how.order,
            )
            for keys, values in zip(self.keys, self.values, strict=True)
        ]  # fmt: skip


def check_room(num_blocks: int, model: ModelShape, how: How, block_size: int, asked: str) -> None:
    """Refuse what cannot fit before even the requests are made; see `plan_memory`."""
    block_bytes = model.token_bytes(how.dtype) * block_size
    plan_memory(
        num_blocks=num_blocks + 1, block_bytes=block_bytes, distinct_bytes=num_blocks * block_bytes,
        other_bytes=0, l2=how.l2, limit=how.memory_limit, asked=asked, kind=how.kind,
    )  # fmt: skip


def bind(step: Step, model: ModelShape, how: How, rates: Rates | None = None) -> Bound:
    """Allocate, fill and plan a step; nothing is timed.

    Args:
        step: the block tables of its cases.
        model: the shape.
        how: resolved.
        rates: by which case cascade leaves out runs that do not pay; None takes all.

    Raises:
        Cancelled: the caller's `cancelled` said so.
        OutOfMemory: it does not fit.
    """
    threads = set_threads(how.threads) if how.kind == "cpu" else None
    sharing, batch = step.shared.sharing(), len(step.shared.seq_lens)
    num_blocks = sharing.table_entries + 1  # room for every entry's own block, and the null block
    token_bytes = model.token_bytes(how.dtype)
    query_bytes = batch * model.num_heads * model.head_size * 4
    memory = plan_memory(
        num_blocks=num_blocks, block_bytes=token_bytes * step.block_size,
        distinct_bytes=sharing.distinct_bytes(token_bytes), other_bytes=4 * query_bytes,
        l2=how.l2, limit=how.memory_limit,
        asked=f"{batch} requests of {step.seq_len:.0f} tokens", kind=how.kind,
    )  # fmt: skip
    how.tell(0.0, "filling the KV pool")
    shape = [memory.layers, num_blocks, step.block_size, model.num_kv_heads, model.head_size]
    if how.layout == "HND":
        shape[2], shape[3] = shape[3], shape[2]
    keys, values = (
        flat.reshape(shape)
        for flat in key_value_pool(int(np.prod(shape)), how.dtype, how.kind, how.cancelled)
    )
    seed = step.workload.seed if step.workload else 0
    by_case = {"private": step.private, "shared": step.shared, "cascade": step.shared}
    # a case's placement is its own, so that none profits from neat addresses
    tables = {case: by_case[case].permuted(seed, num_blocks) for case in how.cases}
    query: Any = np.random.default_rng(seed).standard_normal(
        (batch, model.num_heads, model.head_size), np.float32
    )  # fmt: skip
    arrays: dict[str, tuple[Any, Any]] = {
        case: (table.block_tables, table.seq_lens) for case, table in tables.items()
    }
    if how.kind == "cuda":
        query = as_torch(query).to(keys.device, keys.dtype)
        arrays = {
            case: (as_torch(ids).cuda(), as_torch(lens).cuda())
            for case, (ids, lens) in arrays.items()
        }
    else:
        query = query.astype(dtype_of(how.dtype))
    launches = {
        case: [
            plan(
                query,
                k,
                v,
                ids,
                lens,
                layout=how.layout,
                backend=how.backend,
                order=how.order,
                cascade=case == "cascade",
                rates=rates,
            )
            for k, v in zip(keys, values, strict=True)
        ]
        for case, (ids, lens) in arrays.items()
    }
    return Bound(step, model, how, threads, memory, tables, query, keys, values, launches)
