"""How close CPU prefill is to the machine's own matrix products, and what cached tokens save."""

import time
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from statistics import median
from typing import Any

import numpy as np
import pytest

from apclab import attention
from tests.kernel_cases import Case, prefill_arrays
from tests.marks.conftest import Mark, Measured, measured

HEADS, SIZE = 40, 128  # of llama-13b
PROMPT = 300
# useful products of prefill against sgemm: 13 % more are done at the causal edge of row tiles, and
# float32 waits for twice the bytes: queries, keys, values and out of 300 tokens are 25 MB
BARS = {"float32": 0.4, "bfloat16": 0.5}
# products of 300 new tokens are 12.8 times those of 12, but both read 300 tokens' keys and values
GAIN_BAR = 4.0
SIDE = 1536


def burst(act: Callable[[], object], *, warm: int, times: int) -> float:
    """Median seconds of some calls after some that count for nothing."""
    # other libraries' threads go on spinning for a while and would take our time
    time.sleep(0.2)
    taken = []
    for turn in range(warm + times):
        start = time.perf_counter()
        act()
        if turn >= warm:
            taken.append(time.perf_counter() - start)
    return median(taken)


def products(count: int) -> dict[str, Callable[[], object]]:
    """Products of two float32 matrices [count, count]: NumPy's, and torch's if it is here."""
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal((count, count), np.float32) for _ in range(3))
    made: dict[str, Callable[[], object]] = {"numpy": lambda: np.matmul(a, b, out=c)}
    if find_spec("torch"):
        import torch

        x, y, z = map(torch.from_numpy, (a, b, c))
        made["torch"] = lambda: torch.mm(x, y, out=z)
    return made


@cache
def launch_of(dtype: str, new: int, num_kv_heads: int = HEADS) -> attention.Launch:
    """Four prompts of which the last tokens are new; launched once and compared with float64."""
    case = Case(dtype, HEADS, num_kv_heads, SIZE, seq_lens=(PROMPT,) * 4)
    arrays: dict[str, Any] = prefill_arrays(case, (new,) * 4)
    launch = attention.plan_prefill(**arrays, backend="cpu")
    launch()
    assert attention.compare(launch, **arrays, pairs=20).ok
    return launch


@pytest.mark.mark
@pytest.mark.parametrize("num_kv_heads", [HEADS, 8])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_prefill_against_sgemm(dtype: str, num_kv_heads: int, mark: Mark) -> None:
    launch = launch_of(dtype, PROMPT, num_kv_heads)
    sgemms = products(SIDE)
    # two products of size SIZE for each pair of a token and one that it sees
    work = 4 * (4 * SIZE * HEADS) * PROMPT * (PROMPT + 1) / 2

    def part() -> Measured:
        rounds = []
        for _ in range(3):
            sgemm = min(burst(act, warm=5, times=5) for act in sgemms.values())
            prefill = burst(launch, warm=3, times=5)
            rounds.append(work / prefill / (2 * SIDE**3 / sgemm))
        return measured(rounds)

    mark(
        f"prefill / sgemm, {PROMPT} tokens, heads {HEADS}/{num_kv_heads}, {dtype}",
        part,
        BARS[dtype],
    )


@pytest.mark.mark
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cached_tokens_save_their_time(dtype: str, mark: Mark) -> None:
    all_new, few_new = launch_of(dtype, PROMPT), launch_of(dtype, 12)

    def gain() -> Measured:
        rounds = [
            burst(all_new, warm=2, times=5) / burst(few_new, warm=2, times=9) for _ in range(3)
        ]
        return measured(rounds)

    mark(f"{PROMPT} new tokens / 288 cached + 12 new, {dtype}", gain, GAIN_BAR)
