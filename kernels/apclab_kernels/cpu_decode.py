"""Paged-attention decode on the CPU, compiled by numba: measured, so fast; the truth is elsewhere.

A task is a run of requests times a run of KV heads. `order="request"` gives each thread its
requests with all their heads, `order="head"` a few heads at a time through all requests; the
machine code is the same, as it is for two orders of thread blocks on a GPU. A task goes through its
requests in bundles, token tile by token tile, as thread blocks that run side by side would: what
the requests of a bundle share is still near when the next of them reads it.
"""

from typing import NamedTuple

import numba
import numpy as np
from numba import njit, prange

from apclab_kernels.cpu_cache import drop_stale
from apclab_kernels.cpu_element import bits
from apclab_kernels.cpu_tile import (
    FASTMATH,
    TILE,
    dot,
    give_out,
    score_tile,
    take_query,
    weigh,
    weigh_tile,
    weights_of,
)
from apclab_kernels.cpu_vector import WIDTH
from apclab_kernels.reference import Elements, Int32

START = np.int64(0)  # typed, so that numba compiles the callees once
LOG2_E = float(np.log2(np.e))
# requests side by side: 1, 2, 4 and 8 gave 11.7, 10.9, 10.6 and 10.5 ms for issue 4860 with shared
# blocks, and 27 ms with private ones in all four
BUNDLE = 4
# keys and values of one sequence that a head-ordered task keeps in hand: half of a 2 MiB L2
HEAD_RUN_BYTES = 2**20


@njit(fastmath=FASTMATH, cache=True)
def _attend(k, v, rows, lens, head_stride, heads, group, size, longest, q, s, acc, lse, inverse):
    """A bundle of requests, KV heads lo to hi of each: q -> acc, lse and 1 / sum of weights.

    q and acc are [requests, heads * group, size], s is [requests, heads * group, longest].
    """
    lo, hi = heads
    count = (hi - lo) * group
    for t in range(0, lens.max(), TILE):
        for r in range(lens.size):
            n, row = lens[r], r * longest + t
            for h in range(lo, hi):
                at = h * head_stride
                for i in range(r * count + (h - lo) * group, r * count + (h - lo + 1) * group):
                    if t + TILE <= n:
                        score_tile(q, i * size, k, rows, row, at, size, s, i * longest + t)
                    else:
                        for j in range(n - t):
                            x = dot(q, i * size, k, rows[row + j] + at, START, size)
                            s[i * longest + t + j] = x
    for i in range(lens.size * count):
        lse[i], inverse[i] = weights_of(s, i * longest, lens[i // count])
    acc[:] = np.float32(0.0)
    for t in range(0, lens.max(), TILE):
        for r in range(lens.size):
            n, row = lens[r], r * longest + t
            for h in range(lo, hi):
                at = h * head_stride
                for i in range(r * count + (h - lo) * group, r * count + (h - lo + 1) * group):
                    if t + TILE <= n:
                        weigh_tile(s, i * longest + t, v, rows, row, at, size, acc, i * size)
                    else:
                        for j in range(n - t):
                            p = s[i * longest + t + j]
                            weigh(p, v, rows[row + j] + at, START, size, acc, i * size)


@njit(cache=True)
def row_starts(rows, i, table, n, block_size, strides):
    """rows[i + t] = index of token t's first element in a cache, head 0."""
    for b in range((n + block_size - 1) // block_size):
        start = np.int64(table[b]) * strides[0]
        for t in range(b * block_size, min(b * block_size + block_size, n)):
            rows[i + t] = start + (t - b * block_size) * strides[1]


@njit(cache=True)
def number_of_tasks(tasks, batch, kv_heads):
    """Tasks of a launch; see `Tasks`."""
    requests_per_task, heads_per_task, _ = tasks
    return -(-batch // requests_per_task) * -(-kv_heads // heads_per_task)


@njit(cache=True)
def task_range(task, tasks, batch, kv_heads):
    """Which requests and which KV heads a task has: first, last, lo, hi."""
    requests_per_task, heads_per_task, head_first = tasks
    request_tasks = -(-batch // requests_per_task)
    head_tasks = -(-kv_heads // heads_per_task)
    if head_first:
        head_task, request_task = task // request_tasks, task % request_tasks
    else:
        request_task, head_task = task // head_tasks, task % head_tasks
    first, lo = request_task * requests_per_task, head_task * heads_per_task
    return first, min(first + requests_per_task, batch), lo, min(lo + heads_per_task, kv_heads)


@njit(parallel=True, fastmath=FASTMATH, cache=True)
def _decode(query, k, v, tables, lens, out, lse, shape, scale, block_size, strides, tasks):
    batch, num_heads, size, group = shape
    kv_heads = num_heads // group
    longest = (lens.max() // WIDTH + 1) * WIDTH  # scores are filled up to whole vectors
    for task in prange(number_of_tasks(tasks, batch, kv_heads)):
        first, last, lo, hi = task_range(task, tasks, batch, kv_heads)
        count = (hi - lo) * group
        rows = np.empty(BUNDLE * longest, np.int64)
        s = np.empty(BUNDLE * count * longest, np.float32)
        acc = np.empty(BUNDLE * count * size, np.float32)
        q = np.empty(BUNDLE * count * size, np.float32)
        sums = np.empty(BUNDLE * count, np.float32)
        inverse = np.empty(BUNDLE * count, np.float32)
        for start in range(first, last, BUNDLE):
            end = min(start + BUNDLE, last)
            for i in range((end - start) * count):
                r, head = start + i // count, lo * group + i % count
                take_query(query, (r * num_heads + head) * size, size, scale, q, i * size)
            for r in range(start, end):
                row_starts(rows, (r - start) * longest, tables[r], lens[r], block_size, strides)
            _attend(
                k, v, rows, lens[start:end], strides[2], (lo, hi), group, size, longest,
                q, s, acc, sums, inverse,
            )  # fmt: skip
            for i in range((end - start) * count):
                r, head = start + i // count, lo * group + i % count
                give_out(acc, i * size, size, inverse[i], out, (r * num_heads + head) * size)
                lse[r * num_heads + head] = sums[i]


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


class Tasks(NamedTuple):
    """How a launch is cut into tasks."""

    requests_per_task: int
    heads_per_task: int
    head_first: bool


def cut(
    order: str, batch: int, num_kv_heads: int, longest: int, row_bytes: int, threads: int
) -> Tasks:
    """Choose the tasks of a launch from its shape.

    Request order gives each thread one run of requests with all their heads, or fewer heads where
    the requests do not feed the threads. Head order hands out as many heads as keep keys and values
    of the longest sequence within HEAD_RUN_BYTES, so that the next bundle finds a shared prefix in
    the L2, and splits the requests where the heads do not feed the threads.

    Args:
        order: "request" or "head".
        batch: requests.
        num_kv_heads: heads of the cache.
        longest: tokens of the longest sequence.
        row_bytes: bytes of one key of one head.
        threads: threads that share the work.
    """
    if order == "request":
        head_tasks = min(num_kv_heads, -(-2 * threads // batch))
        return Tasks(-(-batch // min(batch, threads)), -(-num_kv_heads // head_tasks), False)
    fitting = max(1, HEAD_RUN_BYTES // max(1, 2 * longest * row_bytes))
    # a whole number of tasks for each thread, of equal size
    rounds = -(-num_kv_heads // (fitting * threads))
    heads = -(-num_kv_heads // min(num_kv_heads, rounds * threads))
    head_tasks = -(-num_kv_heads // heads)
    request_tasks = min(batch, -(-threads // head_tasks))
    return Tasks(-(-batch // request_tasks), heads, True)


def strides_of(cache: Elements, layout: str) -> tuple[int, int, int]:
    """Elements from block to block, token to token and head to head of a contiguous cache."""
    _, n, m, size = cache.shape
    return (n * m * size, m * size, size) if layout == "NHD" else (n * m * size, size, m * size)


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
) -> tuple[object, ...]:
    """Arguments for `run`: everything that need not be done again at each call.

    Shapes and dtypes as in `reference.paged_attention_decode`; all arrays C-contiguous. `out` has
    the dtype of the query, lse is float32 [batch, num_heads].
    """
    batch, num_heads, size = query.shape
    num_kv_heads = key_cache.shape[2 if layout == "NHD" else 1]
    block_size = key_cache.shape[1 if layout == "NHD" else 2]
    tasks = cut(
        order,
        batch,
        num_kv_heads,
        int(seq_lens.max(initial=0)),
        size * key_cache.itemsize,
        numba.get_num_threads(),
    )
    flat = [bits(array).reshape(-1) for array in (query, key_cache, value_cache, out)]
    return (
        *flat[:3], block_tables, seq_lens, flat[3], lse.reshape(-1),
        (batch, num_heads, size, num_heads // num_kv_heads), np.float32(scale * LOG2_E),
        block_size, strides_of(key_cache, layout), tuple(tasks),
    )  # fmt: skip


def run(arguments: tuple[object, ...]) -> None:
    """Launch the kernel once: fills the `out` and `lse` that were bound."""
    _decode(*arguments)


drop_stale(_decode)
