"""Cuts runs into what one program does. NumPy, no triton."""

from typing import NamedTuple

import numpy as np

from apclab_kernels.layout import Int32
from apclab_kernels.runs import Runs
from apclab_kernels.triton.variant import MOST_SPLITS

# states of a run that a request gets: two runs leave half of what a merge takes
_MOST_SHARES = MOST_SPLITS // 4


class Work(NamedTuple):
    """Runs, cut into what one program does."""

    requests: Int32  # those of all runs, one run after the other
    blocks: Int32  # as requests
    pieces: Int32  # [pieces, 6], as `cascade_kernel` takes them
    parts: int  # most states that a request gets

    @property
    def room(self) -> int:
        """States that a merge can still take of each request."""
        return MOST_SPLITS - self.parts


def choose_piece(
    runs: Runs, *, block_size: int, at_once: int, num_kv_heads: int, tile: int, sm_count: int
) -> int:
    """How many tokens of a run one program has, about: enough programs, and no more.

    Two programs an SM, so that the last ones do not wait for one; and at least four tiles for each,
    so that its pipeline gets going.

    Args:
        runs: as from `runs.find_runs`.
        block_size: tokens of one block.
        at_once: requests of a tile of queries.
        num_kv_heads: heads of the cache.
        tile: tokens of a tile.
        sm_count: streaming multiprocessors of the device.
    """
    tokens = [len(run.blocks) * block_size for run in runs.runs]
    tiles = [-(-len(run.requests) // at_once) for run in runs.runs]
    even = sum(n * t for n, t in zip(tokens, tiles, strict=True)) * num_kv_heads // (2 * sm_count)
    wanted = max(4 * tile, even, -(-max(tokens, default=0) // _MOST_SHARES))
    return -(-wanted // tile) * tile


def cut(runs: Runs, *, block_size: int, at_once: int, tile: int, piece_tokens: int) -> Work:
    """Cut runs into pieces: so many requests, and an even share of the tokens in whole tiles.

    Args:
        runs: as from `runs.find_runs`.
        block_size: tokens of one block.
        at_once: requests of a tile of queries.
        tile: tokens of a tile of keys and values.
        piece_tokens: tokens of a piece, about; pieces of less than a tile can be empty.
    """
    pieces: list[tuple[int, ...]] = []
    parts = np.zeros(len(runs.tail_starts), np.int32)  # [batch], states so far
    request_first = block_first = 0
    for run in runs.runs:
        tokens = len(run.blocks) * block_size
        tiles, shares = -(-tokens // tile), -(-tokens // piece_tokens)
        part = int(parts[run.requests].max())
        for share in range(shares):
            begin = tiles * share // shares * tile
            end = min(tiles * (share + 1) // shares * tile, tokens)
            for first in range(0, len(run.requests), at_once):
                count = min(at_once, len(run.requests) - first)
                pieces.append((request_first + first, count, block_first, begin, end, part + share))
        parts[run.requests] = part + shares
        request_first += len(run.requests)
        block_first += len(run.blocks)
    none = np.zeros(0, np.int32)
    return Work(
        np.concatenate([none, *(run.requests for run in runs.runs)]).astype(np.int32),
        np.concatenate([none, *(run.blocks for run in runs.runs)]).astype(np.int32),
        np.array(pieces, np.int32).reshape(-1, 6),
        int(parts.max(initial=0)),
    )
