"""The reference against sums done by hand, with no code shared."""

import math

import numpy as np
import pytest
from apclab_kernels.layout import by_token, cache_shape, strides_of
from apclab_kernels.reference import (
    Attended,
    output_bound,
    paged_attention_decode,
    paged_attention_prefill,
)


def test_two_tokens_by_hand() -> None:
    # scores 1 and 3 at scale 1: weights 1/(1+e^2) and e^2/(1+e^2)
    query = np.array([[[1.0, 0.0]]], np.float32)
    key_cache = np.zeros((3, 1, 1, 2), np.float32)
    key_cache[2, 0, 0] = [1, 7]
    key_cache[1, 0, 0] = [3, -7]
    value_cache = np.zeros_like(key_cache)
    value_cache[2, 0, 0] = [10, 0]
    value_cache[1, 0, 0] = [0, 20]
    tables = np.array([[2, 1]], np.int32)
    lens = np.array([2], np.int32)
    got = paged_attention_decode(query, key_cache, value_cache, tables, lens, scale=1.0)
    small = 1 / (1 + math.exp(2))
    assert got.out[0, 0] == pytest.approx([10 * small, 20 * (1 - small)], rel=1e-14)
    assert got.lse[0, 0] == pytest.approx(math.log(math.exp(1) + math.exp(3)), rel=1e-14)


def test_query_heads_use_their_own_kv_head() -> None:
    # one token: the output is its value, whatever the score; heads 0-1 read KV head 0, 2-3 head 1
    value_cache = np.arange(2.0, dtype=np.float32).reshape(1, 1, 2, 1)
    got = paged_attention_decode(
        np.ones((1, 4, 1), np.float32),
        np.ones_like(value_cache),
        value_cache,
        np.zeros((1, 1), np.int32),
        np.ones(1, np.int32),
    )
    assert got.out[0, :, 0].tolist() == [0, 0, 1, 1]


def test_layouts_hold_the_same_numbers() -> None:
    rng = np.random.default_rng(0)
    cache = rng.standard_normal((4, 3, 2, 5)).astype(np.float32)
    query = rng.standard_normal((2, 2, 5)).astype(np.float32)
    tables, lens = np.array([[3, 1], [2, 0]], np.int32), np.array([5, 3], np.int32)
    nhd = paged_attention_decode(query, cache, cache, tables, lens, layout="NHD")
    turned = cache.swapaxes(1, 2)
    hnd = paged_attention_decode(query, turned, turned, tables, lens, layout="HND")
    assert np.array_equal(nhd.out, hnd.out)


def test_an_empty_sequence_is_a_row_of_zeros() -> None:
    cache = np.ones((1, 1, 1, 2), np.float32)
    got = paged_attention_decode(
        np.ones((1, 1, 2), np.float32),
        cache,
        cache,
        np.zeros((1, 1), np.int32),
        np.zeros(1, np.int32),
    )
    assert got.out.tolist() == [[[0, 0]]]
    assert got.lse[0, 0] == -np.inf


def test_new_tokens_see_what_came_before_and_themselves() -> None:
    # all keys are 0, so weights are equal: each output is the mean of the values it sees
    value_cache = np.arange(8.0, dtype=np.float32).reshape(4, 2, 1, 1)
    got = paged_attention_prefill(
        np.ones((3, 1, 1), np.float32),
        np.zeros_like(value_cache),
        value_cache,
        np.array([[3, 0], [1, 2]], np.int32),
        np.array([3, 2], np.int32),
        np.array([0, 2, 3], np.int32),
    )
    # request 0 is 6, 7, 0 of which two are new; request 1 is 2, 3 of which one is new
    assert got.out[:, 0, 0] == pytest.approx([(6 + 7) / 2, (6 + 7 + 0) / 3, (2 + 3) / 2])
    assert got.lse[:, 0] == pytest.approx(np.log([2, 3, 2]))


@pytest.mark.parametrize(("layout", "shape"), [("NHD", (5, 16, 2, 8)), ("HND", (5, 2, 16, 8))])
def test_a_layout_names_dimensions_and_strides(layout: str, shape: tuple[int, ...]) -> None:
    cache = np.zeros(shape, np.float32)
    assert cache_shape(cache, layout) == (5, 16, 2, 8)
    tokens_first = by_token(cache, layout)
    assert tokens_first.shape == (5, 16, 2, 8)
    assert np.shares_memory(tokens_first, cache)
    assert strides_of(cache, layout) == tuple(step // 4 for step in tokens_first.strides[:3])


def test_the_bound_of_an_output_by_hand() -> None:
    one, lse = np.ones((1, 1, 1)), np.zeros((1, 1))
    truth = Attended(one, lse, one / 8, lse, 2 * one)
    # arithmetic, and one rounding of the largest that it can have come to
    assert output_bound(truth, "float16") == pytest.approx(1 / 8 + 2**-11 * 9 / 8 + 2**-25)
    # weights truncated: twice a roundoff of sum |weight * value|, and of the output
    arithmetic = 1 / 8 + 2 * 2**-8 * 2
    bound = output_bound(truth, "bfloat16", rounded_weights=2.0)
    assert bound == pytest.approx(arithmetic + 2 * 2**-8 * (1 + arithmetic))
    # no tokens: float32 and bfloat16 may err by what they underflow by, never by a float16's step
    nothing = Attended(*(0 * part for part in truth))
    assert 0 < output_bound(nothing, "float32")[0, 0, 0] < output_bound(nothing, "bfloat16") < 1e-39
