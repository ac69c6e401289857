"""One tile of keys and values folded into the state of many query rows, for numba kernels.

The rows lie side by side as lanes of vectors. A state is what the online softmax keeps of a row:
the largest score so far, the sum of weights and the weighted sum of values.
"""

import numpy as np
from numba import njit

from apclab_kernels.cpu.cache import CACHED
from apclab_kernels.cpu.element import CHUNK, high, low, prefetch, widen
from apclab_kernels.cpu.matrix import (
    BLOCK,
    below,
    columns_product_16,
    columns_product_32,
    rows_product_16,
    rows_product_32,
)
from apclab_kernels.cpu.tile import FASTMATH
from apclab_kernels.cpu.vector import (
    WIDTH,
    add,
    exp2,
    fma,
    load,
    maximum,
    splat,
    store,
    subtract,
    zeros,
)

# keys and values side by side; both widened are 64 KiB at head size 128. 32 and 128 were as fast
# for 300 tokens, 32 slower by a quarter for 2048
TILE = 64
# tokens that are asked for before they are widened: rows of NHD lie far apart, and without it 64
# requests that share all took 4.4 ms for keys and values in DRAM, with it 2.5 (float32)
AHEAD = 16
LOWEST = np.float32(-np.inf)
NOTHING = np.float32(0.0)


@njit(fastmath=FASTMATH, cache=CACHED)
def widen_rows(k, v, rows, first, last, at, size, padded, keys, values):
    """keys[t], values[t] = the caches' elements from rows[first + t] + at on, halves split."""
    whole = size - size % CHUNK
    for t in range(first, last):
        ahead = t + AHEAD
        if ahead < rows.size:
            for d in range(0, size, CHUNK):
                prefetch(k, rows[ahead] + at + d)
                prefetch(v, rows[ahead] + at + d)
        row, to = rows[t] + at, (t - first) * padded
        for d in range(0, whole, CHUNK):
            store(keys, to + d, low(k, row + d))
            store(keys, to + d + WIDTH, high(k, row + d))
            store(values, to + d, low(v, row + d))
            store(values, to + d + WIDTH, high(v, row + d))
        for d in range(whole, size):
            keys[to + d] = widen(k[row + d])
            values[to + d] = widen(v[row + d])


@njit(fastmath=FASTMATH, cache=CACHED)
def _soften(scores, lanes, count, clear, limits, top, total, factor):
    """Turn a tile's scores into weights; bring top and total of the lanes up to date.

    Args:
        scores: base 2, [count, lanes].
        lanes: rows side by side.
        count: tokens of the tile.
        clear: tokens of the tile that all lanes see.
        limits: tokens of the tile that each lane sees, float32.
        top: largest score so far, -inf at first.
        total: sum of weights so far.
        factor: receives what earlier sums are to be multiplied with.
    """
    fours = clear - clear % 4
    for v in range(0, lanes, WIDTH):
        seen = load(limits, v)
        old = load(top, v)
        a = b = c = d = old
        for t in range(0, fours, 4):  # four chains, since each maximum takes four cycles
            a = maximum(a, load(scores, t * lanes + v))
            b = maximum(b, load(scores, (t + 1) * lanes + v))
            c = maximum(c, load(scores, (t + 2) * lanes + v))
            d = maximum(d, load(scores, (t + 3) * lanes + v))
        new = maximum(maximum(a, b), maximum(c, d))
        for t in range(fours, clear):
            new = maximum(new, load(scores, t * lanes + v))
        for t in range(clear, count):
            x = below(np.float32(t), seen, load(scores, t * lanes + v), splat(LOWEST))
            store(scores, t * lanes + v, x)
            new = maximum(new, x)
        store(top, v, new)
        # a lane that has seen nothing but -inf: -inf - 0, not -inf - -inf
        base = below(LOWEST, new, new, zeros())
        sums = zeros()
        for t in range(count):
            weights = exp2(subtract(load(scores, t * lanes + v), base))
            store(scores, t * lanes + v, weights)
            sums = add(sums, weights)
        rescale = exp2(subtract(old, base))
        store(factor, v, rescale)
        store(total, v, fma(load(total, v), rescale, sums))


@njit(fastmath=FASTMATH, cache=CACHED)
def fold_tile(keys, values, size, padded, clear, count, limits, q, acc, top, total, scores, factor):
    """One tile of keys and values for the LANES or fewer rows of q; brings acc up to date.

    q and acc are [padded, lanes], keys and values [TILE, padded]. The rest as in `_soften`.
    """
    lanes = limits.size
    for t in range(0, count, BLOCK):
        if lanes == WIDTH:
            rows_product_16(keys, t * padded, padded, q, 0, size, scores, t * lanes)
        else:
            rows_product_32(keys, t * padded, padded, q, 0, size, scores, t * lanes)
    _soften(scores, lanes, count, clear, limits, top, total, factor)
    for d in range(0, padded, BLOCK):
        if lanes == WIDTH:
            columns_product_16(
                values, d, padded, scores, 0, clear, count, limits, factor, acc, d * lanes
            )
        else:
            columns_product_32(
                values, d, padded, scores, 0, clear, count, limits, factor, acc, d * lanes
            )
