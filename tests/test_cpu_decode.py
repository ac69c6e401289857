"""The CPU kernel against float64 over odd shapes, in every dtype, layout and order."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from apclab_kernels.cpu import cut as cpu_cut
from apclab_kernels.cpu import decode as cpu_decode

from tests.kernel_cases import DTYPES, Case, assert_exact, truth_of

SHAPES = [
    Case(num_heads=5, num_kv_heads=5, head_size=128),
    Case(num_heads=8, num_kv_heads=2, head_size=64, shared_blocks=2),
    Case(num_heads=6, num_kv_heads=1, head_size=96, block_size=7),
    Case(num_heads=2, num_kv_heads=2, head_size=80, block_size=1, seq_lens=(9, 8, 7)),
    Case(num_heads=3, num_kv_heads=3, head_size=20, block_size=256, seq_lens=(300, 256, 1)),
    Case(num_heads=2, num_kv_heads=1, head_size=256, block_size=32, seq_lens=(64,)),
    Case(num_heads=4, num_kv_heads=4, head_size=128, seq_lens=(48, 48, 48), shared_blocks=3),
]


def decode(arrays: dict[str, Any], layout: Any, order: Any) -> tuple[Any, Any]:
    query = arrays["query"]
    out = np.full(query.shape, np.nan, query.dtype)
    lse = np.full(query.shape[:2], np.nan, np.float32)
    scale = query.shape[-1] ** -0.5
    cpu_decode.run(
        cpu_decode.bind(**arrays, out=out, lse=lse, scale=scale, layout=layout, order=order)
    )
    return out, lse


@pytest.mark.parametrize("order", ["request", "head"])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", SHAPES, ids=lambda c: f"{c.num_heads}/{c.num_kv_heads}x{c.head_size}"
)
def test_matches_float64(shape: Case, dtype: str, layout: str, order: str) -> None:
    case = Case(**{**vars(shape), "dtype": dtype, "layout": layout})
    arrays = case.arrays()
    out, lse = decode(arrays, layout, order)
    assert_exact(out, lse, truth_of(case, arrays), dtype)


def test_one_wrong_table_entry_is_outside_the_bound() -> None:
    # the bound must be able to fail: one block of 19 read in place of another
    case = Case(dtype="bfloat16", head_size=128, seq_lens=(300, 300))
    arrays = case.arrays()
    truth = truth_of(case, arrays)
    arrays["block_tables"][1, 7] = arrays["block_tables"][0, 7]
    out, lse = decode(arrays, "NHD", "request")
    with pytest.raises(AssertionError, match="outside its bound"):
        assert_exact(out, lse, truth, "bfloat16")


def test_nan_and_infinity_in_values_reach_their_own_output_only() -> None:
    case = Case(num_heads=2, num_kv_heads=2, seq_lens=(33, 33))
    arrays = case.arrays()
    block = arrays["block_tables"][0, 2]
    arrays["value_cache"][block, 0, 0, 3] = np.nan
    arrays["value_cache"][block, 0, 1, 5] = np.inf
    out, _ = decode(arrays, "NHD", "head")
    truth = truth_of(case, arrays)
    assert np.array_equal(np.isnan(out), np.isnan(truth.out))
    assert np.array_equal(np.isposinf(out), np.isposinf(truth.out))
    assert np.isnan(out).sum() == 1


def test_nan_in_a_key_spoils_its_head() -> None:
    case = Case(num_heads=2, num_kv_heads=2, seq_lens=(33, 33))
    arrays = case.arrays()
    arrays["key_cache"][arrays["block_tables"][1, 0], 4, 1, 0] = np.nan
    out, lse = decode(arrays, "NHD", "request")
    assert np.isnan(out[1, 1]).all()
    assert np.isnan(lse[1, 1])
    assert not np.isnan(out[0]).any()
    assert not np.isnan(out[1, 0]).any()


@pytest.mark.parametrize("batch", [1, 3, 64])
@pytest.mark.parametrize("num_kv_heads", [1, 8, 40])
@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("order", ["request", "head"])
def test_tasks_cover_the_launch_and_feed_the_threads(
    batch: int, num_kv_heads: int, threads: int, order: Any
) -> None:
    tasks = cpu_cut.cut(order, batch, num_kv_heads, 310, 256, threads)
    head_tasks = -(-num_kv_heads // tasks.heads_per_task)
    request_tasks = -(-batch * tasks.parts // tasks.requests_per_task)
    assert 1 <= tasks.heads_per_task <= num_kv_heads
    assert 1 <= tasks.requests_per_task <= batch * tasks.parts
    assert tasks.parts == 1 or batch * num_kv_heads < 4 * threads
    assert head_tasks * request_tasks >= min(threads, batch * num_kv_heads) / 2
    assert tasks.head_first == (order == "head")


def test_a_second_process_finds_the_compiled_kernel() -> None:
    # compiling takes seconds, loading from disk a fraction of one
    decode(Case(dtype="bfloat16").arrays(), "NHD", "request")
    code = (
        "from tests.kernel_cases import Case; from tests.test_cpu_decode import decode;"
        "decode(Case(dtype='bfloat16').arrays(), 'NHD', 'request');"
        "from apclab_kernels.cpu.decode import _decode;"
        "print(sum(_decode.stats.cache_misses.values()))"
    )
    root = Path(__file__).parent.parent
    path = os.pathsep.join([str(root), str(root / "kernels")])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": path}, cwd=root,
    )  # fmt: skip
    assert done.stdout.split() == ["0"], "the kernel was compiled again"
