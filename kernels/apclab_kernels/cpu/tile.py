"""Dot products and weighted sums over eight rows of a cache at a time, for numba kernels."""

import numpy as np
from numba import njit

from apclab_kernels.cpu.cache import CACHED
from apclab_kernels.cpu.element import (
    CHUNK,
    high,
    low,
    narrow,
    prefetch,
    prefetch_narrow,
    store_halves,
    widen,
)
from apclab_kernels.cpu.vector import (
    WIDTH,
    exp2,
    fma,
    largest,
    load,
    maximum,
    number_at,
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


@njit(fastmath=FASTMATH, cache=CACHED)
def take_query(query, at, size, scale, q, i):
    """q[i : i + size] = scaled query[at : at + size], split into halves as rows of a cache are."""
    whole = size - size % CHUNK
    for d in range(0, whole, CHUNK):
        store(q, i + d, fma(low(query, at + d), splat(scale), zeros()))
        store(q, i + d + WIDTH, fma(high(query, at + d), splat(scale), zeros()))
    for d in range(whole, size):
        q[i + d] = widen(query[at + d]) * scale


@njit(fastmath=FASTMATH, cache=CACHED)
def give_out(acc, i, size, factor, out, at):
    """out[at : at + size] = acc[i : i + size] * factor, its halves joined again."""
    whole = size - size % CHUNK
    for d in range(0, whole, CHUNK):
        first = fma(load(acc, i + d), splat(factor), zeros())
        second = fma(load(acc, i + d + WIDTH), splat(factor), zeros())
        store_halves(out, at + d, first, second)
    for d in range(whole, size):
        out[at + d] = narrow(out, acc[i + d] * factor)


@njit(fastmath=FASTMATH, cache=CACHED)
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


@njit(fastmath=FASTMATH, cache=CACHED)
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


@njit(fastmath=FASTMATH, cache=CACHED)
def weigh(p, v, at, start, size, acc, i):
    whole = size - size % CHUNK
    for d in range(start, whole, CHUNK):
        store(acc, i + d, fma(splat(p), low(v, at + d), load(acc, i + d)))
        store(acc, i + d + WIDTH, fma(splat(p), high(v, at + d), load(acc, i + d + WIDTH)))
    for d in range(whole, size):
        acc[i + d] += p * widen(v[at + d])


@njit(fastmath=FASTMATH, cache=CACHED, forceinline=True)
def score_eight(q, i, k, rows, t, at, ahead, whole, scores, j):
    """scores[j : j + 8] = the dot products of q[i : i + whole] with rows t to t + 8 of k."""
    a0, a1 = number_at(rows, t) + at, number_at(rows, t + 1) + at
    a2, a3 = number_at(rows, t + 2) + at, number_at(rows, t + 3) + at
    a4, a5 = number_at(rows, t + 4) + at, number_at(rows, t + 5) + at
    a6, a7 = number_at(rows, t + 6) + at, number_at(rows, t + 7) + at
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = zeros()
    for d in range(0, whole, CHUNK):
        prefetch_narrow(k, a0 + ahead + d)
        prefetch_narrow(k, a1 + ahead + d)
        prefetch_narrow(k, a2 + ahead + d)
        prefetch_narrow(k, a3 + ahead + d)
        prefetch_narrow(k, a4 + ahead + d)
        prefetch_narrow(k, a5 + ahead + d)
        prefetch_narrow(k, a6 + ahead + d)
        prefetch_narrow(k, a7 + ahead + d)
        x, y = load(q, i + d), load(q, i + d + WIDTH)
        s0 = fma(y, high(k, a0 + d), fma(x, low(k, a0 + d), s0))
        s1 = fma(y, high(k, a1 + d), fma(x, low(k, a1 + d), s1))
        s2 = fma(y, high(k, a2 + d), fma(x, low(k, a2 + d), s2))
        s3 = fma(y, high(k, a3 + d), fma(x, low(k, a3 + d), s3))
        s4 = fma(y, high(k, a4 + d), fma(x, low(k, a4 + d), s4))
        s5 = fma(y, high(k, a5 + d), fma(x, low(k, a5 + d), s5))
        s6 = fma(y, high(k, a6 + d), fma(x, low(k, a6 + d), s6))
        s7 = fma(y, high(k, a7 + d), fma(x, low(k, a7 + d), s7))
    store_totals(scores, j, 0, s0, s1, s2, s3, s4, s5, s6, s7)


@njit(fastmath=FASTMATH, cache=CACHED, forceinline=True)
def _score_heads(q, i, x0, x1, x2, x3, a, b, c, e):
    """Four dot products of one head go on: a, b, c, e += q[i : i + 16] * x0, x1, x2, x3."""
    y = load(q, i)
    return fma(y, x0, a), fma(y, x1, b), fma(y, x2, c), fma(y, x3, e)


@njit(fastmath=FASTMATH, cache=CACHED, forceinline=True)
def score_four(q, i, k, rows, t, at, ahead, whole, size, scores, j, longest):
    """Scores of four query heads with rows t to t + 4 of k, each row loaded and widened once."""
    a0, a1 = number_at(rows, t) + at, number_at(rows, t + 1) + at
    a2, a3 = number_at(rows, t + 2) + at, number_at(rows, t + 3) + at
    p0 = p1 = p2 = p3 = zeros()
    r0 = r1 = r2 = r3 = zeros()
    s0 = s1 = s2 = s3 = zeros()
    u0 = u1 = u2 = u3 = zeros()
    for d in range(0, whole, CHUNK):
        prefetch(k, a0 + ahead + d)
        prefetch(k, a1 + ahead + d)
        prefetch(k, a2 + ahead + d)
        prefetch(k, a3 + ahead + d)
        n = i + d
        x0, x1, x2, x3 = low(k, a0 + d), low(k, a1 + d), low(k, a2 + d), low(k, a3 + d)
        p0, p1, p2, p3 = _score_heads(q, n, x0, x1, x2, x3, p0, p1, p2, p3)
        r0, r1, r2, r3 = _score_heads(q, n + size, x0, x1, x2, x3, r0, r1, r2, r3)
        s0, s1, s2, s3 = _score_heads(q, n + 2 * size, x0, x1, x2, x3, s0, s1, s2, s3)
        u0, u1, u2, u3 = _score_heads(q, n + 3 * size, x0, x1, x2, x3, u0, u1, u2, u3)
        n += WIDTH
        x0, x1, x2, x3 = high(k, a0 + d), high(k, a1 + d), high(k, a2 + d), high(k, a3 + d)
        p0, p1, p2, p3 = _score_heads(q, n, x0, x1, x2, x3, p0, p1, p2, p3)
        r0, r1, r2, r3 = _score_heads(q, n + size, x0, x1, x2, x3, r0, r1, r2, r3)
        s0, s1, s2, s3 = _score_heads(q, n + 2 * size, x0, x1, x2, x3, s0, s1, s2, s3)
        u0, u1, u2, u3 = _score_heads(q, n + 3 * size, x0, x1, x2, x3, u0, u1, u2, u3)
    store_totals(scores, j, longest, p0, p1, p2, p3, r0, r1, r2, r3, s0, s1, s2, s3, u0, u1, u2, u3)


@njit(fastmath=FASTMATH, cache=CACHED, forceinline=True)
def weigh_eight(p, j, v, rows, t, at, ahead, whole, acc, i):
    """acc[i : i + whole] += p[j : j + 8] @ rows t to t + 8 of v."""
    a0, a1 = number_at(rows, t) + at, number_at(rows, t + 1) + at
    a2, a3 = number_at(rows, t + 2) + at, number_at(rows, t + 3) + at
    a4, a5 = number_at(rows, t + 4) + at, number_at(rows, t + 5) + at
    a6, a7 = number_at(rows, t + 6) + at, number_at(rows, t + 7) + at
    p0, p1 = splat(number_at(p, j)), splat(number_at(p, j + 1))
    p2, p3 = splat(number_at(p, j + 2)), splat(number_at(p, j + 3))
    p4, p5 = splat(number_at(p, j + 4)), splat(number_at(p, j + 5))
    p6, p7 = splat(number_at(p, j + 6)), splat(number_at(p, j + 7))
    for d in range(0, whole, CHUNK):
        prefetch_narrow(v, a0 + ahead + d)
        prefetch_narrow(v, a1 + ahead + d)
        prefetch_narrow(v, a2 + ahead + d)
        prefetch_narrow(v, a3 + ahead + d)
        prefetch_narrow(v, a4 + ahead + d)
        prefetch_narrow(v, a5 + ahead + d)
        prefetch_narrow(v, a6 + ahead + d)
        prefetch_narrow(v, a7 + ahead + d)
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


@njit(fastmath=FASTMATH, cache=CACHED, forceinline=True)
def _weigh_heads(p, j, longest, v, a, sums):
    """One row of v goes into the sums of four heads, a half of 32 elements each in x and y."""
    x0, y0, x1, y1, x2, y2, x3, y3 = sums
    x, y = low(v, a), high(v, a)
    p0, p1 = splat(number_at(p, j)), splat(number_at(p, j + longest))
    p2, p3 = splat(number_at(p, j + 2 * longest)), splat(number_at(p, j + 3 * longest))
    return (
        fma(p0, x, x0), fma(p0, y, y0), fma(p1, x, x1), fma(p1, y, y1),
        fma(p2, x, x2), fma(p2, y, y2), fma(p3, x, x3), fma(p3, y, y3),
    )  # fmt: skip


@njit(fastmath=FASTMATH, cache=CACHED, forceinline=True)
def weigh_four(p, j, longest, v, rows, t, at, ahead, whole, size, acc, i):
    """As `weigh_eight` for four query heads, each row loaded and widened once."""
    a0, a1 = number_at(rows, t) + at, number_at(rows, t + 1) + at
    a2, a3 = number_at(rows, t + 2) + at, number_at(rows, t + 3) + at
    a4, a5 = number_at(rows, t + 4) + at, number_at(rows, t + 5) + at
    a6, a7 = number_at(rows, t + 6) + at, number_at(rows, t + 7) + at
    for d in range(0, whole, CHUNK):
        prefetch(v, a0 + ahead + d)
        prefetch(v, a1 + ahead + d)
        prefetch(v, a2 + ahead + d)
        prefetch(v, a3 + ahead + d)
        prefetch(v, a4 + ahead + d)
        prefetch(v, a5 + ahead + d)
        prefetch(v, a6 + ahead + d)
        prefetch(v, a7 + ahead + d)
        n, e = i + d, i + d + WIDTH
        sums = (
            load(acc, n), load(acc, e), load(acc, n + size), load(acc, e + size),
            load(acc, n + 2 * size), load(acc, e + 2 * size),
            load(acc, n + 3 * size), load(acc, e + 3 * size),
        )  # fmt: skip
        sums = _weigh_heads(p, j, longest, v, a0 + d, sums)
        sums = _weigh_heads(p, j + 1, longest, v, a1 + d, sums)
        sums = _weigh_heads(p, j + 2, longest, v, a2 + d, sums)
        sums = _weigh_heads(p, j + 3, longest, v, a3 + d, sums)
        sums = _weigh_heads(p, j + 4, longest, v, a4 + d, sums)
        sums = _weigh_heads(p, j + 5, longest, v, a5 + d, sums)
        sums = _weigh_heads(p, j + 6, longest, v, a6 + d, sums)
        sums = _weigh_heads(p, j + 7, longest, v, a7 + d, sums)
        store(acc, n, sums[0])
        store(acc, e, sums[1])
        store(acc, n + size, sums[2])
        store(acc, e + size, sums[3])
        store(acc, n + 2 * size, sums[4])
        store(acc, e + 2 * size, sums[5])
        store(acc, n + 3 * size, sums[6])
        store(acc, e + 3 * size, sums[7])


@njit(fastmath=FASTMATH, cache=CACHED)
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
