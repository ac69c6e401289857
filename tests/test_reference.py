"""The reference against sums done by hand, with no code shared."""

import math

import numpy as np
import pytest
from apclab_kernels.reference import paged_attention_decode, paged_attention_prefill


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
