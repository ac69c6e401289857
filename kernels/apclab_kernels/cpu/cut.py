"""How a launch of the CPU kernels is cut: tasks of requests and heads, parts of long sequences."""

from typing import NamedTuple

import numpy as np
from numba import njit

from apclab_kernels.cpu.cache import CACHED
from apclab_kernels.layout import Int32

# keys and values of one sequence that a head-ordered task keeps in hand: half of a 2 MiB L2
HEAD_RUN_BYTES = 2**20
# a part of a split sequence has at least so many tokens: a state costs about as much as 8 of them
LEAST_PART = 128
MOST_PARTS = 64
# cut smaller where the threads would be busy for less than this part of the time
BUSY = 0.9


class Tasks(NamedTuple):
    """How a launch is cut into tasks, and each sequence into parts (1: not split)."""

    requests_per_task: int
    heads_per_task: int
    head_first: bool
    parts: int = 1


@njit(cache=CACHED)
def number_of_tasks(tasks, batch, kv_heads):
    """Tasks of a launch; see `Tasks`."""
    requests_per_task, heads_per_task, _ = tasks
    return -(-batch // requests_per_task) * -(-kv_heads // heads_per_task)


@njit(cache=CACHED)
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


def cut(
    order: str,
    batch: int,
    num_kv_heads: int,
    longest: int,
    row_bytes: int,
    threads: int,
    parts: int | None = None,
) -> Tasks:
    """Choose the tasks of a launch from its shape.

    Request order gives each thread one run of requests with all their heads, or smaller tasks where
    the requests do not feed the threads. Head order hands out as many heads as keep keys and values
    of the longest sequence within HEAD_RUN_BYTES, so that the next bundle finds a shared prefix in
    the L2, and splits the requests where the heads do not feed the threads. Where requests and
    heads together do not feed them, long sequences are split, too; a part then counts as a request.

    Args:
        order: "request" or "head".
        batch: requests.
        num_kv_heads: heads of the cache.
        longest: tokens of the longest sequence.
        row_bytes: bytes of one key of one head.
        threads: threads that share the work.
        parts: of each sequence; None chooses.
    """
    parts = _parts(batch * num_kv_heads, longest, threads) if parts is None else parts
    rows = batch * parts
    if order == "request":
        return Tasks(*_balanced(rows, num_kv_heads, threads), False, parts)
    fitting = max(1, HEAD_RUN_BYTES // max(1, 2 * longest * row_bytes))
    # a whole number of tasks for each thread, of equal size
    rounds = -(-num_kv_heads // (fitting * threads))
    heads = -(-num_kv_heads // min(num_kv_heads, rounds * threads))
    head_tasks = -(-num_kv_heads // heads)
    request_tasks = min(rows, -(-threads // head_tasks))
    return Tasks(-(-rows // request_tasks), heads, True, parts)


def _balanced(rows: int, heads: int, threads: int) -> tuple[int, int]:
    """Rows and heads of a task: the fewest tasks that keep the threads busy, else the best."""

    def tasks(choice: tuple[int, int]) -> int:
        return -(-rows // choice[0]) * -(-heads // choice[1])

    def busy(choice: tuple[int, int]) -> float:
        return rows * heads / (threads * -(-tasks(choice) // threads) * choice[0] * choice[1])

    row_counts = {-(-rows // min(rows, n * threads)) for n in (1, 2, 4)}
    head_counts = {-(-heads // n) for n in range(1, heads + 1)}
    choices = sorted(((r, h) for r in row_counts for h in head_counts), key=tasks)
    best = max(choices, key=busy)
    return next((choice for choice in choices if busy(choice) >= BUSY), best)


def _parts(pairs: int, longest: int, threads: int) -> int:
    """The fewest parts of each sequence that keep the threads busy, as far as it is long enough."""

    def busy(parts: int) -> float:
        return pairs * parts / (-(-pairs * parts // threads) * threads)

    most = max(1, min(MOST_PARTS, longest // LEAST_PART, -(-4 * threads // pairs)))
    return next(
        (n for n in range(1, most + 1) if busy(n) >= BUSY), max(range(1, most + 1), key=busy)
    )


def split_tables(
    block_tables: Int32, seq_lens: Int32, block_size: int, parts: int
) -> tuple[Int32, Int32]:
    """Cut every sequence into parts of whole blocks, equal as far as that goes.

    Args:
        block_tables: [batch, max_blocks].
        seq_lens: [batch].
        block_size: tokens per block.
        parts: of each sequence; the last ones are shorter, or empty.

    Returns:
        Tables [batch * parts, most blocks of a part] and lengths [batch * parts], as of requests.
    """
    blocks = -(-seq_lens // block_size)
    each = -(-blocks // parts)  # [batch], blocks of a part
    first = each[:, None] * np.arange(parts)  # [batch, parts]
    columns = first[:, :, None] + np.arange(max(1, each.max(initial=0)))
    columns = np.minimum(columns, block_tables.shape[1] - 1)
    tables = np.take_along_axis(block_tables[:, None, :], columns, axis=2)
    lens = np.clip(seq_lens[:, None] - first * block_size, 0, each[:, None] * block_size)
    return (
        np.ascontiguousarray(tables.reshape(-1, tables.shape[2]), np.int32),
        np.ascontiguousarray(lens.reshape(-1), np.int32),
    )
