"""The door: what it lets through, what it refuses and in which words."""

import hashlib
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apclab import attention
from apclab.attention import Launch, Unavailable, compare, paged_attention_decode, plan
from apclab.attention import launch as launching
from apclab.attention.tensors import as_numpy, as_torch
from tests.kernel_cases import DTYPES, Case, assert_exact, truth_of

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape",
    [
        Case(seq_lens=(1, 63, 300, 48), shared_blocks=3, num_heads=8, num_kv_heads=2),
        Case(seq_lens=(63,), layout="HND", head_size=128),
    ],
    ids=["NHD-GQA", "HND-MHA"],
)
def test_each_backend_matches_float64(shape: Case, dtype: str, backend: Any) -> None:
    case = Case(**{**vars(shape), "dtype": dtype})
    arrays = case.arrays()
    out = np.full_like(arrays["query"], np.nan)
    got = paged_attention_decode(
        **arrays, layout=case.layout, backend=backend, order="head", out=out, return_lse=True
    )
    assert got[0] is out
    assert_exact(got[0], got[1], truth_of(case, arrays), dtype)


def test_nothing_runs_before_the_launch_is_called() -> None:
    arrays = Case().arrays()
    out = np.full_like(arrays["query"], np.nan)
    launch = plan(**arrays, backend="cpu", out=out)
    assert np.isnan(out).all()
    launch()
    assert not np.isnan(out).any()


def test_scale_is_used() -> None:
    arrays = Case(seq_lens=(20,)).arrays()
    flat = paged_attention_decode(**arrays, backend="cpu", scale=0.0)
    assert isinstance(flat, np.ndarray)
    rows = arrays["value_cache"][arrays["block_tables"][0]].reshape(-1, 4, 64)[:20]
    assert flat[0] == pytest.approx(rows.mean(0), abs=1e-6)


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"layout": "NDH"}, ValueError, "layout must be one of NHD, HND, got 'NDH'"),
    ({"backend": "gpu"}, ValueError, "backend must be one of reference, cpu, triton, got 'gpu'"),
    ({"order": "block"}, ValueError, "order must be one of request, head, got 'block'"),
    ({"query": [[1.0]]}, TypeError, "query must be a NumPy array or a torch tensor, got list"),
    ({"query": np.zeros((5, 4, 64))}, TypeError, "query must be one of float32, .* got float64"),
    ({"query": np.zeros((5, 64), np.float32)}, ValueError, r"query must be \[batch, num_heads"),
    ({"query": np.zeros((5, 3, 64), np.float32)}, ValueError, "got 3 and 4"),
    ({"query": np.zeros((5, 4, 32), np.float32)}, ValueError, "head_size must be .* 32, got 64"),
    ({"query": np.full((5, 4, 64), np.nan, np.float32)}, ValueError, "finite, got nan at .0, 0, 0"),
    ({"seq_lens": [1, 2]}, TypeError, "seq_lens must be a NumPy array or a torch tensor, got list"),
    ({"seq_lens": np.ones(5, np.int64)}, TypeError, "seq_lens must be an int32 array, got int64"),
    ({"seq_lens": np.ones(4, np.int32)}, ValueError, "batch 5, got .4"),
    ({"seq_lens": np.full(5, -1, np.int32)}, ValueError, "at least 0, got -1"),
    ({"seq_lens": np.full(5, 400, np.int32)}, ValueError, "400 does not fit 19 blocks of 16"),
    ({"block_tables": np.zeros((5, 19), np.uint32)}, TypeError, "int32 array, got uint32"),
    ({"block_tables": np.full((5, 19), 98, np.int32)}, ValueError, r"\[0, 0\] is 98, .* 0 to 97"),
    ({"block_tables": np.full((5, 19), -1, np.int32)}, ValueError, r"\[0, 0\] is -1, outside"),
    ({"out": np.zeros((5, 4, 64), np.float16)}, TypeError, "out must be a float32 array"),
    ({"out": np.zeros((5, 4, 65), np.float32)}, ValueError, "out must be C-contiguous"),
]


@pytest.mark.parametrize(("change", "error", "words"), BAD, ids=lambda v: str(v)[:40])
def test_bad_arguments_say_what_is_wrong(
    change: dict[str, Any], error: type[Exception], words: str
) -> None:
    arrays = Case(seq_lens=(1, 63, 300, 0, 48)).arrays()
    with pytest.raises(error, match=words):
        plan(**{"backend": "cpu", **arrays, **change})


def test_caches_must_agree_and_be_contiguous() -> None:
    arrays = Case().arrays()
    with pytest.raises(ValueError, match="must have one shape"):
        plan(**{**arrays, "value_cache": arrays["value_cache"][:-1]}, backend="cpu")
    half = arrays["value_cache"].astype(np.float16)
    with pytest.raises(TypeError, match="value_cache must have the dtype of query"):
        plan(**{**arrays, "value_cache": half}, backend="cpu")
    turned = arrays["key_cache"].swapaxes(1, 2)
    with pytest.raises(ValueError, match="key_cache must be C-contiguous"):
        plan(**{**arrays, "key_cache": turned, "value_cache": turned}, backend="cpu")


def test_padding_of_a_table_may_hold_anything() -> None:
    case = Case(seq_lens=(16, 17))
    arrays = case.arrays()
    truth = truth_of(case, arrays)
    arrays["block_tables"][0, 1:] = -7
    out, lse = paged_attention_decode(**arrays, backend="cpu", return_lse=True)
    assert_exact(out, np.asarray(lse), truth, "float32")


def test_compare_finds_one_wrong_element() -> None:
    arrays = Case(seq_lens=(300, 63)).arrays()
    launch = plan(**arrays, backend="cpu")
    launch()
    assert attention.compare(launch, **arrays).ok
    assert attention.compare(launch, **arrays).checked == "all pairs"
    assert attention.compare(launch, **arrays, pairs=3).checked == "sample of 3 of 8 pairs"
    launch.out[1, 3, 7] += 1e-3
    found = attention.compare(launch, **arrays)
    assert not found.ok
    assert found.max_error == pytest.approx(1e-3, rel=0.01)
    launch.out[0, 0, 0] = np.nan
    assert not attention.compare(launch, **arrays).ok


@pytest.mark.parametrize("pair", range(8))
def test_compare_never_forgets_an_element_that_was_not_written(pair: int) -> None:
    arrays = Case(seq_lens=(5, 63)).arrays()
    launch = plan(**arrays, backend="cpu")
    launch()
    # whether it is the first pair that is looked at, the last, or between right ones
    launch.out[pair // 4, pair % 4, 7] = np.nan
    found = attention.compare(launch, **arrays)
    assert not found.ok
    assert np.isnan(found.max_error)


RATES = attention.Rates(1e12, 20e9, 20e9, 0.0, 0.0)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_cascade_is_exact_and_says_which_kernel_ran(dtype: str, backend: str) -> None:
    case = Case(dtype=dtype, seq_lens=(300, 63, 0, 160, 161), shared_blocks=9)
    arrays = case.arrays()
    launch = plan(**arrays, backend=backend, cascade=True)
    launch.out[...] = np.nan
    launch()
    assert_exact(launch.out, launch.lse, truth_of(case, arrays), dtype)
    assert (launch.ran, launch.why) == ("cascade" if backend == "cpu" else "paged", "")
    got = paged_attention_decode(**arrays, backend=backend, cascade=True, return_lse=True)
    assert np.array_equal(got[0].view(np.uint8), launch.out.view(np.uint8))


def test_cascade_is_what_runs_unless_rates_say_otherwise() -> None:
    alone = Case(seq_lens=(48, 33)).arrays()
    launch = plan(**alone, backend="cpu", cascade=True)
    assert launch.ran == "cascade", "a case is what it is called, also where nothing is shared"
    assert launch.why == "no two requests share a full block from their first token on"
    launch()
    assert compare(launch, **alone).ok
    assert plan(**alone, backend="cpu", cascade=True, rates=RATES).ran == "paged"
    shared = Case(seq_lens=(48, 33), shared_blocks=2).arrays()
    assert plan(**shared, backend="cpu", cascade=True, rates=RATES).ran == "cascade"
    slow = plan(**shared, backend="cpu", cascade=True, rates=RATES._replace(launch_s=1.0))
    assert slow.ran == "paged"
    assert slow.why.startswith("the paged kernel ran in place of the prefix-aware one: 1 run would")
    slow()
    assert attention.compare(slow, **shared).ok
    assert plan(**shared, backend="cpu").why == ""


def test_runs_that_do_not_pay_are_named_and_the_rest_is_read_once() -> None:
    case = Case(seq_lens=(64, 64, 40, 40), num_heads=8, num_kv_heads=8)
    arrays = case.arrays()
    tables = arrays["block_tables"]
    tables[1, :4], tables[3, :1] = tables[0, :4], tables[2, :1]
    # a run of one block saves a fourth of what one of four blocks does
    rates = RATES._replace(run_s=4e-6)
    launch = plan(**arrays, backend="cpu", cascade=True, rates=rates)
    assert launch.ran == "cascade"
    assert launch.why == "the prefix-aware kernel ran in part: 1 of 2 runs pay"
    launch()
    assert attention.compare(launch, **arrays).ok


def test_threads_are_checked() -> None:
    most = attention.set_threads(None)
    with pytest.raises(ValueError, match="threads must be between 1 and"):
        attention.set_threads(0)
    assert attention.set_threads(1) == 1
    attention.set_threads(most)


def test_the_kernel_digest_is_of_its_sources() -> None:
    assert attention.kernel_sha256("cpu") != attention.kernel_sha256("reference")
    assert len(attention.kernel_sha256("cpu")) == 64
    assert attention.kernel_sha256("cpu", cascade=True) != attention.kernel_sha256("cpu")
    with_cascade = attention.kernel_sha256("reference", cascade=True)
    assert with_cascade == attention.kernel_sha256("reference")


@pytest.mark.parametrize("kernel", ["decode", "cascade"])
@pytest.mark.parametrize("backend", ["cpu", "triton"])
def test_the_digest_is_of_all_that_the_kernel_imports(backend: str, kernel: str) -> None:
    pytest.importorskip("numba" if backend == "cpu" else "triton")
    # what a new interpreter has loaded after the import; packages hold no code
    code = (
        f"import sys, apclab_kernels.{backend}.{kernel}\n"
        "print(*(m.__file__ for n, m in sys.modules.items() if n.startswith('apclab_kernels.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "kernels")},
    )  # fmt: skip
    loaded = [Path(file) for file in done.stdout.split() if not file.endswith("__init__.py")]
    assert len(loaded) > 3
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(loaded))).hexdigest()
    assert attention.kernel_sha256(backend, cascade=kernel == "cascade") == digest


# torch: the tests of the door to it; they need torch, and no GPU


@pytest.mark.parametrize("dtype", DTYPES)
def test_host_tensors_reach_the_cpu_kernel_without_a_copy(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    case = Case(dtype=dtype, seq_lens=(1, 63, 48), num_heads=8, num_kv_heads=2)
    arrays = case.arrays()
    tensors = {name: as_torch(array) for name, array in arrays.items()}
    launch = plan(**tensors, backend="cpu")
    assert isinstance(launch.out, torch.Tensor)
    assert launch.out.dtype == tensors["query"].dtype
    # bound arguments hold the tensors' own bytes
    held = launch.act.args[0].decode  # type: ignore[attr-defined]
    assert held[1].ctypes.data == tensors["key_cache"].data_ptr()
    assert held[5].ctypes.data == launch.out.data_ptr()
    launch()
    out, lse = as_numpy(launch.out), as_numpy(launch.lse)
    assert_exact(out, lse, truth_of(case, arrays), dtype)


def test_an_output_tensor_is_filled_in_place() -> None:
    torch = pytest.importorskip("torch")
    tensors = {name: as_torch(array) for name, array in Case().arrays().items()}
    out = torch.full_like(tensors["query"], float("nan"))
    got = paged_attention_decode(**tensors, backend="cpu", out=out)
    assert got is out
    assert not out.isnan().any()
    with pytest.raises(TypeError, match=r"out must be a float32 array like query, got .*numpy"):
        plan(**tensors, backend="cpu", out=out.numpy())


def test_tensors_and_arrays_do_not_mix() -> None:
    pytest.importorskip("torch")
    arrays = Case().arrays()
    with pytest.raises(TypeError, match="query torch, key_cache numpy"):
        plan(**{**arrays, "query": as_torch(arrays["query"])}, backend="cpu")


def test_triton_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = Case().arrays()
    for name in ("torch", "triton"):
        with monkeypatch.context() as patch:
            patch.setattr(launching, "find_spec", lambda n, gone=name: None if n == gone else n)
            with pytest.raises(Unavailable, match=f"needs {name}; install it with: pip install"):
                plan(**arrays, backend="triton")
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        with pytest.raises(Unavailable, match="use --backend cpu"):
            plan(**arrays, backend="triton")
        assert attention.resolve("auto") == "cpu"
    assert attention.resolve("reference") == "reference"


def long_step(tokens: int, heads: int) -> tuple[Launch, dict[str, Any]]:
    """One request of many tokens and heads, launched."""
    rng = np.random.default_rng(0)
    shape = (tokens // 16, 16, heads, 64)
    key_cache, value_cache = (rng.standard_normal(shape, np.float32) for _ in range(2))
    arrays: dict[str, Any] = {
        "query": rng.standard_normal((1, heads, 64), np.float32),
        "key_cache": key_cache, "value_cache": value_cache,
        "block_tables": np.arange(tokens // 16, dtype=np.int32)[None],
        "seq_lens": np.array([tokens], np.int32),
    }  # fmt: skip
    launch = plan(**arrays, backend="cpu")
    launch()
    return launch, arrays


def test_a_comparison_takes_what_one_head_needs() -> None:
    tokens, heads = 8192, 32
    launch, arrays = long_step(tokens, heads)
    tracemalloc.start()
    try:
        assert compare(launch, **arrays, pairs=4).ok
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # keys and values of one head in float64, and of their blocks in float32; not of all heads
    assert peak < tokens * 64 * (2 * 8 + 3 * 4) * 1.1 + 2**20 < arrays["key_cache"].nbytes


def test_a_comparison_looks_up_before_each_pair() -> None:
    launch, arrays = long_step(64, 8)
    seen: list[int] = []

    def look() -> None:
        seen.append(1)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(launch, **arrays, look=look)
    assert len(seen) == 3


def test_no_compiler_no_cpu_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays: dict[str, Any] = Case(seq_lens=(33,)).arrays()
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    with pytest.raises(Unavailable, match="NUMBA_DISABLE_JIT forbids that; unset it"):
        plan(**arrays, backend="cpu")
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "0")
    plan(**arrays, backend="cpu")
