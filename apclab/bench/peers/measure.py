"""Binds every candidate to the same step, checks each, times those that are right, A B A B."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from apclab.attention import compare, plan_stream, set_threads
from apclab.bench.buffers import scratch_buffer
from apclab.bench.peers import gpu_peers, openvino_cpu, ours, torch_peers, vllm_cpu
from apclab.bench.peers.kernel import Candidate, Kernel
from apclab.bench.peers.problem import Problem, Setting, make_problem
from apclab.bench.peers.record import checked, failed, make_record, timed
from apclab.bench.probes import measure_ladder
from apclab.clock import (
    Cancelled,
    Replay,
    alone,
    event_time,
    interleave,
    machine,
    synchronize,
    wall_time,
)
from apclab.results import Record

_OURS = (
    Candidate("apclab", ("apclab", "numba", "triton"), 16, ours.bind_paged),
    Candidate("apclab cascade", ("apclab", "numba", "triton"), 16, ours.bind_cascade),
)
_TORCH = (
    Candidate("torch FlexAttention", ("torch",), 16, torch_peers.bind_flex),
    Candidate("torch gather + SDPA", ("torch",), 16, torch_peers.bind_gather),
)
_CPU = (
    *_OURS,
    Candidate("vLLM, block 16", ("vllm-cpu", "torch"), 16, vllm_cpu.bind),
    Candidate("vLLM, block 32", ("vllm-cpu", "torch"), 32, vllm_cpu.bind),
    Candidate("OpenVINO", ("openvino",), openvino_cpu.BLOCK_SIZE, openvino_cpu.bind),
    *_TORCH,
)
_CUDA = (
    *_OURS,
    Candidate("FlashInfer", ("flashinfer-python",), 16, gpu_peers.bind_flashinfer),
    Candidate("FlashAttention 2", ("flash-attn",), 256, gpu_peers.bind_flash_attention),
    Candidate("FlashAttention 3", ("flash-attn-3",), 16, gpu_peers.bind_flash_attention_3),
    Candidate("vLLM FlashAttention", ("vllm",), 16, gpu_peers.bind_vllm_flash),
    Candidate("vLLM Triton", ("vllm",), 16, gpu_peers.bind_vllm_triton),
    *_TORCH,
)
# a kernel so many times slower than the fastest is timed in rounds of its own: each of its calls
# would cost the others as many
_SLOW = 8.0


class _Bound(NamedTuple):
    """A kernel that was checked, and what it was asked."""

    kernel: Kernel
    problem: Problem
    record: Record
    second_call_s: float


def candidates(kind: str = "cpu") -> tuple[Candidate, ...]:
    """Who is compared on a CPU ("cpu") or an NVIDIA or AMD GPU ("cuda")."""
    return _CUDA if kind == "cuda" else _CPU


@alone("measure_peers")
def measure_peers(
    setting: Setting,
    *,
    kind: str = "cpu",
    who: Sequence[Candidate] | None = None,
    threads: int | None = None,
    budget_s: float = 5.0,
    memory_limit: int = 5 * 10**9,
    pairs: int | None = 256,
    cancelled: Callable[[], bool] | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> list[Record]:
    """Compare all kernels on one setting.

    Between timed calls as much is read as empties the caches, and calls cycle over layers, so that
    no call finds anything of its own in the caches.

    Args:
        setting: shape, dtype and share.
        kind: "cpu" or "cuda".
        who: the candidates; `candidates(kind)` if None.
        threads: of every CPU kernel; None means all.
        budget_s: seconds of timing.
        memory_limit: bytes of K and V in all layouts together.
        pairs: (request, head) pairs compared with the reference; None means all.
        cancelled: asked between kernels and between calls; true stops.
        progress: told the part done, 0 to 1, and what is going on.

    Returns:
        A record a kernel, failed and wrong ones included.

    Raises:
        Cancelled: `cancelled` said so; its `records` hold what was done until then.
    """
    count = set_threads(threads) if kind == "cpu" else 1
    who = candidates(kind) if who is None else who
    tell = progress or (lambda _part, _what: None)
    tell(0.0, "filling the KV pools")
    problem = make_problem(setting, kind=kind, threads=count, memory_limit=memory_limit)
    bound: list[_Bound] = []
    records: list[Record] = []
    try:
        for number, candidate in enumerate(who):
            if cancelled is not None and cancelled():
                raise Cancelled("stopped before timing")
            tell(0.5 * number / len(who), f"binding and checking {candidate.name}")
            for found in _prepare(candidate, problem.with_blocks_of(candidate.block_size), pairs):
                if isinstance(found, _Bound):
                    bound.append(found)
                else:
                    records.append(found)
        tell(0.5, "timing")
        _time(
            bound, records, kind, budget_s, cancelled, lambda part: tell(0.5 + part / 2, "timing")
        )
    except Cancelled as stop:
        stop.records = records
        raise
    return records


def _prepare(candidate: Candidate, problem: Problem, pairs: int | None) -> list["_Bound | Record"]:
    """Bind a candidate's kernels and hold each against float64; what fails becomes its record.

    A peer may raise anything at all, and none of it may cost the others their turn.
    """
    try:
        kernels = candidate.bind(problem)
    except Exception as error:
        return [failed(make_record(candidate, None, problem), error)]
    made: list[_Bound | Record] = []
    for kernel in kernels:
        record = make_record(candidate, kernel, problem)
        try:
            made.append(_checked(kernel, problem, record, pairs))
        except Exception as error:
            made.append(failed(record, error))
    return made


def _checked(
    kernel: Kernel, problem: Problem, record: Record, pairs: int | None
) -> "_Bound | Record":
    launch = kernel.launches[0]
    launch.out[...] = float("nan")
    first = wall_time(lambda: _finish(launch, problem.kind))
    layer = problem.layer(0)
    found = compare(
        launch, problem.query, layer.keys, layer.values, problem.table.block_tables,
        problem.table.seq_lens, pairs=pairs, layout="NHD", rounds_weights=kernel.rounds_weights,
    )  # fmt: skip
    record = checked(record, found, first)
    if not found.ok:
        return record
    return _Bound(kernel, problem, record, wall_time(lambda: _finish(launch, problem.kind)))


def _finish(launch: Callable[[], None], kind: str) -> None:
    launch()
    if kind == "cuda":
        synchronize()


def _time(
    bound: list[_Bound],
    records: list[Record],
    kind: str,
    budget_s: float,
    cancelled: Callable[[], bool] | None,
    progress: Callable[[float], None],
) -> None:
    """Add the records of the timed kernels; of what was timed so far when it is stopped."""
    if not bound:
        return
    fastest = min(item.second_call_s for item in bound)
    slow = [item for item in bound if item.second_call_s > _SLOW * fastest]
    quick = [item for item in bound if item not in slow]
    for items, rounds, notes in (
        (quick, 5, []),
        (slow, 3, [f"more than {_SLOW:g} times slower than the fastest: timed in own rounds"]),
    ):
        if not items:
            continue
        try:
            samples = interleave(
                {str(at): _calls(item.kernel, at, kind) for at, item in enumerate(items)},
                budget_s=budget_s if items is quick else 0.0, between=_flush(kind),
                timer=event_time if kind == "cuda" else None, min_rounds=rounds,
                cancelled=cancelled, progress=progress if items is quick else None,
            )  # fmt: skip
        except Cancelled as stop:
            _add(items, stop.samples, records, [*notes, "stopped before its time"])
            raise
        _add(items, samples, records, notes)


def _add(
    items: list[_Bound], samples: dict[str, list[float]], records: list[Record], notes: list[str]
) -> None:
    for at, item in enumerate(items):
        if seconds := samples.get(str(at)):
            records.append(timed(item.record, item.problem, seconds, notes))


def _calls(kernel: Kernel, at: int, kind: str) -> list[Callable[[], None]]:
    """A launch a layer, begun at another layer by each kernel: some read the same memory."""
    launches: list[Any] = list(kernel.launches)
    if kind == "cuda":
        launches = [Replay([launch]) for launch in launches]
    at %= len(launches)
    return [*launches[at:], *launches[:at]]


def _flush(kind: str) -> Callable[[Callable[[], None]], None]:
    """Read what empties the caches before each timed call; else twice the last level."""
    size = measure_ladder(kind=kind).cold_bytes or 2 * machine(kind)["llc_bytes"]
    read, _ = plan_stream(scratch_buffer(size, kind), 1)
    return lambda _launch: read()
