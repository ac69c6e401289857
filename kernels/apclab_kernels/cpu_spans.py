"""How a prefill is cut into tasks and spans of tasks, alike in work; plain NumPy, no kernel."""

import numpy as np
from numpy.typing import NDArray

from apclab_kernels.cpu_causal import LANES
from apclab_kernels.reference import Int32

Tasks = NDArray[np.int64]  # [tasks, 4]: request, KV head, first row, row past the last

# rows of a task: 0.5 MiB of queries and sums at head size 128, which a 1 MiB L2 holds
MOST_ROWS = 512


def cut(
    seq_lens: Int32,
    query_start_loc: Int32,
    *,
    num_kv_heads: int,
    group: int,
    order: str,
    threads: int,
) -> tuple[Tasks, NDArray[np.int64]]:
    """Cut a launch into tasks and the tasks into one span a thread, alike in work.

    Args:
        seq_lens: int32 [batch].
        query_start_loc: int32 [batch + 1].
        num_kv_heads: heads of the cache.
        group: query heads of a KV head.
        order: "request" has a request's heads next to each other, "head" a head's requests.
        threads: spans wanted.

    Returns:
        Tasks, int64 [tasks, 4]: request, KV head, first row, row past the last. Spans, int64
        [spans + 1]: a thread has tasks spans[i] to spans[i + 1].
    """
    rows = np.diff(query_start_loc).astype(np.int64) * group
    # as many rows as leave each thread some tasks, and whole tiles of them
    fair = int(rows.sum()) * num_kv_heads // (4 * threads)
    most = min(MOST_ROWS, max(LANES, fair // LANES * LANES))
    tasks, work = [], []
    for r, n in enumerate(rows.tolist()):
        parts = -(-n // most)
        step = -(-n // max(1, parts * LANES)) * LANES
        for lo in range(0, n, max(1, step)):
            hi = min(lo + step, n)
            seen = int(seq_lens[r]) - (n - lo - hi) // (2 * group)  # of the middle row, about
            # widening a tile takes about as long as its products with four rows
            tasks += [(r, h, lo, hi) for h in range(num_kv_heads)]
            work += [seen * (hi - lo + 4)] * num_kv_heads
    made = np.array(tasks, np.int64).reshape(-1, 4)
    first, second = (0, 1) if order == "request" else (1, 0)
    sort = np.lexsort((made[:, 2], made[:, second], made[:, first]))
    done = np.cumsum(np.array(work, np.float64)[sort])
    spans = np.searchsorted(done, np.linspace(0, done[-1] if len(done) else 0, threads + 1)[1:-1])
    return made[sort], np.concatenate([[0], spans, [len(made)]]).astype(np.int64)
