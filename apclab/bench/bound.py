"""A step bound to memory: pools, block tables, queries, launches of every case, their check."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from apclab.attention import (
    Comparison,
    Launch,
    as_torch,
    compare,
    compare_on_device,
    dtype_of,
    plan,
    plan_stream,
    set_threads,
)
from apclab.bench.buffers import key_value_pool, scratch_buffer
from apclab.bench.how import How
from apclab.bench.memory import Plan, check_room, plan_memory, step_needs
from apclab.bench.probes import Ladder, measure_ladder
from apclab.bench.step import Step
from apclab.blocks import BlockTable
from apclab.clock import CpuShare, Replay, synchronize, wall_time
from apclab.specs import ModelShape

# seconds of the first launch of each kernel in this process
_warm: dict[tuple[Any, ...], float] = {}


class WrongResult(RuntimeError):  # noqa: N818 - says what happened
    """A kernel's output is outside its error bound: no speed is reported."""


@dataclass(frozen=True, eq=False)
class Bound:
    """A step bound to memory: one launch a case and layer, and what goes between timed calls.

    The names of `launches` are cases, or kernels of others on the tables of one case.
    """

    step: Step
    model: ModelShape
    how: How
    threads: int | None  # None on a GPU
    memory: Plan
    cores: CpuShare  # entered while it is timed: a neighbour that is busy shows there
    tables: dict[str, BlockTable]
    query: Any
    keys: Any  # [layers, num_blocks, ...] in the layout
    values: Any
    launches: dict[str, list[Launch]] = field(default_factory=dict)
    # seconds of a first call of this process: a kernel that is not on disk is compiled then
    first_call_s: dict[str, float] = field(default_factory=dict)

    def arrays(self, case: str) -> tuple[Any, Any]:
        """Block table and lengths of a case where K and V are: in NumPy, or on the GPU."""
        table = self.tables[case]
        arrays = (table.block_tables, table.seq_lens)
        if self.how.kind == "cpu":
            return arrays
        ids, lens = (as_torch(array).cuda() for array in arrays)
        return ids, lens

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
        found = self.compare(case, self.launches[case][0])
        # it may have been compiled by `warm_up`
        if (known := _warm.get(_warm_key(case, self.model, self.how))) is not None:
            self.first_call_s[case] = known
        if not found.ok:
            raise WrongResult(
                f"{self.how.backend} kernel, case {case}: an output element is "
                f"{found.max_error:.3g} from float64, its bound is {found.error_bound:.3g} "
                f"({found.checked}); please report this with the output of `apclab doctor`"
            )
        return found

    def compare(
        self, case: str, launch: Launch, *, rounds_weights: bool | None = None, name: str = ""
    ) -> Comparison:
        """Run a launch of the first layer and hold it against the reference.

        Args:
            case: whose tables it has.
            launch: ours, or that of a kernel of others.
            rounds_weights: as in `attention.compare`; None for ours.
            name: of the launch in `first_call_s`; the case's if "".
        """
        launch.out[...] = float("nan")
        self.first_call_s[name or case] = self.seconds(launch)
        table = self.tables[case]
        arrays = (self.query, self.keys[0], self.values[0], table.block_tables, table.seq_lens)
        how: dict[str, Any] = {"pairs": self.how.pairs, "seed": 0, "look": self.how.look}
        # on a GPU in float64 on the device: it needs no bfloat16 of NumPy, and no copies
        if self.how.kind == "cuda" and rounds_weights is None:
            return compare_on_device(launch, *arrays, **how)
        # a launch of another layout has a copy of these keys and values
        return compare(
            launch, *arrays, layout=self.how.layout, rounds_weights=rounds_weights, **how
        )

    def seconds(self, launch: Launch) -> float:
        """Time of one call by the wall, with what it starts on a GPU."""

        def finish() -> None:
            launch()
            if self.how.kind == "cuda":
                synchronize()

        return wall_time(finish)

    def timing(self, budget_s: float | None = None) -> dict[str, Any]:
        """How `clock.interleave` times the calls of `timed`; None takes the settings' budget."""
        return {
            "budget_s": self.how.budget_s if budget_s is None else budget_s,
            "between": self.between,
            "timer": self.how.timer,
            "cancelled": self.how.cancelled,
        }

    def timed(self) -> dict[str, list[Callable[[], None]]]:
        """What the clock calls: the launches, on a GPU as replays of CUDA graphs.

        Where calls cycle over layers one graph holds a launch of each layer; where something goes
        between the calls, each launch is a graph of its own. On a CPU each name begins at another
        layer, far from that of the others: some read the same memory.
        """
        if self.how.kind == "cuda" and self.between is None:
            return {name: [Replay(launches)] for name, launches in self.launches.items()}
        apart = max(1, self.memory.layers // max(1, len(self.launches)))
        made: dict[str, list[Callable[[], None]]] = {}
        for number, (name, launches) in enumerate(self.launches.items()):
            at = number * apart % len(launches)
            acts = [launch.act for launch in (*launches[at:], *launches[:at])]
            made[name] = [Replay([act]) for act in acts] if self.how.kind == "cuda" else acts
        return made


def warm_up(model: ModelShape, how: How) -> None:
    """Launch each case's kernel on two short requests, once a process: that compiles it.

    A compiler takes up to 200 MB. After this they are no longer at hand, so what is planned then
    knows of them. On a GPU the compiler works for each shape anew, and in host memory.
    """
    if how.backend != "cpu" or all(_warm_key(case, model, how) in _warm for case in how.cases):
        return
    how.tell(0.0, "compiling kernels")
    tables = np.array([[1, 2], [1, 3]], np.int32)
    lens = np.full(2, 17, np.int32)
    shape = [4, 16, model.num_kv_heads, model.head_size]
    if how.layout == "HND":
        shape[1], shape[2] = shape[2], shape[1]
    cache = np.zeros(shape, dtype_of(how.dtype))
    query = np.zeros((2, model.num_heads, model.head_size), cache.dtype)
    for case in how.cases:
        key = _warm_key(case, model, how)
        if key not in _warm:
            how.look()
            launch = _plan(case, query, cache, cache, tables, lens, how)
            _warm[key] = wall_time(launch)


def _warm_key(case: str, model: ModelShape, how: How) -> tuple[Any, ...]:
    return (case == "cascade", how.dtype, how.layout, model.head_size)


def ready(step: Step, model: ModelShape, how: How) -> tuple[Bound, Ladder]:
    """Everything untimed: compile, add up, read the machine's rates, plan, allocate, bind.

    Args:
        step: the block tables of its cases.
        model: the shape.
        how: resolved.

    Raises:
        Cancelled: the caller's `cancelled` said so.
        OutOfMemory: it does not fit.
    """
    warm_up(model, how)
    needs = step_needs(step, model, how)
    ladder = ladder_of(how, check_room(needs, how))
    return bind(step, model, how, plan_memory(needs, how, ladder.cold_bytes)), ladder


def ladder_of(how: How, room: int) -> Ladder:
    """The machine's read rates, as `measure_ladder` finds them for these settings."""
    how.tell(0.0, "reading the machine's caches and memory")
    return measure_ladder(kind=how.kind, threads=how.threads, room=room, cancelled=how.cancelled)


def _plan(case: str, *arrays: Any) -> Launch:
    *tensors, how = arrays
    return plan(
        *tensors, layout=how.layout, backend=how.backend, order=how.order,
        cascade=case == "cascade",
    )  # fmt: skip


def bind(step: Step, model: ModelShape, how: How, memory: Plan) -> Bound:
    """Allocate, fill and plan a step; nothing is timed. Arguments as in `fill`."""
    bound = fill(step, model, how, memory)
    launches = {
        case: [
            _plan(case, bound.query, *layer, *arrays, how)
            for layer in zip(bound.keys, bound.values, strict=True)
        ]
        for case, arrays in ((case, bound.arrays(case)) for case in how.cases)
    }
    return replace(bound, launches=launches)


def fill(step: Step, model: ModelShape, how: How, memory: Plan) -> Bound:
    """Allocate and fill a step's pool, and place its blocks; without launches.

    Args:
        step: the block tables of its cases.
        model: the shape.
        how: resolved.
        memory: from `plan_memory`.

    Raises:
        Cancelled: the caller's `cancelled` said so.
    """
    threads = set_threads(how.threads) if how.kind == "cpu" else None
    batch, num_blocks = len(step.shared.seq_lens), memory.num_blocks
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
    if how.kind == "cuda":
        query = as_torch(query).to(keys.device, keys.dtype)
    else:
        query = query.astype(dtype_of(how.dtype))
    cores = CpuShare(threads or 1)
    return Bound(step, model, how, threads, memory, cores, tables, query, keys, values)
