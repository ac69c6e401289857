"""How close the prefix-aware CPU kernel is to its two products and its tails, and when it pays."""

import time
from functools import cache
from itertools import chain
from statistics import median
from typing import Any

import numpy as np
import pytest

from apclab import bench
from apclab.attention import dtype_of, plan, plan_stream
from apclab.bench.buffers import scratch_buffer
from apclab.clock import interleave
from apclab.specs import ModelShape, model
from tests.marks.conftest import Mark, Measured, ratio

LLAMA = model("llama-13b")  # 40 heads of 128
# blocks of 16 of each request, and how many of them all requests share
BLOCKS = 19
SHARES = (0, 5, 9, 14, 18, 19)
BATCH = 64
DTYPES = ("float32", "bfloat16")
LAYERS = 2


def tables(batch: int, shared: int, seed: int = 0) -> Any:
    """Block tables of so many requests of 19 full blocks, ids permuted."""
    ids = np.random.default_rng(seed).permutation(batch * BLOCKS).reshape(batch, BLOCKS)
    ids[:, :shared] = ids[0, :shared]
    return ids.astype(np.int32)


def pools(batch: int, shape: ModelShape, dtype: str) -> Any:
    """Query, keys and values of two layers."""
    rng = np.random.default_rng(0)
    query = rng.standard_normal((batch, shape.num_heads, shape.head_size), np.float32)
    bank = rng.standard_normal(1_000_003, np.float32).astype(dtype_of(dtype))
    size = (LAYERS, batch * BLOCKS, 16, shape.num_kv_heads, shape.head_size)
    return query.astype(bank.dtype), np.resize(bank, size), np.resize(bank[::-1], size)


def sgemm_s(batch: int, shared: int, shape: ModelShape) -> list[float]:
    """Seconds a call of NumPy's two float32 products of a run's shapes, all heads and threads."""
    if not shared:
        return [0.0]
    rng = np.random.default_rng(0)
    rows, tokens, size = batch * shape.num_heads // shape.num_kv_heads, shared * 16, shape.head_size
    heads = shape.num_kv_heads
    q = rng.standard_normal((heads, rows, size), np.float32)
    k = rng.standard_normal((heads, size, tokens), np.float32)
    v = rng.standard_normal((heads, tokens, size), np.float32)
    times = interleave({"sgemm": [lambda: np.matmul(np.matmul(q, k), v)]}, budget_s=0.3)
    time.sleep(0.2)  # the library's threads spin for a while, beside whatever is timed next
    return times["sgemm"]


@cache
def seconds(dtype: str, shared: int, turn: int, batch: int = BATCH) -> dict[str, list[float]]:
    """Times of private, shared, cascade (all runs) and of the product's shapes in sgemm."""
    assert turn >= 0
    product = sgemm_s(batch, shared, LLAMA)
    query, keys, values = pools(batch, LLAMA, dtype)
    lens = np.full(batch, BLOCKS * 16, np.int32)
    ids = {"private": tables(batch, 0), "shared": tables(batch, shared)}
    ids["cascade"] = ids["shared"]
    launches: dict[str, list[Any]] = {
        case: [
            plan(query, k, v, table, lens, backend="cpu", cascade=case == "cascade")
            for k, v in zip(keys, values, strict=True)
        ]
        for case, table in ids.items()
    }
    for launch in chain.from_iterable(launches.values()):
        launch()
    times = interleave(launches, budget_s=3.0)
    return {"sgemm": product} | times


@pytest.mark.mark
@pytest.mark.parametrize("shared", SHARES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_cascade_against_its_products_and_tails(dtype: str, shared: int, mark: Mark) -> None:
    turns = iter(range(3))

    def part() -> Measured:
        found = seconds(dtype, shared, next(turns))
        products = median(found["sgemm"])
        tails = [products + seconds * (BLOCKS - shared) / BLOCKS for seconds in found["private"]]
        made = ratio(found["cascade"], tails)
        spread = ratio(found["sgemm"], found["sgemm"]).spread if shared else 1.0
        return made._replace(spread=max(made.spread, spread))

    # products and tails are done one after the other: in half of their time they cannot be done
    mark(f"cascade / (products + tails), {dtype}, {shared}/19 shared", part, 1.3, most=True,
         possible=(0.5, float("inf")))  # fmt: skip


@pytest.mark.mark
@pytest.mark.parametrize(("dtype", "batch"), [*((d, BATCH) for d in DTYPES), ("bfloat16", 100)])
@pytest.mark.parametrize("shared", SHARES)
def test_cascade_is_not_slower_than_shared(dtype: str, shared: int, batch: int, mark: Mark) -> None:
    turns = iter(range(3))

    def part() -> Measured:
        found = seconds(dtype, shared, next(turns), batch)
        return ratio(found["cascade"], found["shared"])

    mark(f"cascade / shared, {dtype}, batch {batch}, {shared}/19", part, 1.05, most=True)


@pytest.mark.mark
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_rule_agrees_with_the_clock(dtype: str, mark: Mark) -> None:
    # all 304 tokens shared, so the run is all that differs; time lost where the rule is wrong
    rates = bench.rates_of(bench.calibrate(LLAMA, dtype=dtype))
    cold_bytes = bench.measure_ladder().cold_bytes
    assert cold_bytes is not None, "no read was found to empty the caches"
    cold, _ = plan_stream(scratch_buffer(cold_bytes), 1)

    def lost(batch: int) -> Measured:
        query, keys, values = pools(batch, LLAMA, dtype)
        table, lens = tables(batch, BLOCKS), np.full(batch, BLOCKS * 16, np.int32)
        arrays = (query, keys[0], values[0], table, lens)
        plain, cascade = (plan(*arrays, backend="cpu", cascade=on) for on in (False, True))
        times = interleave(
            {"paged": [plain], "cascade": [cascade]}, budget_s=0.5, min_rounds=15,
            between=lambda _launch: cold(),
        )  # fmt: skip
        chosen = plan(*arrays, backend="cpu", cascade=True, rates=rates).ran
        return ratio(times[chosen], min(times.values(), key=median))

    mark(
        f"chosen kernel / faster one, {dtype}, 2 to 64 sharers, the worst",
        lambda: max(map(lost, (2, 4, 8, 16, 32, 64))),
        1.3,
        most=True,
    )
