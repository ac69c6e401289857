"""How products are cut into tasks and spans of tasks, alike in work; plain NumPy, no kernel."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from apclab_kernels.cpu.matrix import LANES
from apclab_kernels.layout import Int32

Tasks = NDArray[np.int64]  # [tasks, 4]: table, KV head, first row, row past the last

# rows of a task: 0.5 MiB of queries and sums at head size 128, which a 1 MiB L2 holds
MOST_ROWS = 512


class Sight(NamedTuple):
    """Which queries attend to which tokens; a row is a query times a query head of one KV head.

    Of a table's queries the first sees `first_sees` tokens, and each further one a token more, as
    far as there are some.
    """

    tables: Int32  # [tables, max_blocks]
    lens: Int32  # [tables], tokens
    first_sees: Int32  # [tables]
    queries: Int32  # which rows of the query array, those of one table after the other
    starts: Int32  # [tables + 1], where a table's queries begin


def cut(
    sight: Sight, *, num_kv_heads: int, group: int, order: str, threads: int
) -> tuple[Tasks, NDArray[np.int64]]:
    """Cut a launch into tasks and the tasks into one span a thread, alike in work.

    Args:
        sight: what the rows of each table see.
        num_kv_heads: heads of the cache.
        group: query heads of a KV head.
        order: "request" has a table's heads next to each other, "head" a head's tables.
        threads: spans wanted.

    Returns:
        Tasks, int64 [tasks, 4]: table, KV head, first row, row past the last. Spans, int64
        [spans + 1]: a thread has tasks spans[i] to spans[i + 1].
    """
    rows = np.diff(sight.starts).astype(np.int64) * group
    # as many rows as leave each thread some tasks, and whole tiles of them
    fair = int(rows.sum()) * num_kv_heads // (4 * threads)
    most = min(MOST_ROWS, max(LANES, fair // LANES * LANES))
    tasks, work = [], []
    for i, n in enumerate(rows.tolist()):
        parts = -(-n // most)
        step = -(-n // max(1, parts * LANES)) * LANES
        for lo in range(0, n, max(1, step)):
            hi = min(lo + step, n)
            middle = int(sight.first_sees[i]) + (lo + hi) // (2 * group)
            # widening a tile takes about as long as its products with four rows
            tasks += [(i, h, lo, hi) for h in range(num_kv_heads)]
            work += [min(middle, int(sight.lens[i])) * (hi - lo + 4)] * num_kv_heads
    made = np.array(tasks, np.int64).reshape(-1, 4)
    first, second = (0, 1) if order == "request" else (1, 0)
    sort = np.lexsort((made[:, 2], made[:, second], made[:, first]))
    sizes = np.array(work, np.float64)[sort]
    # a task is of the span in which its middle lies: equal tasks are dealt out evenly
    ends = np.linspace(0, sizes.sum(), threads + 1)[1:-1]
    spans = np.searchsorted(np.cumsum(sizes) - sizes / 2, ends)
    return made[sort], np.concatenate([[0], spans, [len(made)]]).astype(np.int64)
