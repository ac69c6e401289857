"""How close the CPU kernel is to its roof, and how much shared blocks gain."""

from functools import cache
from typing import Any

import pytest

from apclab import bench
from apclab.specs import model
from apclab.workload import ISSUE_4860, OWN_HISTORY, Workload
from tests.marks.conftest import Mark, Measured, ratio
from tests.marks.touch import measure_touch

LLAMA = model("llama-13b")  # 40 heads of 128
# 64 requests x 304 tokens at the first step: 303 in
BATCH_64 = Workload(batch=64, input_len=303, output_len=2, cache_hit=0.0)
LAYOUTS = [(layout, order) for layout in ("NHD", "HND") for order in ("request", "head")]
# decode against the load-only pass of its layout
BARS = {"float32": 0.85, "bfloat16": 0.65}
# what loads and computes nothing is not slower than what does both, but for noise
FASTER = 1.2


@cache
def rates(dtype: str, layout: str, order: str, turn: int) -> dict[str, Measured]:
    """Rate of the load-only pass over that of a plain read, and of decode over load-only."""
    assert turn >= 0
    step = bench.decode_step(BATCH_64, step="first")
    timed = measure_touch(
        step, LLAMA, cases=("private",), dtype=dtype, layout=layout, order=order, budget_s=3.0
    )["private"]
    logical = step.private.sharing().logical_bytes(LLAMA.token_bytes(dtype))
    return {
        "touch_of_stream": ratio(
            [logical / seconds for seconds in timed["touch"]], timed["stream_bytes_per_s"]
        ),
        "decode_of_touch": ratio(timed["touch"], timed["decode"]),
    }


@pytest.mark.mark
@pytest.mark.parametrize("dtype", BARS)
def test_load_only_against_stream(dtype: str, mark: Mark) -> None:
    turns = iter(range(3))

    def best() -> Measured:
        turn = next(turns)
        return max(rates(dtype, *where, turn)["touch_of_stream"] for where in LAYOUTS)

    mark(f"load-only / stream, {dtype}, best layout and order", best, 0.75,
         possible=(0.0, FASTER))  # fmt: skip


@pytest.mark.mark
@pytest.mark.parametrize(("layout", "order"), [("NHD", "request"), ("HND", "request")])
@pytest.mark.parametrize("dtype", BARS)
def test_private_decode_against_load_only(dtype: str, layout: str, order: str, mark: Mark) -> None:
    turns = iter(range(3))
    mark(
        f"decode / load-only, {dtype}, {layout}, order {order}",
        lambda: rates(dtype, layout, order, next(turns))["decode_of_touch"],
        BARS[dtype],
        possible=(0.0, FASTER),
    )


def gain(workload: Workload, **how: Any) -> Measured:
    """Time of private over that of shared, one interleaved run."""
    private, shared = bench.compare_decode(
        workload, LLAMA, cases=("private", "shared"), budget_s=4.0, **how
    )
    return ratio(private["samples_us"], shared["samples_us"])


@pytest.mark.mark
@pytest.mark.parametrize(("hit", "bar"), [(1.0, 2.2), (0.5, 1.3)])
def test_shared_against_private(hit: float, bar: float, mark: Mark) -> None:
    workload = Workload(ISSUE_4860.batch, 300, 20, cache_hit=hit)
    mark(f"private / shared, issue 4860, bfloat16, cold, hit {hit}", lambda: gain(workload), bar)


@pytest.mark.mark
def test_own_history_gains_nothing(mark: Mark) -> None:
    def off() -> Measured:
        found = gain(OWN_HISTORY)
        return found._replace(value=abs(found.value - 1))

    mark(
        "|private / shared - 1|, own history, hit 0.9",
        off,
        0.05,
        most=True,
    )
