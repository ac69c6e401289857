"""Paged-attention decode on the CPU, compiled by numba: measured, so fast; the truth is elsewhere.

A task is a run of requests times a run of KV heads. `order="request"` takes one request with all
its heads after the other, `order="head"` a few heads at a time through all requests; the machine
code is the same, as it is for two orders of thread blocks on a GPU.
"""

from typing import NamedTuple

import numba
import numpy as np
from numba import njit, prange

from apclab_kernels.cpu_cache import drop_stale
from apclab_kernels.cpu_tile import (
    FASTMATH,
    LINE,
    TILE,
    ask,
    dot,
    lane,
    score_tile,
    softmax,
    weigh,
    weigh_tile,
)
from apclab_kernels.cpu_vector import CHUNK, bits, narrow, widen
from apclab_kernels.reference import Elements, Int32

START = np.int64(0)  # typed, so that numba compiles the callees once
LOG2_E = float(np.log2(np.e))
# keys and values of one sequence that a head-ordered task keeps in hand: half of a 2 MiB L2
HEAD_RUN_BYTES = 2**20


@njit(fastmath=FASTMATH, cache=True)
def _attend(k, v, rows, n, head_stride, heads, group, size, ahead, longest, q, s, acc, lse):
    """One request, some KV heads: q [heads * group, size] -> acc of that shape and lse."""
    full = n - n % TILE
    lo, hi = heads
    for t in range(0, full, TILE):
        for h in range(lo, hi):
            at, i = h * head_stride, (h - lo) * group
            if ahead > 0:
                ask(k, rows, t + TILE, n, at, size, ahead)
            for g in range(i, i + group):
                score_tile(q, g * size, k, rows, t, at, size, s, g * longest + t)
    for t in range(full, n):
        for h in range(lo, hi):
            for g in range((h - lo) * group, (h - lo + 1) * group):
                s[g * longest + t] = dot(q, g * size, k, rows[t] + h * head_stride, START, size)
    for g in range((hi - lo) * group):
        lse[g] = softmax(s[g * longest : g * longest + n])
    acc[:] = np.float32(0.0)
    for t in range(0, full, TILE):
        for h in range(lo, hi):
            at, i = h * head_stride, (h - lo) * group
            if ahead > 0:
                ask(v, rows, t + TILE, n, at, size, ahead)
            for g in range(i, i + group):
                weigh_tile(s, g * longest + t, v, rows, t, at, size, acc, g * size)
    for t in range(full, n):
        for h in range(lo, hi):
            for g in range((h - lo) * group, (h - lo + 1) * group):
                weigh(s[g * longest + t], v, rows[t] + h * head_stride, START, size, acc, g * size)


@njit(cache=True)
def row_starts(rows, table, n, block_size, block_stride, token_stride):
    """rows[t] = index of token t's first element in a cache, head 0."""
    for b in range((n + block_size - 1) // block_size):
        start = np.int64(table[b]) * block_stride
        for t in range(b * block_size, min(b * block_size + block_size, n)):
            rows[t] = start + (t - b * block_size) * token_stride


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
def _decode(
    query, k, v, tables, lens, out, lse, scale, block_size, strides, group, tasks, ahead, paired
):
    batch, num_heads, size = query.shape
    block_stride, token_stride, head_stride = strides
    kv_heads = num_heads // group
    longest = max(lens.max(), 1)
    for task in prange(number_of_tasks(tasks, batch, kv_heads)):
        first, last, lo, hi = task_range(task, tasks, batch, kv_heads)
        count = (hi - lo) * group
        rows = np.empty(longest, np.int64)
        s = np.empty(count * longest, np.float32)
        acc = np.empty(count * size, np.float32)
        q = np.empty(count * size, np.float32)
        for r in range(first, last):
            n = lens[r]
            row_starts(rows, tables[r], n, block_size, block_stride, token_stride)
            whole = size - size % CHUNK
            for g in range(count):
                for d in range(size):
                    place = lane(d, paired and d < whole)
                    q[g * size + place] = widen(query[r, lo * group + g, d]) * scale
            _attend(
                k, v, rows, n, head_stride, (lo, hi), group, size, ahead, longest,
                q, s, acc, lse[r, lo * group : hi * group],
            )  # fmt: skip
            for g in range(count):
                for d in range(size):
                    place = lane(d, paired and d < whole)
                    out[r, lo * group + g, d] = narrow(out, acc[g * size + place])


class Tasks(NamedTuple):
    """How a launch is cut into tasks."""

    requests_per_task: int
    heads_per_task: int
    head_first: bool


def cut(
    order: str, batch: int, num_kv_heads: int, longest: int, row_bytes: int, threads: int
) -> Tasks:
    """Choose the tasks of a launch from its shape.

    Request order hands out one request with all its heads, or fewer heads where the requests do not
    feed the threads. Head order hands out as many heads as keep keys and values of the longest
    sequence within HEAD_RUN_BYTES, so that the next request finds a shared prefix in the L2, and
    splits the requests where the heads do not feed the threads.

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
        return Tasks(1, -(-num_kv_heads // head_tasks), False)
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
    # only strided runs of a few heads need the prefetch; whole tokens stream by themselves
    ahead = LINE // key_cache.itemsize if order == "head" else 0
    k, v = bits(key_cache).reshape(-1), bits(value_cache).reshape(-1)
    return (
        bits(query), k, v, block_tables, seq_lens, bits(out), lse,
        np.float32(scale * LOG2_E), block_size, strides_of(key_cache, layout),
        num_heads // num_kv_heads, tuple(tasks), ahead, k.dtype == np.uint16,
    )  # fmt: skip


def run(arguments: tuple[object, ...]) -> None:
    """Launch the kernel once: fills the `out` and `lse` that were bound."""
    _decode(*arguments)


drop_stale(_decode)
