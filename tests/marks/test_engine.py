"""How fast the step engine and the replay of a trace are.

Rates are given for the machine of the pool's marks, see test_pool.py.
"""

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from apclab.blocks import BlockPool
from apclab.engine import EngineConfig, StepWork, run
from apclab.engine.intake import trace_requests, workload_requests
from apclab.replay import Stream, lru_curve, stream_of
from apclab.traces import Trace, read_trace
from apclab.workload import Workload
from tests.marks.conftest import Mark, Measured, measured
from tests.marks.test_pool import NOMINAL_NS, calibration_ns, quiet

CONVERSATION = (
    Path(__file__).resolve().parents[3] / "shared/traces/requests/mooncake/conversation_trace.jsonl"
)
stored = pytest.mark.skipif(not CONVERSATION.exists(), reason="Mooncake's trace is not here")


def cost(work: StepWork) -> float:
    """Cheap, so that the engine is what is measured."""
    return 0.01 + 1e-4 * work.prefill_tokens


def on_nominal(act: Callable[[], object]) -> float:
    """Seconds of an act on the nominal machine."""
    before = calibration_ns()
    with quiet():
        start = time.perf_counter()
        act()
        seconds = time.perf_counter() - start
    nominal: float = seconds / ((before + calibration_ns()) / 2 / NOMINAL_NS)
    return nominal


@pytest.mark.mark
def test_engine(mark: Mark) -> None:
    workload = Workload(200, 300, 200, primed=False)

    def million_request_steps_per_s() -> Measured:
        rates = []
        for _ in range(5):
            requests, pool = workload_requests(workload), BlockPool(8001)
            seconds = on_nominal(lambda r=requests, p=pool: run(r, EngineConfig(), p, cost))  # type: ignore[misc]
            rates.append(200 * 200 / seconds / 1e6)
        return measured(rates)

    mark("engine, decode", million_request_steps_per_s, 0.5, "M request-steps/s")


@cache
def conversation() -> tuple[Trace, Stream]:
    trace = read_trace(CONVERSATION)
    return trace, stream_of(trace)


@pytest.mark.mark
@stored
def test_lru_curve(mark: Mark) -> None:
    _, stream = conversation()
    lru_curve(stream)  # compiles

    def curve() -> Measured:
        return measured([on_nominal(lambda: lru_curve(stream)) for _ in range(5)])

    mark("Mooncake conversation, whole LRU curve", curve, 1.0, "s", most=True)


@pytest.mark.mark
@stored
def test_engine_on_a_trace(mark: Mark) -> None:
    trace, _ = conversation()

    def seconds() -> Measured:
        requests = list(trace_requests(enumerate(trace), 512, 512))
        # 8B model: 131,072 bytes a token in bfloat16, 200 GB
        pool = BlockPool(200 * 10**9 // (131_072 * 512), block_size=512)
        # once: it takes seconds, and its bar is far away
        return Measured(on_nominal(lambda: run(requests, EngineConfig(), pool, cost)), 1.0)

    mark("Mooncake conversation through the engine", seconds, 20.0, "s", most=True)
