"""Partial states and their merge against float64: empty and one-token parts, ragged splits, NaN."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from apclab_kernels.cpu import cut as cpu_cut
from apclab_kernels.cpu import decode as cpu_decode
from apclab_kernels.cpu import merge as cpu_merge
from apclab_kernels.reference import paged_attention_decode
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernel_cases import DTYPES, Case, assert_exact, truth_of

GEOMETRIES = [(4, 4, 128, 16), (4, 1, 64, 8), (2, 2, 20, 1), (3, 1, 80, 32)]


def room(query: Any) -> tuple[Any, Any]:
    return np.full(query.shape, np.nan, query.dtype), np.full(query.shape[:2], np.nan, np.float32)


def merged(states: cpu_merge.States, query: Any) -> tuple[Any, Any]:
    out, lse = room(query)
    cpu_merge.run(cpu_merge.bind(states, out, lse))
    return out, lse


def decode(arrays: dict[str, Any], **how: Any) -> tuple[Any, Any]:
    out, lse = room(arrays["query"])
    scale = arrays["query"].shape[-1] ** -0.5
    cpu_decode.run(cpu_decode.bind(**arrays, out=out, lse=lse, scale=scale, **how))
    return out, lse


def in_parts(arrays: dict[str, Any], starts: list[int], block_size: int) -> tuple[Any, Any]:
    """Decode by parts that begin at these blocks, as a cascade runs tails: over shifted tables."""
    query, tables, lens = (arrays[name] for name in ("query", "block_tables", "seq_lens"))
    batch, num_heads, size = query.shape
    states = cpu_merge.no_states(batch, num_heads, len(starts), size)
    states.acc[:] = np.nan  # what an empty part left is not read
    ends = [*starts[1:], tables.shape[1]]
    for slot, (first, last) in enumerate(zip(starts, ends, strict=True)):
        if first == last:
            continue
        part = {
            **arrays,
            "block_tables": np.ascontiguousarray(tables[:, first:last]),
            "seq_lens": np.clip(lens - first * block_size, 0, (last - first) * block_size),
        }
        cpu_decode.run(cpu_decode.bind_states(**part, states=states, slot=slot, scale=size**-0.5))
    return merged(states, query)


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_parts_of_any_lengths_make_the_whole(dtype: str, data: st.DataObject) -> None:
    heads, kv_heads, size, block_size = data.draw(st.sampled_from(GEOMETRIES))
    most = 12 * block_size
    lens = data.draw(st.lists(st.integers(0, most), min_size=1, max_size=4).filter(any))
    case = Case(dtype, heads, kv_heads, size, block_size, seq_lens=tuple(lens))
    arrays = case.arrays()
    columns = arrays["block_tables"].shape[1]
    # a start that occurs twice makes an empty part, one at the last block a short tail
    starts = [0, *sorted(data.draw(st.lists(st.integers(0, columns), max_size=5)))]
    out, lse = in_parts(arrays, starts, block_size)
    assert_exact(out, lse, truth_of(case, arrays), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("parts", [2, 3, 7])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_split_sequences_match_float64(dtype: str, parts: int, layout: str) -> None:
    # 97 = 6 blocks and a token; 5 is shorter than the parts are many
    case = Case(dtype, 6, 3, 96, seq_lens=(97, 0, 5, 300), layout=layout, shared_blocks=2)
    arrays = case.arrays()
    out, lse = decode(arrays, layout=layout, parts=parts)
    assert_exact(out, lse, truth_of(case, arrays), dtype)


def states_of(scores: Any, values: Any, cuts: list[int]) -> cpu_merge.States:
    """States of one head in float64 arithmetic; scores [n] in base 2, values [n, 16]."""
    bounds = [0, *cuts, len(scores)]
    states = cpu_merge.no_states(1, 1, len(bounds) - 1, values.shape[1])
    for part, (a, b) in enumerate(pairwise(bounds)):
        if a < b:
            top = scores[a:b].max()
            weights = np.exp2(scores[a:b] - top)
            states.acc[0, 0, part] = weights @ values[a:b] / weights.sum()
            states.lse[0, 0, part] = top + np.log2(weights.sum())
    return states


@given(
    seed=st.integers(0, 2**16),
    cuts=st.lists(st.integers(0, 50), max_size=9).map(sorted),
    spread=st.sampled_from([0.0, 1.0, 30.0, 300.0]),
)
@settings(max_examples=60, deadline=None)
def test_merge_is_right_to_its_rounding(seed: int, cuts: list[int], spread: float) -> None:
    rng = np.random.default_rng(seed)
    scores, values = rng.standard_normal(50) * spread, rng.standard_normal((50, 16))
    states = states_of(scores, values, cuts)
    out, lse = merged(states, np.empty((1, 1, 16), np.float32))
    weights = np.exp2(scores - scores.max())
    exact = weights @ values / weights.sum()
    exact_lse = (scores.max() + np.log2(weights.sum())) * np.log(2)
    # 16 elements are less than a pair of halves: their order is that of the values.
    # each lse is rounded once and subtracted once: both move a weight by u |lse| ln 2; then
    # exponential, sums and products of as many terms as there are parts
    u = 2.0**-24
    largest = np.abs(states.lse[np.isfinite(states.lse)]).max()
    relative = (4 * largest + 2 * len(cuts) + 12) * u
    # a part's error weighs as much as the part: bound by the part's largest value
    bound = 2 * relative * np.abs(values).max() + u * np.abs(exact)
    assert np.abs(out[0, 0] - exact).max() <= bound.max()
    assert abs(lse[0, 0] - exact_lse) <= relative + 4 * u * (1 + abs(exact_lse))


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_in_every_part_is_zeros(dtype: str) -> None:
    states = cpu_merge.no_states(2, 3, 4, 64)
    states.acc[:] = np.nan
    out, lse = merged(states, np.empty((2, 3, 64), DTYPES[dtype]))
    assert (out == 0).all()
    assert np.isneginf(lse).all()


def test_nan_in_a_part_stays_in_its_own_output() -> None:
    states = cpu_merge.no_states(2, 2, 3, 64)
    states.acc[:], states.lse[:] = 1.0, 0.0
    states.acc[0, 1, 2, 5] = np.nan
    states.acc[1, 0, 1, 40] = np.inf
    states.lse[1, 1, 0] = np.nan
    out, lse = merged(states, np.empty((2, 2, 64), np.float32))
    expected = np.ones((2, 2, 64))
    expected[0, 1, 5] = expected[1, 1] = np.nan
    expected[1, 0, 24 + 16] = np.inf  # float32: element 40 is element 40
    assert np.allclose(out, expected, equal_nan=True)
    assert np.array_equal(np.isnan(lse), [[False, False], [False, True]])


def test_scores_of_minus_infinity_in_a_whole_part_weigh_nothing() -> None:
    case = Case(num_heads=1, num_kv_heads=1, seq_lens=(64,), head_size=64)
    arrays = case.arrays()
    arrays["query"][:] = np.abs(arrays["query"])
    arrays["key_cache"][arrays["block_tables"][0, :2]] = -np.inf
    out, lse = decode(arrays, parts=2)
    with np.errstate(invalid="ignore"):
        truth = paged_attention_decode(**arrays)
    assert np.isfinite(truth.out).all()
    assert np.allclose(out, truth.out, atol=1e-5)
    assert np.allclose(lse, truth.lse, atol=1e-5)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_nan_value_of_a_split_sequence_reaches_its_own_element(parts: int) -> None:
    case = Case(num_heads=2, num_kv_heads=2, seq_lens=(33, 300))
    arrays = case.arrays()
    arrays["value_cache"][arrays["block_tables"][1, 17], 3, 1, 7] = np.nan
    out, lse = decode(arrays, parts=parts)
    assert np.argwhere(np.isnan(out)).tolist() == [[1, 1, 7]]
    assert np.isfinite(lse).all()


@pytest.mark.parametrize("threads", [1, 2, 8, 64])
@pytest.mark.parametrize(("batch", "kv_heads"), [(1, 1), (1, 8), (3, 8), (64, 40)])
@pytest.mark.parametrize("longest", [1, 100, 4096])
@pytest.mark.parametrize("order", ["request", "head"])
def test_long_sequences_are_split_where_threads_would_idle(
    threads: int, batch: int, kv_heads: int, longest: int, order: str
) -> None:
    tasks = cpu_cut.cut(order, batch, kv_heads, longest, 256, threads)
    if batch * kv_heads >= 8 * threads or longest < 256:
        assert tasks.parts == 1
    assert tasks.parts <= max(1, longest // 128)
    if longest == 4096:
        count = -(-batch * tasks.parts // tasks.requests_per_task)
        count *= -(-kv_heads // tasks.heads_per_task)
        assert count >= 0.9 * min(threads, batch * kv_heads * 32)
