"""Attention of many queries to the same tokens on the CPU: two matrix products a tile of tokens.

A task is a run of query rows (queries x query heads of one KV head). It widens each tile of keys
and values to float32 once and takes both products of it with all its rows, which lie transposed:
rows are lanes of a vector, so largest score, sum and rescaling of the online softmax need nothing
across lanes. The rows of a prefill are a request's new tokens, of which each sees one token more
than the one before; those of a shared run are the requests that share it, which all see all of it.
"""

from typing import Any, NamedTuple

import numba
import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from apclab_kernels.cpu.cache import CACHED, drop_stale
from apclab_kernels.cpu.decode import LOG2_E, row_starts
from apclab_kernels.cpu.element import bits
from apclab_kernels.cpu.fold import LOWEST, NOTHING, TILE, fold_tile, widen_rows
from apclab_kernels.cpu.matrix import LANES, transpose
from apclab_kernels.cpu.merge import States
from apclab_kernels.cpu.spans import Sight, cut
from apclab_kernels.cpu.tile import FASTMATH, LN_2, ONE, give_out, give_state, take_query
from apclab_kernels.cpu.vector import WIDTH
from apclab_kernels.layout import Elements, Float32, Int32, cache_shape, strides_of


@njit(fastmath=FASTMATH, cache=CACHED)
def _take_queries(query, cells, size, padded, scale, lane_rows, q, lanes):
    """q[:, i] = the scaled query of cell i of [queries, num_heads]; 0 in lanes past the last."""
    for i in range(cells.size):
        take_query(query, cells[i] * size, size, scale, lane_rows, i * padded)
    lane_rows[cells.size * padded :] = NOTHING
    for v in range(0, lanes, WIDTH):
        for d in range(0, padded, WIDTH):
            transpose(lane_rows, v * padded + d, padded, q, d * lanes + v, lanes)


@njit(fastmath=FASTMATH, cache=CACHED)
def _give_rows(acc, lanes, top, total, cells, size, padded, lane_rows, slot, into):
    """Write the first lanes of acc to their cells: results, or states in the table's slot."""
    out, lse, acc_of, lse_of, _, num_slots = into
    for v in range(0, lanes, WIDTH):
        for d in range(0, padded, WIDTH):
            transpose(acc, d * lanes + v, lanes, lane_rows, v * padded + d, padded)
    for i in range(cells.size):
        # no weight at all: every score was -inf
        none = total[i] == NOTHING
        inverse = np.float32(np.inf) if none else ONE / total[i]
        log = np.float32(np.nan) if none else top[i] + np.log2(total[i])
        if num_slots == 0:
            give_out(lane_rows, i * padded, size, inverse, out, cells[i] * size)
            lse[cells[i]] = log * LN_2
        else:
            at = cells[i] * num_slots + slot
            lse_of[at] = give_state(lane_rows, i * padded, size, log, inverse, acc_of, at)


@njit(fastmath=FASTMATH, cache=CACHED)
def _work(query, k, v, sight, into, shape, scale, block_size, strides, tasks):
    """Tasks one after another, on one thread."""
    tables, lens, first_sees, queries, starts = sight
    num_heads, size, group, deep = shape
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
    cells = np.empty(deep * LANES, np.int64)  # of [queries, num_heads]
    sees = np.empty(deep * LANES, np.int64)  # tokens that each row sees; never less than the last
    for task in range(len(tasks)):
        table, h, lo, hi = tasks[task]
        for i in range(lo, hi):
            query_row = np.int64(queries[starts[table] + i // group])
            cells[i - lo] = query_row * num_heads + h * group + i % group
            sees[i - lo] = min(lens[table], first_sees[table] + i // group)
        most = sees[hi - 1 - lo]
        sees[hi - lo :] = most
        row_starts(rows, 0, tables[table], most, block_size, strides)
        for i in range(lo, hi, LANES):
            n, count = (i - lo) // LANES, min(LANES, hi - i)
            lanes = WIDTH if count <= WIDTH else LANES
            mine = cells[i - lo : i - lo + count]
            _take_queries(query, mine, size, padded, scale, lane_rows, q[n], lanes)
        acc[:] = NOTHING
        top[:] = LOWEST
        total[:] = NOTHING
        for first in range(0, most, TILE):
            last = min(first + TILE, most)
            widen_rows(k, v, rows[:most], first, last, h * strides[2], size, padded, keys, values)
            for i in range(lo, hi, LANES):
                n, count = (i - lo) // LANES, min(LANES, hi - i)
                lanes = WIDTH if count <= WIDTH else LANES
                some = min(last, sees[i - lo + count - 1]) - first
                if some <= 0:
                    continue
                clear = max(np.int64(0), min(some, sees[i - lo] - first))
                for lane in range(lanes):
                    limits[lane] = sees[i - lo + lane] - first
                fold_tile(
                    keys, values, size, padded, clear, some, limits[:lanes], q[n], acc[n], top[n],
                    total[n], scores, factor,
                )  # fmt: skip
        for i in range(lo, hi, LANES):
            n, count = (i - lo) // LANES, min(LANES, hi - i)
            lanes = WIDTH if count <= WIDTH else LANES
            mine = cells[i - lo : i - lo + count]
            slot = into[4][table]
            _give_rows(acc[n], lanes, top[n], total[n], mine, size, padded, lane_rows, slot, into)


@njit(parallel=True, fastmath=FASTMATH, cache=CACHED)
def _attend(query, k, v, sight, into, shape, scale, block_size, strides, tasks, spans):
    for span in prange(spans.size - 1):
        mine = tasks[spans[span] : spans[span + 1]]
        _work(query, k, v, sight, into, shape, scale, block_size, strides, mine)


class Into(NamedTuple):
    """Where the rows' results go, flat: out and lse if there are no slots, else states."""

    out: NDArray[Any]  # as `bits` gives it
    lse: Float32
    acc_of: Float32
    lse_of: Float32
    slots: Int32  # of each table
    num_slots: int  # of each query and head


def results(out: Elements, lse: Float32, tables: int) -> Into:
    """The rows of so many tables are results, and go to out and lse as they are."""
    none = np.empty(0, np.float32)
    return Into(bits(out).reshape(-1), lse.reshape(-1), none, none, np.zeros(tables, np.int32), 0)


def in_states(states: States, slots: Int32, query: Elements) -> Into:
    """The rows of table i are partial states, and go to slot slots[i] of each query and head."""
    return Into(
        bits(query[:0]).reshape(-1), np.empty(0, np.float32), states.acc.reshape(-1),
        states.lse.reshape(-1), slots, states.lse.shape[2],
    )  # fmt: skip


def bind(
    query: Elements,
    key_cache: Elements,
    value_cache: Elements,
    sight: Sight,
    into: Into,
    *,
    scale: float,
    layout: str,
    order: str,
) -> tuple[Any, ...]:
    """Arguments for `run`: everything that need not be done again at each call.

    Args:
        query: float32, float16 or bfloat16 [queries, num_heads, head_size], C-contiguous.
        key_cache: as in `reference.paged_attention_decode`, C-contiguous.
        value_cache: as key_cache.
        sight: which queries attend to which tokens.
        into: where the rows go.
        scale: factor of the scores.
        layout: "NHD" or "HND".
        order: as in `spans.cut`.
    """
    _, num_heads, size = query.shape
    cache = cache_shape(key_cache, layout)
    group = num_heads // cache.num_kv_heads
    tasks, spans = cut(
        sight, num_kv_heads=cache.num_kv_heads, group=group, order=order,
        threads=numba.get_num_threads(),
    )  # fmt: skip
    deep = -(-int((tasks[:, 3] - tasks[:, 2]).max()) // LANES)
    flat = (bits(array).reshape(-1) for array in (query, key_cache, value_cache))
    return (
        *flat, tuple(sight), tuple(into), (num_heads, size, group, deep),
        np.float32(scale * LOG2_E), cache.block_size, strides_of(key_cache, layout), tasks, spans,
    )  # fmt: skip


def run(arguments: tuple[Any, ...]) -> None:
    """Launch the kernel once: fills what `into` named."""
    _attend(*arguments)


drop_stale(_attend)
