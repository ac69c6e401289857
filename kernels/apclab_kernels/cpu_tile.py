"""Dot products and weighted sums over eight rows of a cache at a time, for numba kernels."""

import numpy as np
from numba import njit

from apclab_kernels.cpu_element import CHUNK, high, low, narrow, store_halves, widen
from apclab_kernels.cpu_vector import (
    WIDTH,
    exp2,
    fma,
    largest,
    load,
    maximum,
    splat,
    store,
    store_totals,
    subtract,
    total,
    zeros,
)

# sums may be reordered so that they vectorise; NaN and infinity keep their meaning
FASTMATH = {"reassoc", "contract", "nsz", "arcp"}
ONE = np.float32(1.0)
ZERO = np.float32(0.0)
LOWEST = np.float32(-3e38)
LN_2 = np.float32(np.log(2.0))
TILE = 8  # rows side by side: eight streams of memory in flight
# the head size that unrolls the inner loops; a typed constant, since each literal integer would
# have numba compile the callee once more
KNOWN_SIZE = np.int64(128)


@njit(fastmath=FASTMATH, cache=True)
def take_query(query, at, size, scale, q, i):
    """q[i : i + size] = scaled query[at : at + size], split into halves as rows of a cache are."""
    whole = size - size % CHUNK
    for d in range(0, whole, CHUNK):
        store(q, i + d, fma(low(query, at + d), splat(scale), zeros()))
        store(q, i + d + WIDTH, fma(high(query, at + d), splat(scale), zeros()))
    for d in range(whole, size):
        q[i + d] = widen(query[at + d]) * scale


@njit(fastmath=FASTMATH, cache=True)
def give_out(acc, i, size, factor, out, at):
    """out[at : at + size] = acc[i : i + size] * factor, its halves joined again."""
    whole = size - size % CHUNK
    for d in range(0, whole, CHUNK):
        first = fma(load(acc, i + d), splat(factor), zeros())
        second = fma(load(acc, i + d + WIDTH), splat(factor), zeros())
        store_halves(out, at + d, first, second)
    for d in range(whole, size):
        out[at + d] = narrow(out, acc[i + d] * factor)


@njit(fastmath=FASTMATH, cache=True)
def give_state(acc, i, size, lse, factor, states, at):
    """State number `at` of a flat array = acc[i : i + size] * factor, in the order it has.

    Returns:
        The state's log-sum-exp: -inf where all weights are 0.
    """
    whole = size - size % WIDTH
    for d in range(0, whole, WIDTH):
        store(states, at * size + d, fma(load(acc, i + d), splat(factor), zeros()))
    for d in range(whole, size):
        states[at * size + d] = acc[i + d] * factor
    return np.float32(-np.inf) if factor == np.float32(np.inf) else lse


@njit(fastmath=FASTMATH, cache=True)
def dot(q, i, k, at, start, size):
    whole = size - size % CHUNK
    sums = zeros()
    for d in range(start, whole, CHUNK):
        sums = fma(load(q, i + d), low(k, at + d), sums)
        sums = fma(load(q, i + d + WIDTH), high(k, at + d), sums)
    result = total(sums)
    for d in range(whole, size):
        result += q[i + d] * widen(k[at + d])
    return result


@njit(fastmath=FASTMATH, cache=True)
def weigh(p, v, at, start, size, acc, i):
    whole = size - size % CHUNK
    for d in range(start, whole, CHUNK):
        store(acc, i + d, fma(splat(p), low(v, at + d), load(acc, i + d)))
        store(acc, i + d + WIDTH, fma(splat(p), high(v, at + d), load(acc, i + d + WIDTH)))
    for d in range(whole, size):
        acc[i + d] += p * widen(v[at + d])


@njit(fastmath=FASTMATH, cache=True, forceinline=True)
def _score_sized(q, i, k, rows, t, at, size, scores, j):
    a0, a1, a2, a3 = rows[t] + at, rows[t + 1] + at, rows[t + 2] + at, rows[t + 3] + at
    a4, a5, a6, a7 = rows[t + 4] + at, rows[t + 5] + at, rows[t + 6] + at, rows[t + 7] + at
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = zeros()
    whole = size - size % CHUNK
    for d in range(0, whole, CHUNK):
        x, y = load(q, i + d), load(q, i + d + WIDTH)
        s0 = fma(y, high(k, a0 + d), fma(x, low(k, a0 + d), s0))
        s1 = fma(y, high(k, a1 + d), fma(x, low(k, a1 + d), s1))
        s2 = fma(y, high(k, a2 + d), fma(x, low(k, a2 + d), s2))
        s3 = fma(y, high(k, a3 + d), fma(x, low(k, a3 + d), s3))
        s4 = fma(y, high(k, a4 + d), fma(x, low(k, a4 + d), s4))
        s5 = fma(y, high(k, a5 + d), fma(x, low(k, a5 + d), s5))
        s6 = fma(y, high(k, a6 + d), fma(x, low(k, a6 + d), s6))
        s7 = fma(y, high(k, a7 + d), fma(x, low(k, a7 + d), s7))
    store_totals(scores, j, s0, s1, s2, s3, s4, s5, s6, s7)
    if whole < size:
        for m in range(TILE):
            scores[j + m] += dot(q, i, k, rows[t + m] + at, whole, size)


@njit(fastmath=FASTMATH, cache=True)
def score_tile(q, i, k, rows, t, at, size, scores, j):
    """scores[j : j + 8] = the dot products of q[i : i + size] with rows t to t + 8 of k."""
    if (
        size == KNOWN_SIZE
    ):  # a known size unrolls the inner loop: 1.6 times as fast on data in cache
        _score_sized(q, i, k, rows, t, at, KNOWN_SIZE, scores, j)
    else:
        _score_sized(q, i, k, rows, t, at, size, scores, j)


@njit(fastmath=FASTMATH, cache=True, forceinline=True)
def _weigh_sized(p, j, v, rows, t, at, size, acc, i):
    a0, a1, a2, a3 = rows[t] + at, rows[t + 1] + at, rows[t + 2] + at, rows[t + 3] + at
    a4, a5, a6, a7 = rows[t + 4] + at, rows[t + 5] + at, rows[t + 6] + at, rows[t + 7] + at
    p0, p1, p2, p3 = splat(p[j]), splat(p[j + 1]), splat(p[j + 2]), splat(p[j + 3])
    p4, p5, p6, p7 = splat(p[j + 4]), splat(p[j + 5]), splat(p[j + 6]), splat(p[j + 7])
    whole = size - size % CHUNK
    for d in range(0, whole, CHUNK):
        x, y = load(acc, i + d), load(acc, i + d + WIDTH)
        x, y = fma(p0, low(v, a0 + d), x), fma(p0, high(v, a0 + d), y)
        x, y = fma(p1, low(v, a1 + d), x), fma(p1, high(v, a1 + d), y)
        x, y = fma(p2, low(v, a2 + d), x), fma(p2, high(v, a2 + d), y)
        x, y = fma(p3, low(v, a3 + d), x), fma(p3, high(v, a3 + d), y)
        x, y = fma(p4, low(v, a4 + d), x), fma(p4, high(v, a4 + d), y)
        x, y = fma(p5, low(v, a5 + d), x), fma(p5, high(v, a5 + d), y)
        x, y = fma(p6, low(v, a6 + d), x), fma(p6, high(v, a6 + d), y)
        x, y = fma(p7, low(v, a7 + d), x), fma(p7, high(v, a7 + d), y)
        store(acc, i + d, x)
        store(acc, i + d + WIDTH, y)
    if whole < size:
        for m in range(TILE):
            weigh(p[j + m], v, rows[t + m] + at, whole, size, acc, i)


@njit(fastmath=FASTMATH, cache=True)
def weigh_tile(p, j, v, rows, t, at, size, acc, i):
    """acc[i : i + size] += p[j : j + 8] @ rows t to t + 8 of v."""
    if size == KNOWN_SIZE:
        _weigh_sized(p, j, v, rows, t, at, KNOWN_SIZE, acc, i)
    else:
        _weigh_sized(p, j, v, rows, t, at, size, acc, i)


@njit(fastmath=FASTMATH, cache=True)
def weights_of(scores, i, n):
    """Turn n base-2 scores from i on into weights, in place.

    Returns:
        The logarithm to base 2 of their sum, and 1 / their sum: whoever uses the weights divides
        by it. Where all scores are -inf: NaN and infinity, as 0 / 0 is for the reference.
    """
    if n == 0:
        return np.float32(-np.inf), np.float32(0.0)
    top = LOWEST
    whole = n - n % WIDTH
    if whole > 0:
        tops = load(scores, i)
        for t in range(WIDTH, whole, WIDTH):
            tops = maximum(tops, load(scores, i + t))
        top = max(top, largest(tops))
    for t in range(whole, n):
        top = max(top, scores[i + t])
    # the last vector is filled up with scores whose weight is 0
    last = n + (WIDTH - n % WIDTH) % WIDTH
    for t in range(n, last):
        scores[i + t] = -np.inf
    sums = zeros()
    for t in range(0, last, WIDTH):
        weights = exp2(subtract(load(scores, i + t), splat(top)))
        store(scores, i + t, weights)
        sums = fma(weights, splat(ONE), sums)
    summed = total(sums)
    if summed == ZERO:
        return np.float32(np.nan), np.float32(np.inf)
    return top + np.log2(summed), ONE / summed
