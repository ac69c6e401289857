"""Paged-attention decode on the CPU, prefix-aware: a shared run is read once for all its queries.

Runs become partial states by matrix products (`cpu_run`), what lies behind them by the paged kernel
over tables that begin there, and the states of a request are merged (`cpu_merge`).
"""

from itertools import pairwise
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import njit, prange

from apclab_kernels import cpu_decode, cpu_merge
from apclab_kernels.cpu_cache import CACHED, drop_stale
from apclab_kernels.cpu_element import bits
from apclab_kernels.cpu_run import LANES, attend_run
from apclab_kernels.cpu_tile import FASTMATH
from apclab_kernels.reference import Elements, Int32
from apclab_kernels.runs import Runs

# queries of one task: their states, 2 * 512 * 128 * 4 bytes, stay in half of a 2 MiB L2
MOST_LANES = 512


@njit(parallel=True, fastmath=FASTMATH, cache=CACHED)
def _attend_runs(
    query, k, v, requests, blocks, pieces, kv_heads, shape, scale, block_size, strides, states
):
    group = shape[2]
    # heads outside: each thread gets as much of every run
    for task in prange(kv_heads * len(pieces)):
        head, piece = task // len(pieces), pieces[task % len(pieces)]
        attend_run(
            query, k, v, requests[piece[0] : piece[1]], blocks[piece[2] : piece[3]],
            (piece[5] * group, piece[6] * group), head,
            shape, scale, block_size, strides, states, piece[4],
        )  # fmt: skip


class Bound(NamedTuple):
    """Arguments of the three launches: runs, tails, merge; None where there is nothing to do."""

    runs: tuple[Any, ...] | None
    tails: Any
    merge: Any


def bind(
    query: Elements,
    key_cache: Elements,
    value_cache: Elements,
    block_tables: Int32,
    seq_lens: Int32,
    out: Elements,
    lse: Elements,
    *,
    scale: float,
    layout: str = "NHD",
    order: str = "request",
    runs: Runs,
) -> Bound:
    """Arguments for `run`: everything that need not be done again at each call.

    Shapes and dtypes as in `reference.paged_attention_decode`; all arrays C-contiguous. `out` has
    the dtype of the query, lse is float32 [batch, num_heads]. `runs` are those of the tables, as
    from `runs.find_runs`; tables and lengths are taken as they are now. `order` is that of the
    tails' kernel.
    """
    batch, num_heads, size = query.shape
    axes = (1, 2) if layout == "NHD" else (2, 1)
    block_size, num_kv_heads = (key_cache.shape[axis] for axis in axes)
    group = num_heads // num_kv_heads
    slots = _slots(runs, batch)
    tail_lens = (seq_lens - runs.tail_starts).astype(np.int32)
    parts = int(slots.max(initial=-1)) + 1
    has_tails = bool(tail_lens.any()) or not parts
    states = cpu_merge.no_states(batch, num_heads, parts + has_tails, size)
    tails = None
    if has_tails:
        tables = tail_tables(block_tables, runs.tail_starts // block_size)
        tails = cpu_decode.bind_states(
            query, key_cache, value_cache, tables, tail_lens, states, parts,
            scale=scale, layout=layout, order=order,
        )  # fmt: skip
    merge = cpu_merge.bind(states, out, lse)
    if not runs.runs:
        return Bound(None, tails, merge)
    flat = [bits(array).reshape(-1) for array in (query, key_cache, value_cache)]
    products = (
        *flat,
        np.concatenate([run.requests for run in runs.runs]),
        np.concatenate([run.blocks for run in runs.runs]),
        _pieces(runs, slots, group, num_kv_heads), num_kv_heads, (num_heads, size, group),
        np.float32(scale * cpu_decode.LOG2_E), block_size,
        cpu_decode.strides_of(key_cache, layout),
        (states.acc.reshape(-1), states.lse.reshape(-1), parts + has_tails),
    )  # fmt: skip
    return Bound(products, tails, merge)


def run(bound: Bound) -> None:
    """Launch the kernels once: fills the `out` and `lse` that were bound."""
    if bound.runs is not None:
        _attend_runs(*bound.runs)
    if bound.tails is not None:
        cpu_decode.run(bound.tails)
    cpu_merge.run(bound.merge)


def tail_tables(block_tables: Int32, skipped: Int32) -> Int32:
    """Block tables without the first columns of each row: int32 [batch, most columns left].

    Args:
        block_tables: int32 [batch, max_blocks].
        skipped: int32 [batch], columns.
    """
    left = max(1, block_tables.shape[1] - int(skipped.min(initial=0)))
    # [batch, left]
    columns = np.minimum(skipped[:, None] + np.arange(left), block_tables.shape[1] - 1)
    return np.take_along_axis(block_tables, columns, axis=1)


def _slots(runs: Runs, batch: int) -> Int32:
    """Which state of its requests each run makes: 0 for the first of a request, then 1."""
    seen = np.zeros(batch, np.int32)
    slots = np.empty(len(runs.runs), np.int32)
    for i, one in enumerate(runs.runs):
        slots[i] = seen[one.requests].max()
        seen[one.requests] += 1
    return slots


def _pieces(runs: Runs, slots: Int32, group: int, num_kv_heads: int) -> Any:
    """The tasks of one KV head, int64 [n, 7]: slices of requests and blocks, slot, requests taken.

    A run is cut where its queries are too many for the cache, or its tasks too few for the threads.
    """
    pieces = []
    lo = first = 0
    wanted = -(-2 * numba.get_num_threads() // (num_kv_heads * len(runs.runs)))
    for one, slot in zip(runs.runs, slots, strict=True):
        many = len(one.requests)
        hi, last = lo + many, first + len(one.blocks)
        cuts = max(-(-many * group // MOST_LANES), min(wanted, many * group // LANES), 1)
        ends = np.linspace(0, many, min(cuts, many) + 1).astype(np.int64)
        pieces += [(lo, hi, first, last, slot, start, end) for start, end in pairwise(ends)]
        lo, first = hi, last
    return np.array(pieces, np.int64)


drop_stale(_attend_runs)
