"""CPU prefill against the reference and against a dense causal softmax, over odd shapes."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from apclab_kernels.cpu import decode as cpu_decode
from apclab_kernels.cpu import prefill as cpu_prefill
from apclab_kernels.cpu.spans import Sight, cut
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.kernel_cases import DTYPES, Case, assert_exact, prefill_arrays, truth_of

# a case and the new tokens of each of its sequences
SHAPES = [
    # one token, an exactly full block, all cached but one, nothing cached, nothing new
    (Case(seq_lens=(1, 16, 63, 70, 48, 5)), (1, 16, 1, 70, 0, 3)),
    (Case(num_heads=2, num_kv_heads=2, head_size=128, seq_lens=(300, 300)), (300, 12)),
    (Case(num_heads=8, num_kv_heads=2, seq_lens=(80, 90, 64), shared_blocks=3), (32, 9, 16)),
    (Case(num_heads=6, num_kv_heads=1, head_size=96, block_size=7, seq_lens=(65, 14)), (20, 14)),
    (Case(num_heads=2, num_kv_heads=2, head_size=20, block_size=1, seq_lens=(9, 8)), (5, 8)),
    (Case(num_heads=3, num_kv_heads=3, head_size=80, block_size=256, seq_lens=(129,)), (65,)),
    (Case(num_heads=2, num_kv_heads=1, head_size=256, block_size=32, seq_lens=(64,)), (33,)),
]


def prefill(arrays: dict[str, Any], layout: str = "NHD", order: str = "request") -> tuple[Any, Any]:
    query = arrays["query"]
    out = np.full(query.shape, np.nan, query.dtype)
    lse = np.full(query.shape[:2], np.nan, np.float32)
    scale = query.shape[-1] ** -0.5
    cpu_prefill.run(
        cpu_prefill.bind(**arrays, out=out, lse=lse, scale=scale, layout=layout, order=order)
    )
    return out, lse


def dense(
    arrays: dict[str, Any], layout: str, *, start: int = 0, see: int = 0
) -> NDArray[np.float64]:
    """Causal softmax over gathered keys and values in float64, a head at a time, nothing shared.

    `start` moves the first new token, `see` the last token that each can see: planted faults.
    """
    starts, lens = arrays["query_start_loc"], arrays["seq_lens"]
    out = np.full(arrays["query"].shape, np.nan)
    for r, (lo, hi) in enumerate(pairwise(starts)):
        gathered = []
        for cache in (arrays["key_cache"], arrays["value_cache"]):
            heads_last = cache if layout == "NHD" else cache.swapaxes(1, 2)
            tokens = [token for b in arrays["block_tables"][r] for token in heads_last[b]]
            gathered.append(np.array(tokens[: lens[r]], np.float64).reshape(-1, *tokens[0].shape))
        keys, values = gathered
        first = lens[r] - (hi - lo) + start
        visible = np.arange(lens[r]) <= first + np.arange(hi - lo)[:, None] + see
        for h in range(out.shape[1]):
            kv = h // (out.shape[1] // keys.shape[1])
            scores = arrays["query"][lo:hi, h].astype(np.float64) @ keys[:, kv].T
            weights = np.where(visible, np.exp(scores / np.sqrt(out.shape[2])), 0.0)
            out[lo:hi, h] = weights @ values[:, kv] / weights.sum(1, keepdims=True)
    return out


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "new"), SHAPES, ids=lambda v: str(v)[-40:])
def test_matches_float64(shape: Case, new: tuple[int, ...], dtype: str, layout: str) -> None:
    case = Case(**{**vars(shape), "dtype": dtype, "layout": layout})
    arrays = prefill_arrays(case, new)
    truth = truth_of(case, arrays)
    # the reference itself, to float64's rounding
    assert truth.out == pytest.approx(dense(arrays, layout), rel=1e-9, abs=1e-12)
    for order in ("request", "head"):
        out, lse = prefill(arrays, layout, order)
        assert_exact(out, lse, truth, dtype)


@settings(max_examples=25, deadline=None)
@given(
    lens=st.lists(
        st.tuples(st.integers(1, 140), st.integers(0, 140)).map(lambda t: (t[0], min(t))),
        min_size=1,
        max_size=4,
    ).filter(lambda pairs: any(new for _, new in pairs)),
    heads=st.sampled_from([(1, 1), (3, 3), (4, 2), (6, 1)]),
    head_size=st.integers(1, 70),
    block_size=st.integers(1, 40),
    shared=st.integers(0, 3),
    dtype=st.sampled_from(list(DTYPES)),
    layout=st.sampled_from(["NHD", "HND"]),
)
def test_any_shape_matches_float64(
    lens: list[tuple[int, int]], heads: tuple[int, int], head_size: int, block_size: int,
    shared: int, dtype: str, layout: str,
) -> None:  # fmt: skip
    case = Case(
        dtype, *heads, head_size, block_size, layout, tuple(n for n, _ in lens), shared,
        seed=head_size,
    )  # fmt: skip
    arrays = prefill_arrays(case, [new for _, new in lens])
    out, lse = prefill(arrays, layout)
    assert_exact(out, lse, truth_of(case, arrays), dtype)


@pytest.mark.parametrize("fault", [{"see": 1}, {"see": -1}, {"start": 1}, {"start": -1}], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_mask_or_a_start_off_by_one_is_outside_the_bound(
    dtype: str, fault: dict[str, int]
) -> None:
    case = Case(dtype=dtype, seq_lens=(140, 300))
    arrays = prefill_arrays(case, (20, 12))
    truth = truth_of(case, arrays)
    wrong = dense(arrays, "NHD", **fault).astype(DTYPES[dtype])
    lse = truth.lse.astype(np.float32)
    with pytest.raises(AssertionError, match="outside its bound"):
        assert_exact(wrong, lse, truth, dtype)
    assert_exact(dense(arrays, "NHD").astype(DTYPES[dtype]), lse, truth, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_wrong_start_of_a_request_is_outside_the_bound(dtype: str) -> None:
    # the kernel itself, told that one token of request 0 belongs to request 1
    case = Case(dtype=dtype, seq_lens=(140, 300))
    arrays = prefill_arrays(case, (20, 12))
    truth = truth_of(case, arrays)
    out, lse = prefill({**arrays, "query_start_loc": np.array([0, 19, 32], np.int32)})
    with pytest.raises(AssertionError, match="outside its bound"):
        assert_exact(out, lse, truth, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_new_token_is_a_decode_step(dtype: str) -> None:
    case = Case(dtype=dtype, num_heads=8, num_kv_heads=2, seq_lens=(1, 63, 300, 48))
    arrays = case.arrays()
    truth = truth_of(case, arrays)
    out, lse = np.empty_like(arrays["query"]), np.empty(arrays["query"].shape[:2], np.float32)
    cpu_decode.run(cpu_decode.bind(**arrays, out=out, lse=lse, scale=64**-0.5))
    assert_exact(out, lse, truth, dtype)
    starts = np.arange(5, dtype=np.int32)
    assert_exact(*prefill({**arrays, "query_start_loc": starts}), truth, dtype)


def token_place(arrays: dict[str, Any], request: int, token: int) -> tuple[int, int]:
    """Block id and offset of a token, layout NHD."""
    block_size = arrays["key_cache"].shape[1]
    return arrays["block_tables"][request, token // block_size], token % block_size


@pytest.mark.parametrize("cache", ["key_cache", "value_cache"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("token", [0, 40, 99, 110, 127, 139])
def test_what_is_not_finite_reaches_only_those_that_see_it(
    token: int, bad: float, cache: str
) -> None:
    # 140 tokens, 60 of them new: a bad one among the cached, the first and the later new ones
    case = Case(num_heads=4, num_kv_heads=2, seq_lens=(140, 50))
    arrays = prefill_arrays(case, (60, 50))
    arrays[cache][(*token_place(arrays, 0, token), 1, 3)] = bad
    with np.errstate(invalid="ignore"):
        truth = truth_of(case, arrays)
    out, lse = prefill(arrays)
    # heads 2 and 3 of the new tokens that see it
    seen = np.zeros(out.shape[:2], bool)
    seen[max(0, token - 80) : 60, 2:] = True
    assert not np.isfinite(truth.out)[~seen].all(-1).sum() < (~seen).sum()
    assert np.isfinite(out[~seen]).all()
    assert np.isfinite(lse[~seen]).all()
    assert np.array_equal(np.isnan(out), np.isnan(truth.out))
    assert np.array_equal(np.isposinf(out), np.isposinf(truth.out))
    assert np.array_equal(np.isneginf(out), np.isneginf(truth.out))
    assert np.array_equal(np.isnan(lse), np.isnan(truth.lse))


def test_a_tile_of_scores_of_minus_infinity_weighs_nothing() -> None:
    # the first tile of keys has no weight at all, later ones do; the last request has none ever
    case = Case(num_heads=1, num_kv_heads=1, head_size=32, seq_lens=(100, 20))
    arrays = prefill_arrays(case, (10, 20))
    arrays["query"][...] = np.abs(arrays["query"])
    for request, tokens in ((0, 70), (1, 20)):
        for token in range(tokens):
            arrays["key_cache"][token_place(arrays, request, token)] = -np.inf
    with np.errstate(invalid="ignore"):
        truth = truth_of(case, arrays)
    out, lse = prefill(arrays)
    assert np.isnan(truth.out[10:]).all()
    assert np.isnan(out[10:]).all()
    assert np.isnan(lse[10:]).all()
    assert np.isfinite(truth.out[:10]).all()
    # keys of infinity make the bound infinite: hold it against the tokens that weigh something
    assert out[:10] == pytest.approx(truth.out[:10], abs=1e-5)
    assert lse[:10] == pytest.approx(truth.lse[:10], abs=1e-5)


def sight_of(seq_lens: Any, starts: Any) -> Sight:
    """What the new tokens of a prefill see; its tables decide nothing of how it is cut."""
    none = np.zeros((len(seq_lens), 0), np.int32)
    first_sees = seq_lens - np.diff(starts) + 1
    return Sight(none, seq_lens, first_sees, np.arange(starts[-1], dtype=np.int32), starts)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_equal_tasks_are_dealt_out_evenly(threads: int) -> None:
    # 256 rows of each of 8 heads that all see 288 tokens: 8 tasks
    lens = np.array([288], np.int32)
    sight = Sight(
        np.zeros((1, 0), np.int32), lens, lens, np.arange(64, dtype=np.int32),
        np.array([0, 64], np.int32),
    )  # fmt: skip
    tasks, spans = cut(sight, num_kv_heads=8, group=4, order="head", threads=threads)
    assert set(np.diff(spans).tolist()) == {len(tasks) // threads}


@pytest.mark.parametrize("order", ["request", "head"])
@pytest.mark.parametrize("threads", [1, 2, 7, 64])
@pytest.mark.parametrize(
    ("lens", "new", "kv_heads", "group"),
    [((300,), (300,), 40, 1), ((5000, 9, 300, 1), (4000, 0, 12, 1), 3, 8), ((2,), (1,), 1, 1)],
)
def test_tasks_cover_all_rows_once_and_spans_are_alike(
    lens: tuple[int, ...], new: tuple[int, ...], kv_heads: int, group: int, threads: int, order: str
) -> None:
    starts = np.concatenate([[0], np.cumsum(new)]).astype(np.int32)
    seq_lens = np.array(lens, np.int32)
    tasks, spans = cut(
        sight_of(seq_lens, starts),
        num_kv_heads=kv_heads, group=group, order=order, threads=threads,
    )  # fmt: skip
    assert (np.diff(spans) >= 0).all()
    assert (spans[0], spans[-1], len(spans)) == (0, len(tasks), threads + 1)
    rows = [(r, h, i) for r, h, lo, hi in tasks.tolist() for i in range(lo, hi)]
    wanted = [
        (r, h, i) for r, n in enumerate(new) for h in range(kv_heads) for i in range(n * group)
    ]
    assert sorted(rows) == wanted
    seen = [sum(lens[r] - new[r] + i // group + 1 for i in range(lo, hi)) for r, _, lo, hi in tasks]
    loads = [sum(seen[a:b]) for a, b in pairwise(spans)]
    assert max(loads) <= sum(seen) / threads * 1.2 + max(seen)
    key = 1 if order == "head" else 0
    assert (np.diff(tasks[:, key]) >= 0).all()


@pytest.mark.slow
def test_cpus_without_avx_512_get_the_same_numbers() -> None:
    # other register tiles: 4 x 1 sums in place of 8 x 2
    import llvmlite.binding

    features = llvmlite.binding.get_host_cpu_features()
    less = ",".join(
        f"{'+' if have and not name.startswith(('avx512', 'avx10', 'amx')) else '-'}{name}"
        for name, have in features.items()
    )
    code = (
        "from apclab_kernels.cpu import matrix; assert matrix.BLOCK == 4;"
        "from tests.test_cpu_prefill import *\n"
        "for case, new in SHAPES[1:3]:\n"
        "    arrays = prefill_arrays(case, new)\n"
        "    assert_exact(*prefill(arrays), truth_of(case, arrays), 'float32')\n"
        "from tests.test_cpu_cascade import SHAPES, cascade\n"
        "for case in SHAPES[:2]:\n"
        "    arrays = case.arrays()\n"
        "    assert_exact(*cascade(arrays, 16), truth_of(case, arrays), 'float32')"
    )
    root = Path(__file__).parent.parent
    path = os.pathsep.join([str(root), str(root / "kernels")])
    environment = {**os.environ, "PYTHONPATH": path, "NUMBA_CPU_FEATURES": less}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=root)
