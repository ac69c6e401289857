"""Paged-attention decode on the CPU, compiled by numba: measured, so fast; the truth is elsewhere.

A task is a run of requests times a run of KV heads. `order="request"` gives each thread its
requests with all their heads, `order="head"` a few heads at a time through all requests; the
machine code is the same, as it is for two orders of thread blocks on a GPU. A task goes through its
requests in bundles, token tile by token tile, as thread blocks that run side by side would: what
the requests of a bundle share is still near when the next of them reads it.
"""

from typing import Any, NamedTuple

import numba
import numpy as np
from numba import njit, prange

from apclab_kernels.cpu import merge
from apclab_kernels.cpu.attend import aligned, attend
from apclab_kernels.cpu.cache import CACHED, drop_stale
from apclab_kernels.cpu.cut import Tasks, cut, number_of_tasks, split_tables, task_range
from apclab_kernels.cpu.element import bits
from apclab_kernels.cpu.tile import FASTMATH, LN_2, TILE, give_out, give_state, take_query
from apclab_kernels.cpu.vector import WIDTH
from apclab_kernels.layout import Elements, Int32, cache_shape, strides_of

# a tile of so many heads goes through the requests of a bundle at a time, within half an L1
CHUNK_BYTES = 2**14
LOG2_E = float(np.log2(np.e))
# requests side by side: with 18 of 19 blocks shared 8 took 0.84 of the time of 4 in float32 and
# 0.97 in bfloat16; with private blocks they are equal
BUNDLE = 8


@njit(cache=CACHED)
def row_starts(rows, i, table, n, block_size, strides):
    """rows[i + t] = index of token t's first element in a cache, head 0."""
    for b in range((n + block_size - 1) // block_size):
        start = np.int64(table[b]) * strides[0]
        for t in range(b * block_size, min(b * block_size + block_size, n)):
            rows[i + t] = start + (t - b * block_size) * strides[1]


@njit(parallel=True, fastmath=FASTMATH, cache=CACHED)
def _decode(
    query, k, v, tables, lens, out, lse, shape, scale, block_size, strides, tasks,
    acc_of, lse_of, slots,
):  # fmt: skip
    batch, num_heads, size, group = shape
    kv_heads = num_heads // group
    parts, first_slot, num_slots = slots  # a row of the tables is a part of a request
    longest = (lens.max() // WIDTH + 1) * WIDTH  # scores are filled up to whole vectors
    for task in prange(number_of_tasks(tasks, batch, kv_heads)):
        first, last, lo, hi = task_range(task, tasks, batch, kv_heads)
        count = (hi - lo) * group
        rows = np.empty(BUNDLE * longest, np.int64)
        s = aligned(BUNDLE * count * longest)
        acc = aligned(BUNDLE * count * size)
        q = aligned(BUNDLE * count * size)
        chunk = max(1, CHUNK_BYTES // (TILE * size * k.itemsize))
        sums = np.empty(BUNDLE * count, np.float32)
        inverse = np.empty(BUNDLE * count, np.float32)
        for start in range(first, last, BUNDLE):
            end = min(start + BUNDLE, last)
            for i in range((end - start) * count):
                r, head = start + i // count, lo * group + i % count
                take_query(query, (r // parts * num_heads + head) * size, size, scale, q, i * size)
            for r in range(start, end):
                row_starts(rows, (r - start) * longest, tables[r], lens[r], block_size, strides)
            attend(
                k, v, rows, lens[start:end], strides[2], (lo, hi, chunk), group, size, longest,
                q, s, acc, sums, inverse,
            )  # fmt: skip
            for i in range((end - start) * count):
                r, head = start + i // count, lo * group + i % count
                at = r // parts * num_heads + head
                if num_slots == 0:
                    give_out(acc, i * size, size, inverse[i], out, at * size)
                    lse[at] = sums[i] * LN_2
                else:
                    at = at * num_slots + first_slot + r % parts
                    lse_of[at] = give_state(acc, i * size, size, sums[i], inverse[i], acc_of, at)


def set_threads(threads: int | None = None) -> int:
    """Set how many threads the kernels use when called from this Python thread; None leaves it.

    Returns:
        Threads in use.

    Raises:
        ValueError: not between 1 and what the machine offers.
    """
    most = numba.config.NUMBA_NUM_THREADS
    if threads is not None:
        if not 1 <= threads <= most:
            raise ValueError(f"threads must be between 1 and {most}, got {threads}")
        numba.set_num_threads(threads)
    return int(numba.get_num_threads())


class Bound(NamedTuple):
    """What `run` needs: the kernel's arguments, and the merge's where sequences are split."""

    decode: tuple[object, ...]
    merge: tuple[object, ...] | None


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
    parts: int | None = None,
) -> Bound:
    """Arguments for `run`: everything that need not be done again at each call.

    Shapes and dtypes as in `reference.paged_attention_decode`; all arrays C-contiguous. `out` has
    the dtype of the query, lse is float32 [batch, num_heads]. `parts` splits each sequence; None
    leaves it to `cut`. Tables and lengths are taken as they are now.
    """
    tasks = _cut(len(query), key_cache, seq_lens, layout, order, parts)
    states = None
    if tasks.parts > 1:
        batch, num_heads, size = query.shape
        states = merge.no_states(batch, num_heads, tasks.parts, size)
    step = (query, key_cache, value_cache, block_tables, seq_lens)
    decode = _arguments(step, (out, lse), states, 0, scale, layout, tasks)
    return Bound(decode, None if states is None else merge.bind(states, out, lse))


def bind_states(
    query: Elements,
    key_cache: Elements,
    value_cache: Elements,
    block_tables: Int32,
    seq_lens: Int32,
    states: merge.States,
    slot: int,
    *,
    scale: float,
    layout: str = "NHD",
    order: str = "request",
    parts: int = 1,
) -> Bound:
    """Arguments for `run` that leave partial states, in slots slot to slot + parts of each head.

    Other slots stay as they are; `merge` puts them together. The rest is as in `bind`.
    """
    tasks = _cut(len(query), key_cache, seq_lens, layout, order, parts)
    nowhere = (np.empty(0, query.dtype), np.empty(0, np.float32))
    step = (query, key_cache, value_cache, block_tables, seq_lens)
    return Bound(_arguments(step, nowhere, states, slot, scale, layout, tasks), None)


def _cut(
    batch: int, key_cache: Elements, seq_lens: Int32, layout: str, order: str, parts: int | None
) -> Tasks:
    cache = cache_shape(key_cache, layout)
    row_bytes = cache.head_size * key_cache.itemsize
    longest = int(seq_lens.max(initial=0))
    threads = numba.get_num_threads()
    return cut(order, batch, cache.num_kv_heads, longest, row_bytes, threads, parts)


def _arguments(
    step: tuple[Any, ...],
    into: tuple[Elements, Elements],
    states: merge.States | None,
    slot: int,
    scale: float,
    layout: str,
    tasks: Tasks,
) -> tuple[object, ...]:
    query, key_cache, value_cache, block_tables, seq_lens = step
    _, num_heads, size = query.shape
    _, block_size, num_kv_heads, _ = cache_shape(key_cache, layout)
    if tasks.parts > 1:
        block_tables, seq_lens = split_tables(block_tables, seq_lens, block_size, tasks.parts)
    if states is None:
        acc_of = lse_of = np.empty(0, np.float32)
        slots = (1, 0, 0)
    else:
        acc_of, lse_of = states.acc.reshape(-1), states.lse.reshape(-1)
        slots = (tasks.parts, slot, states.lse.shape[2])
    flat = [bits(array).reshape(-1) for array in (query, key_cache, value_cache, into[0])]
    return (
        *flat[:3], block_tables, seq_lens, flat[3], into[1].reshape(-1),
        (len(seq_lens), num_heads, size, num_heads // num_kv_heads), np.float32(scale * LOG2_E),
        block_size, strides_of(key_cache, layout), tuple(tasks)[:3], acc_of, lse_of, slots,
    )  # fmt: skip


def run(bound: Bound) -> None:
    """Launch the kernel once: fills the `out` and `lse`, or the states, that were bound."""
    _decode(*bound.decode)
    if bound.merge is not None:
        merge.run(bound.merge)


drop_stale(_decode)
