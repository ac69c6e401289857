"""Runs of blocks that requests share from their first column on, found in the block tables alone.

NumPy, no kernel, nothing of ours: what is found here, the prefix-aware kernels read once for all
its requests. Reference counts would not do: a block can be held by requests outside the batch, or
by requests that have it in different columns.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from apclab_kernels.layout import Int32

Int64 = NDArray[np.int64]

# queries of a register tile of the CPU's products; half of one takes as long as a whole: 1.6 and
# 1.6 ms for 304 tokens of 40 heads in float32, 1.9 and 2.1 in bfloat16
ROWS = 32


class SharedRun(NamedTuple):
    """Blocks that some requests of a batch have in common, all of them full."""

    requests: Int32  # [n], n >= 2 rows of the batch, ascending
    first: int  # table column of the first block
    blocks: Int32  # [m] block ids


class Runs(NamedTuple):
    """The runs of a batch, and what they leave."""

    runs: list[SharedRun]  # a run before those that continue it
    tail_starts: Int32  # [batch] tokens, multiples of the block size: where a request's tail begins


class Rates(NamedTuple):
    """What a machine does, measured: the rule of `choose_runs` has no other numbers."""

    product_flop_per_s: float  # matrix product of a run
    dram_bytes_per_s: float  # paged kernel, every block its own
    cache_bytes_per_s: float  # paged kernel, all requests share
    run_s: float  # one more run
    launch_s: float  # the prefix-aware kernel as such: more states, their merge


class StepShape(NamedTuple):
    """What the worth of a run depends on, besides the machine."""

    block_size: int  # tokens
    num_heads: int
    num_kv_heads: int
    head_size: int
    itemsize: int  # bytes of an element of the caches


class _Node(NamedTuple):
    rows: Int32  # requests whose tables begin with the same `end` blocks
    end: int
    children: list[int]


def find_runs(block_tables: Int32, seq_lens: Int32, block_size: int, *, levels: int = 2) -> Runs:
    """Find the prefix runs of a batch: those that save the most reads of blocks.

    Args:
        block_tables: int32 [batch, max_blocks]; what lies past a row's length is not looked at.
        seq_lens: int32 [batch], tokens. A last block that is not full belongs to no run.
        block_size: tokens per block.
        levels: most runs that follow one another in a request, as a prompt that all share and a
            document that some share.

    Returns:
        Runs of at least two requests. Of each request they are consecutive from column 0 on, and
        what is behind them is its tail.
    """
    nodes, roots = _prefix_tree(block_tables, seq_lens // block_size)
    columns = block_tables.shape[1]
    # gains[level][node][start]: reads saved below a node by so many runs in a row, the first of
    # them from column `start` on
    gains = [np.zeros((len(nodes), columns + 1), np.int64)]
    takes = [np.zeros((len(nodes), columns + 1), bool)]
    starts = np.arange(columns + 1)
    for level in range(1, levels + 1):
        gain, take = np.zeros_like(gains[0]), np.zeros_like(takes[0])
        for i in reversed(range(len(nodes))):  # children come after their parents
            rows, end, children = nodes[i]
            taken = (end - starts) * (len(rows) - 1) + gains[level - 1][children, end].sum()
            left: Int64 = gain[children].sum(0)
            take[i] = taken >= left
            gain[i] = np.maximum(taken, left)
        gains.append(gain)
        takes.append(take)
    runs = []
    todo = [(root, 0, levels) for root in reversed(roots)]
    while todo:
        i, start, level = todo.pop()
        if level == 0:
            continue
        rows, end, children = nodes[i]
        if takes[level][i, start]:
            runs.append(SharedRun(rows, start, block_tables[rows[0], start:end].astype(np.int32)))
            start, level = end, level - 1
        todo += [(child, start, level) for child in reversed(children)]
    return Runs(runs, _tail_starts(runs, len(seq_lens), block_size))


def _prefix_tree(tables: Int32, full: Int32) -> tuple[list[_Node], list[int]]:
    """Sets of at least two requests with equal first columns, as long as the set stays whole.

    Returns:
        The nodes, parents before children, and which of them are roots.
    """
    nodes: list[_Node] = []
    roots: list[int] = []
    todo = [(np.arange(len(tables), dtype=np.int32), 0, roots)]
    while todo:
        rows, column, siblings = todo.pop()
        rows = rows[full[rows] > column]
        if len(rows) < 2:
            continue
        _, which, count = np.unique(tables[rows, column], return_inverse=True, return_counts=True)
        for one in np.flatnonzero(count > 1):
            same = rows[which == one]
            shortest = int(full[same].min())
            # [columns]: where all rows go on alike
            alike = (tables[same, column:shortest] == tables[same[0], column:shortest]).all(0)
            end = shortest if alike.all() else column + int(alike.argmin())
            siblings.append(len(nodes))
            nodes.append(_Node(same, end, []))
            todo.append((same, end, nodes[-1].children))
    return nodes, roots


def _tail_starts(runs: Sequence[SharedRun], batch: int, block_size: int) -> Int32:
    starts = np.zeros(batch, np.int32)
    for run in runs:
        starts[run.requests] = (run.first + len(run.blocks)) * block_size
    return starts


def tails_of(
    block_tables: Int32, seq_lens: Int32, runs: Runs, block_size: int
) -> tuple[Int32, Int32]:
    """Tables and lengths of what is behind the runs, int32 [batch, most tail blocks] and [batch].

    Args:
        block_tables: int32 [batch, max_blocks].
        seq_lens: int32 [batch].
        runs: of these tables.
        block_size: tokens of one block.
    """
    lens = seq_lens - runs.tail_starts
    columns = np.arange(max(1, -(-int(lens.max(initial=0)) // block_size)))
    at = runs.tail_starts[:, None] // block_size + columns  # [batch, columns]
    tables = np.take_along_axis(block_tables, np.minimum(at, block_tables.shape[1] - 1), axis=1)
    return tables.astype(np.int32), lens.astype(np.int32)


def saved_s(run: SharedRun, shape: StepShape, rates: Rates) -> float:
    """Seconds that one run saves if it is read once; negative where it costs.

    With n requests and b = 2 * tokens * num_kv_heads * head_size * itemsize bytes of K and V, the
    paged kernel reads b from DRAM once and from the cache n - 1 times. The prefix-aware kernel
    reads b from DRAM once, too, and then does two products for each KV head, with
    n * num_heads / num_kv_heads rows, filled up to a multiple of 32. So it saves
    (n - 1) * b / cache - 4 * rows * num_kv_heads * head_size * tokens / product - run_s:
    the DRAM rate does not decide. That is cautious where a kernel multiplies while it reads.

    Args:
        run: the run.
        shape: of its step.
        rates: of the machine.
    """
    block_size, num_heads, num_kv_heads, head_size, itemsize = shape
    n, tokens = len(run.requests), len(run.blocks) * block_size
    read = 2 * tokens * num_kv_heads * head_size * itemsize
    rows = -(-n * num_heads // num_kv_heads // ROWS) * ROWS
    product = 4 * rows * num_kv_heads * head_size * tokens / rates.product_flop_per_s
    return (n - 1) * read / rates.cache_bytes_per_s - product - rates.run_s


def choose_runs(runs: Runs, shape: StepShape, rates: Rates) -> tuple[Runs, str]:
    """Keep the runs that pay; none if together they do not earn the launch.

    A run that does not pay is added in front of those that continue it, else left to the tails.

    Args:
        runs: as from `find_runs`.
        shape: of the step.
        rates: of the machine.

    Returns:
        The runs that are left, and a sentence that says why some are not; "" if all are.
    """
    kept: list[SharedRun] = []
    earned = 0.0
    open_runs = list(runs.runs)
    while open_runs:
        run = open_runs.pop(0)
        if (saved := saved_s(run, shape, rates)) > 0:
            kept.append(run)
            earned += saved
            continue
        end = run.first + len(run.blocks)
        for i, other in enumerate(open_runs):
            if other.first == end and np.isin(other.requests, run.requests).all():
                blocks = np.concatenate([run.blocks, other.blocks])
                open_runs[i] = SharedRun(other.requests, run.first, blocks)
    batch = len(runs.tail_starts)
    found = len(runs.runs)
    if not found:
        return runs, "no two requests share a full block from their first token on"
    if earned <= rates.launch_s:
        none = Runs([], np.zeros(batch, np.int32))
        gain = f"{earned * 1e6:.3g} us" if kept else "nothing"
        return none, f"{_runs(found)} would save {gain}, {rates.launch_s * 1e6:.3g} us are spent"
    why = "" if len(kept) == found else f"{len(kept)} of {_runs(found)} pay"
    return Runs(kept, _tail_starts(kept, batch, shape.block_size)), why


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"
