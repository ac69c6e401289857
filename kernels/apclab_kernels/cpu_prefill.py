"""Prefill with a cached prefix on the CPU, compiled by numba: measured; the truth is elsewhere.

New tokens attend to cached blocks and causally to themselves. A task is a run of query rows (new
tokens x query heads of one KV head). It widens each tile of keys and values to float32 once and
takes both products of it with all its rows, which lie transposed: rows are lanes of a vector, so
largest score, sum and rescaling of the online softmax need nothing across lanes.
"""

from typing import Any

import numba
import numpy as np
from numba import njit, prange

from apclab_kernels.cpu_cache import CACHED, drop_stale
from apclab_kernels.cpu_causal import (
    BLOCK,
    LANES,
    below,
    columns_product_16,
    columns_product_32,
    rows_product_16,
    rows_product_32,
    transpose,
)
from apclab_kernels.cpu_decode import LOG2_E, row_starts, strides_of
from apclab_kernels.cpu_element import CHUNK, bits, high, low, widen
from apclab_kernels.cpu_spans import cut
from apclab_kernels.cpu_tile import FASTMATH, LN_2, ONE, give_out, take_query
from apclab_kernels.cpu_vector import (
    WIDTH,
    exp2,
    fma,
    load,
    maximum,
    splat,
    store,
    subtract,
    zeros,
)
from apclab_kernels.reference import Elements, Int32

# keys and values side by side; both widened are 64 KiB at head size 128. 32 and 128 were as fast
# for 300 tokens, 32 slower by a quarter for 2048
TILE = 64
LOWEST = np.float32(-np.inf)
NOTHING = np.float32(0.0)


@njit(fastmath=FASTMATH, cache=CACHED)
def _widen_rows(cache, rows, at, size, padded, tile):
    """tile[t] = the cache's elements from rows[t] + at on, split into halves as queries are."""
    # asking for the next tile's rows ahead (llvm.prefetch) gained nothing: 6.4 ms in place of 6.5
    # for 300 new tokens of 40 heads in float32
    whole = size - size % CHUNK
    for t in range(rows.size):
        row, to = rows[t] + at, t * padded
        for d in range(0, whole, CHUNK):
            store(tile, to + d, low(cache, row + d))
            store(tile, to + d + WIDTH, high(cache, row + d))
        for d in range(whole, size):
            tile[to + d] = widen(cache[row + d])


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
    for v in range(0, lanes, WIDTH):
        seen = load(limits, v)
        old = load(top, v)
        new = old
        for t in range(clear):
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
            sums = fma(weights, splat(ONE), sums)
        rescale = exp2(subtract(old, base))
        store(factor, v, rescale)
        store(total, v, fma(load(total, v), rescale, sums))


@njit(fastmath=FASTMATH, cache=CACHED)
def _attend_tile(keys, values, size, padded, count, limits, q, acc, top, total, scores, factor):
    """One tile of keys and values for the LANES or fewer rows of q; brings acc up to date.

    q and acc are [padded, lanes], keys and values [TILE, padded].
    """
    lanes = limits.size
    least, most = limits.min(), limits.max()
    count = min(count, np.int64(most))
    clear = min(count, max(np.int64(0), np.int64(least)))
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


@njit(fastmath=FASTMATH, cache=CACHED)
def _row_of(i, base, heads):
    """Index in [num_tokens, num_heads] of row i of a request and KV head, whose first is base."""
    num_heads, group = heads
    return base + (i // group) * num_heads + i % group


@njit(fastmath=FASTMATH, cache=CACHED)
def _take_queries(query, first, base, heads, count, size, padded, scale, lane_rows, q, lanes):
    """q[:, i] = scaled query of row first + i."""
    for i in range(count):
        at = _row_of(first + i, base, heads) * size
        take_query(query, at, size, scale, lane_rows, i * padded)
    lane_rows[count * padded :] = NOTHING
    for v in range(0, lanes, WIDTH):
        for d in range(0, padded, WIDTH):
            transpose(lane_rows, v * padded + d, padded, q, d * lanes + v, lanes)


@njit(fastmath=FASTMATH, cache=CACHED)
def _give_rows(acc, lanes, count, top, total, first, base, heads, size, padded, lane_rows, out,
               lse):  # fmt: skip
    """Write rows first to first + count, the first lanes of acc, to out and lse."""
    for v in range(0, lanes, WIDTH):
        for d in range(0, padded, WIDTH):
            transpose(acc, d * lanes + v, lanes, lane_rows, v * padded + d, padded)
    for i in range(count):
        row = _row_of(first + i, base, heads)
        give_out(lane_rows, i * padded, size, ONE / total[i], out, row * size)
        # no weight at all: every score was -inf
        lse[row] = (
            (top[i] + np.log2(total[i])) * LN_2 if total[i] != NOTHING else np.float32(np.nan)
        )


@njit(fastmath=FASTMATH, cache=CACHED)
def _work(query, k, v, tables, lens, starts, out, lse, shape, scale, block_size, strides, tasks):
    """Tasks one after another, on one thread."""
    num_heads, size, group, deep = shape
    heads = (num_heads, group)
    padded = -(-size // WIDTH) * WIDTH
    keys = np.zeros(TILE * padded, np.float32)
    values = np.zeros(TILE * padded, np.float32)
    scores = np.empty(TILE * LANES, np.float32)
    lane_rows = np.empty(LANES * padded, np.float32)
    q = np.empty((deep, LANES * padded), np.float32)
    acc = np.empty((deep, LANES * padded), np.float32)
    top = np.empty((deep, LANES), np.float32)
    total = np.empty((deep, LANES), np.float32)
    limits = np.empty(LANES, np.float32)
    factor = np.empty(LANES, np.float32)
    rows = np.empty(lens.max(), np.int64)
    for task in range(len(tasks)):
        r, h, lo, hi = tasks[task]
        seen = lens[r] - (starts[r + 1] - starts[r]) + 1  # tokens that the first new one sees
        most = seen + (hi - 1) // group
        base = np.int64(starts[r]) * num_heads + h * group
        row_starts(rows, 0, tables[r], most, block_size, strides)
        for i in range(lo, hi, LANES):
            n, count = (i - lo) // LANES, min(LANES, hi - i)
            lanes = WIDTH if count <= WIDTH else LANES
            _take_queries(query, i, base, heads, count, size, padded, scale, lane_rows, q[n], lanes)
        acc[:] = NOTHING
        top[:] = LOWEST
        total[:] = NOTHING
        for first in range(0, most, TILE):
            here = rows[first : min(first + TILE, most)]
            _widen_rows(k, here, h * strides[2], size, padded, keys)
            _widen_rows(v, here, h * strides[2], size, padded, values)
            for i in range(lo, hi, LANES):
                n, count = (i - lo) // LANES, min(LANES, hi - i)
                lanes = WIDTH if count <= WIDTH else LANES
                if first >= seen + (i + count - 1) // group:
                    continue
                for lane in range(lanes):
                    row = min(i + lane, hi - 1)
                    limits[lane] = max(np.int64(0), seen + row // group - first)
                _attend_tile(
                    keys, values, size, padded, here.size, limits[:lanes], q[n], acc[n], top[n],
                    total[n], scores, factor,
                )  # fmt: skip
        for i in range(lo, hi, LANES):
            n, count = (i - lo) // LANES, min(LANES, hi - i)
            lanes = WIDTH if count <= WIDTH else LANES
            _give_rows(
                acc[n], lanes, count, top[n], total[n], i, base, heads, size, padded, lane_rows,
                out, lse,
            )  # fmt: skip


@njit(parallel=True, fastmath=FASTMATH, cache=CACHED)
def _prefill(query, k, v, tables, lens, starts, out, lse, shape, scale, block_size, strides,
             tasks, spans):  # fmt: skip
    for span in prange(spans.size - 1):
        mine = tasks[spans[span] : spans[span + 1]]
        _work(query, k, v, tables, lens, starts, out, lse, shape, scale, block_size, strides, mine)


def bind(
    query: Elements,
    key_cache: Elements,
    value_cache: Elements,
    block_tables: Int32,
    seq_lens: Int32,
    query_start_loc: Int32,
    out: Elements,
    lse: Elements,
    *,
    scale: float,
    layout: str = "NHD",
    order: str = "request",
) -> tuple[Any, ...]:
    """Arguments for `run`: everything that need not be done again at each call.

    Shapes and dtypes as in `reference.paged_attention_prefill`; all arrays C-contiguous. `out` has
    the dtype of the query, lse is float32 [num_tokens, num_heads].
    """
    _, num_heads, size = query.shape
    num_kv_heads = key_cache.shape[2 if layout == "NHD" else 1]
    block_size = key_cache.shape[1 if layout == "NHD" else 2]
    group = num_heads // num_kv_heads
    tasks, spans = cut(
        seq_lens, query_start_loc, num_kv_heads=num_kv_heads, group=group, order=order,
        threads=numba.get_num_threads(),
    )  # fmt: skip
    deep = -(-int((tasks[:, 3] - tasks[:, 2]).max()) // LANES)
    flat = [bits(array).reshape(-1) for array in (query, key_cache, value_cache, out)]
    return (
        *flat[:3], block_tables, seq_lens, query_start_loc, flat[3], lse.reshape(-1),
        (num_heads, size, group, deep), np.float32(scale * LOG2_E), block_size,
        strides_of(key_cache, layout), tasks, spans,
    )  # fmt: skip


def run(arguments: tuple[Any, ...]) -> None:
    """Launch the kernel once: fills the `out` and `lse` that were bound."""
    _prefill(*arguments)


drop_stale(_prefill)
