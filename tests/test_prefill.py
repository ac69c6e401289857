"""The door to prefill: what it lets through, what it refuses and in which words."""

from typing import Any

import numpy as np
import pytest

import apclab
from apclab import attention
from apclab.attention import Unavailable, paged_attention_prefill, plan_prefill
from apclab.attention.tensors import as_numpy, as_torch
from tests.kernel_cases import DTYPES, Case, assert_exact, prefill_arrays, truth_of

CASE = Case(seq_lens=(1, 63, 48, 5), shared_blocks=2, num_heads=8, num_kv_heads=2)
NEW = (1, 20, 0, 5)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_each_backend_matches_float64(dtype: str, layout: str, backend: str) -> None:
    case = Case(**{**vars(CASE), "dtype": dtype, "layout": layout})
    arrays = prefill_arrays(case, NEW)
    out = np.full_like(arrays["query"], np.nan)
    got = apclab.paged_attention_prefill(
        **arrays, layout=layout, backend=backend, order="head", out=out, return_lse=True
    )
    assert got[0] is out
    assert_exact(got[0], got[1], truth_of(case, arrays), dtype)


def test_nothing_runs_before_the_launch_is_called() -> None:
    arrays = prefill_arrays(CASE, NEW)
    out = np.full_like(arrays["query"], np.nan)
    launch = plan_prefill(**arrays, backend="cpu", out=out)
    assert np.isnan(out).all()
    launch()
    assert not np.isnan(out).any()


def test_scale_is_used() -> None:
    arrays = prefill_arrays(Case(seq_lens=(20,)), (2,))
    flat = paged_attention_prefill(**arrays, scale=0.0)
    rows = arrays["value_cache"][arrays["block_tables"][0]].reshape(-1, 4, 64)
    assert flat[0] == pytest.approx(rows[:19].mean(0), abs=1e-6)
    assert flat[1] == pytest.approx(rows[:20].mean(0), abs=1e-6)


def starts(*numbers: int) -> dict[str, Any]:
    return {"query_start_loc": np.array(numbers, np.int32)}


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"layout": "NDH"}, ValueError, "layout must be one of NHD, HND, got 'NDH'"),
    ({"backend": "gpu"}, ValueError, "backend must be one of reference, cpu, triton, got 'gpu'"),
    ({"order": "block"}, ValueError, "order must be one of request, head, got 'block'"),
    ({"query": np.zeros((26, 8)).astype("f4")}, ValueError, r"query must be \[num_tokens, num_he"),
    ({"query": np.zeros((0, 8, 64), np.float32)}, ValueError, "no dimension may be 0"),
    ({"query": np.full((26, 8, 64), np.inf, np.float32)}, ValueError, "finite, got inf at .0, 0"),
    ({"query_start_loc": [0, 26]}, TypeError, "query_start_loc must be a NumPy array or .* list"),
    ({"query_start_loc": np.arange(5)}, TypeError, "query_start_loc must be an int32 array, .*64"),
    ({"query_start_loc": np.zeros((), np.int32)}, ValueError, r"must be \[batch \+ 1\], got \[\]"),
    (starts(0), ValueError, r"query_start_loc must be \[batch \+ 1\], got \[1\]"),
    (starts(1, 1, 21, 21, 26), ValueError, "from 0 to the 26 tokens of query, got 1 to 26"),
    (starts(0, 1, 21, 21, 25), ValueError, "from 0 to the 26 tokens of query, got 0 to 25"),
    (starts(0, 1, 21, 20, 26), ValueError, "must not fall, got 21 and then 20 at 3"),
    (starts(0, 2, 21, 21, 26), ValueError, "request 0 has 2 new ones, seq_len 1"),
    (
        starts(0, 1, 26),
        ValueError,
        r"block_tables must be \[batch, .*\] with batch 2, got \[4, 4\]",
    ),
    ({"seq_lens": np.ones(3, np.int32)}, ValueError, r"seq_lens must be \[batch\] with batch 4"),
    ({"seq_lens": np.full(4, 65, np.int32)}, ValueError, "65 does not fit 4 blocks of 16"),
    ({"block_tables": np.full((4, 4), -1, np.int32)}, ValueError, r"\[0, 0\] is -1, outside"),
    ({"out": np.zeros((26, 8, 64), np.float16)}, TypeError, "out must be a float32 array"),
    ({"out": np.zeros((26, 8, 65), np.float32)}, ValueError, "out must be C-contiguous"),
]


@pytest.mark.parametrize(("change", "error", "words"), BAD, ids=lambda v: str(v)[:40])
def test_bad_arguments_say_what_is_wrong(
    change: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as raised:
        plan_prefill(**{"backend": "cpu", **prefill_arrays(CASE, NEW), **change})
    assert "\n" not in str(raised.value)


def test_compare_finds_one_wrong_element() -> None:
    arrays = prefill_arrays(CASE, NEW)
    launch = plan_prefill(**arrays, backend="cpu")
    launch()
    assert attention.compare(launch, **arrays).ok
    assert attention.compare(launch, **arrays, pairs=3).checked == "sample of 3 of 208 pairs"
    launch.out[25, 3, 7] += 1e-3
    assert not attention.compare(launch, **arrays).ok


@pytest.mark.parametrize("dtype", DTYPES)
def test_host_tensors_reach_the_cpu_kernel_without_a_copy(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    case = Case(**{**vars(CASE), "dtype": dtype})
    arrays = prefill_arrays(case, NEW)
    tensors = {name: as_torch(array) for name, array in arrays.items()}
    launch = plan_prefill(**tensors, backend="cpu")
    assert isinstance(launch.out, torch.Tensor)
    held = launch.act.args[0]  # type: ignore[attr-defined]
    assert held[1].ctypes.data == tensors["key_cache"].data_ptr()
    launch()
    assert_exact(as_numpy(launch.out), as_numpy(launch.lse), truth_of(case, arrays), dtype)
    with pytest.raises(TypeError, match="query_start_loc numpy"):
        plan_prefill(**{**tensors, "query_start_loc": arrays["query_start_loc"]}, backend="cpu")


def test_triton_says_what_is_missing() -> None:
    arrays = prefill_arrays(CASE, NEW)
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        with pytest.raises(Unavailable, match="use --backend cpu"):
            plan_prefill(**arrays, backend="triton")
