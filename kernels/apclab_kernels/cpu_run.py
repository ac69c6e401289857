"""One run of blocks for all its queries at once, on the CPU: two matrix products and a softmax.

A task is a run, a KV head and some of the queries, which are the lanes. It widens a tile of keys
and values once, then goes through its lanes 32 at a time: scores, their maximum so far, weights,
weighted values, all in arrays of rows of 32 lanes that stay near.
"""

import numpy as np
from numba import njit

from apclab_kernels.cpu_cache import CACHED
from apclab_kernels.cpu_product import (
    ROWS,
    add_product_1,
    add_product_2,
    product_1,
    product_2,
    transpose,
)
from apclab_kernels.cpu_tile import FASTMATH, ONE, take_query
from apclab_kernels.cpu_vector import (
    WIDTH,
    add,
    exp2,
    fma,
    largest,
    load,
    maximum,
    multiply,
    prefetch,
    splat,
    store,
    subtract,
    zeros,
)

LANES = 2 * WIDTH  # queries that a register tile takes
TOKENS = 64  # keys and values of a head that are widened at a time
# tokens that are asked for before they are widened: rows of NHD lie far apart, and without it 64
# requests that share all took 4.4 ms for keys and values in DRAM, with it 2.5 (float32)
AHEAD = 16
STEP = np.int64(1)
START = np.int64(0)
NOTHING = np.float32(-np.inf)
# stands for -inf where it is subtracted
LOWEST = np.float32(-3.0e38)


@njit(fastmath=FASTMATH, cache=CACHED)
def _take_tokens(k, v, blocks, first, last, block_size, strides, at, size, stride, keys, values):
    """Widen tokens first to last of one head: rows of `stride` in keys and values."""
    line = 64 // k.itemsize
    for t in range(first, last):
        ahead = t + AHEAD
        if ahead < blocks.size * block_size:
            to = np.int64(blocks[ahead // block_size]) * strides[0]
            to += (ahead % block_size) * strides[1] + at
            for d in range(0, size, line):
                prefetch(k, to + d)
                prefetch(v, to + d)
        row = np.int64(blocks[t // block_size]) * strides[0] + (t % block_size) * strides[1] + at
        take_query(k, row, size, ONE, keys, (t - first) * stride)
        take_query(v, row, size, ONE, values, (t - first) * stride)


@njit(fastmath=FASTMATH, cache=CACHED)
def _scores(keys, queries, at, width, count, size, stride, s):
    """Write keys [count, size] @ queries [size, width] to s [count, width]."""
    for t in range(0, count, ROWS):
        if width == LANES:
            product_2(keys, t * stride, stride, STEP, queries, at, size, LANES, s, t * LANES)
        else:
            product_1(keys, t * stride, stride, STEP, queries, at, size, WIDTH, s, t * WIDTH)


@njit(fastmath=FASTMATH, cache=CACHED)
def _weigh_values(values, s, width, count, stride, acc, at):
    """Add values [count, stride], transposed, @ s [count, width] to acc [stride, width]."""
    for d in range(0, stride, ROWS):
        if width == LANES:
            to = at + d * LANES
            add_product_2(values, d, STEP, stride, s, START, count, LANES, acc, to)
        else:
            to = at + d * WIDTH
            add_product_1(values, d, STEP, stride, s, START, count, WIDTH, acc, to)


@njit(fastmath=FASTMATH, cache=CACHED)
def _weights(s, width, count, stride, tops, sums, lane, acc, at):
    """Turn base-2 scores s [count, width] into weights; tops, sums and acc move with the maximum.

    Of each lane tops is the largest score so far, and the weights of all tokens so far are
    relative to it.
    """
    for w in range(0, width, WIDTH):
        old = load(tops, lane + w)
        a, b, c, d = old, load(s, width + w), load(s, 2 * width + w), load(s, 3 * width + w)
        a = maximum(a, load(s, w))
        for t in range(4, count, 4):  # four chains, since each maximum takes four cycles
            a = maximum(a, load(s, t * width + w))
            b = maximum(b, load(s, (t + 1) * width + w))
            c = maximum(c, load(s, (t + 2) * width + w))
            d = maximum(d, load(s, (t + 3) * width + w))
        new = maximum(maximum(a, b), maximum(c, d))
        base = maximum(new, splat(LOWEST))
        summed = load(sums, lane + w)
        if largest(subtract(new, old)) > 0:
            factor = exp2(subtract(old, base))
            summed = multiply(summed, factor)
            for i in range(stride):
                store(acc, at + i * width + w, multiply(load(acc, at + i * width + w), factor))
            store(tops, lane + w, new)
        more = zeros()
        for t in range(0, count, 2):
            p = exp2(subtract(load(s, t * width + w), base))
            q = exp2(subtract(load(s, (t + 1) * width + w), base))
            store(s, t * width + w, p)
            store(s, (t + 1) * width + w, q)
            summed = add(summed, p)
            more = add(more, q)
        store(sums, lane + w, add(summed, more))


@njit(fastmath=FASTMATH, cache=CACHED)
def attend_run(
    query, k, v, requests, blocks, lanes, head, shape, scale, block_size, strides, states, slot
):
    """Leave the partial states of lanes lanes[0] to lanes[1] of one run and KV head.

    Lane i is request i // group of the run and query head i % group of the KV head. The states go
    to slot `slot` of each request and head, as `cpu_merge.States` describes them.
    """
    num_heads, size, group = shape
    acc_of, lse_of, slots = states
    first, last = lanes
    count = -(-(last - first) // WIDTH) * WIDTH
    stride = -(-size // WIDTH) * WIDTH  # of a row of keys and values, filled up to whole vectors
    tokens = blocks.size * block_size
    queries = np.empty(count * stride, np.float32)
    acc = np.zeros(count * stride, np.float32)
    tops = np.full(count, NOTHING, np.float32)
    sums = np.zeros(count, np.float32)
    rows = np.zeros(WIDTH * stride, np.float32)
    for lane in range(0, count, WIDTH):
        for i in range(min(WIDTH, last - first - lane)):
            j = first + lane + i
            at = (requests[j // group] * num_heads + head * group + j % group) * size
            take_query(query, at, size, scale, rows, i * stride)
        at, width = _place(lane, count, stride)
        for d in range(0, stride, WIDTH):
            transpose(rows, d, stride, queries, at + d * width, width)
    keys = np.zeros(TOKENS * stride, np.float32)
    values = np.zeros(TOKENS * stride, np.float32)
    s = np.empty(TOKENS * LANES, np.float32)
    for t in range(0, tokens, TOKENS):
        many = min(TOKENS, tokens - t)
        padded = -(-many // ROWS) * ROWS
        _take_tokens(
            k, v, blocks, t, t + many, block_size, strides, head * strides[2], size, stride,
            keys, values,
        )  # fmt: skip
        values[many * stride : padded * stride] = np.float32(0.0)
        for lane in range(0, count, LANES):
            at, width = _place(lane, count, stride)
            _scores(keys, queries, at, width, padded, size, stride, s)
            s[many * width : padded * width] = NOTHING
            _weights(s, width, padded, stride, tops, sums, lane, acc, at)
            _weigh_values(values, s, width, padded, stride, acc, at)
    for lane in range(0, count, WIDTH):
        at, width = _place(lane, count, stride)
        for d in range(0, stride, WIDTH):
            transpose(acc, at + d * width, width, rows, d, stride)
        for i in range(min(WIDTH, last - first - lane)):
            j = first + lane + i
            to = (requests[j // group] * num_heads + head * group + j % group) * slots + slot
            summed = sums[lane + i]
            if summed == 0:  # every score is -inf: as if there were no tokens
                lse_of[to] = NOTHING
                continue
            lse_of[to] = tops[lane + i] + np.log2(summed)
            _give_row(rows, i * stride, size, ONE / summed, acc_of, to * size)


@njit(fastmath=FASTMATH, cache=CACHED)
def _place(lane, count, stride):
    """Where lane's first element lies in arrays of rows of 32 lanes, and how wide its rows are.

    The last lanes have rows of 16 if there are no more.
    """
    start = lane - lane % LANES
    width = min(LANES, count - start)
    return start * stride + lane % LANES, width


@njit(fastmath=FASTMATH, cache=CACHED)
def _give_row(rows, at, size, factor, out, to):
    whole = size - size % WIDTH
    for d in range(0, whole, WIDTH):
        store(out, to + d, fma(load(rows, at + d), splat(factor), zeros()))
    for d in range(whole, size):
        out[to + d] = rows[at + d] * factor
