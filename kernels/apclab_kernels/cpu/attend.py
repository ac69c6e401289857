"""Attention of a bundle of requests, for numba kernels: scores, weights, weighted sums, by tiles.

A tile is eight rows of one KV head. Four query heads of a KV head take a tile together, so that a
row is loaded and widened once for them; what is left of a group goes one head at a time.
"""

import numpy as np
from numba import njit

from apclab_kernels.cpu.cache import CACHED
from apclab_kernels.cpu.element import CHUNK
from apclab_kernels.cpu.tile import (
    FASTMATH,
    TILE,
    dot,
    score_eight,
    score_four,
    weigh,
    weigh_eight,
    weigh_four,
    weights_of,
)
from apclab_kernels.cpu.vector import WIDTH

START = np.int64(0)  # typed, so that numba compiles the callees once


@njit(fastmath=FASTMATH, cache=CACHED)
def _score(k, rows, lens, ahead, heads, group, size, longest, q, s):
    """Scores of a bundle of requests: q -> s; see `attend`.

    One function for all tiles: a call takes as long as a tile of eight rows. `ahead` is the way to
    the next head, whose rows are asked for while this one's are used.
    """
    lo, hi, chunk = heads
    count = (hi - lo) * group
    for t in range(0, lens.max(), TILE):
        for begin in range(lo, hi, chunk):
            for r in range(lens.size):
                tokens, row = min(TILE, lens[r] - t), r * longest + t
                for h in range(begin, min(begin + chunk, hi)):
                    at, i = h * ahead, r * count + (h - lo) * group
                    end, done = i + group, START
                    if tokens == TILE:
                        done = size - size % CHUNK
                        while i + 4 <= end:
                            for m in range(0, TILE, 4):
                                score_four(
                                    q, i * size, k, rows, row + m, at, ahead, done, size,
                                    s, i * longest + t + m, longest,
                                )  # fmt: skip
                            i += 4
                        while i < end:
                            j = i * longest + t
                            score_eight(q, i * size, k, rows, row, at, ahead, done, s, j)
                            i += 1
                    if done < size:  # a short tile, or the last elements of an odd size
                        for m in range(end - group, end):
                            for j in range(tokens):
                                x = dot(q, m * size, k, rows[row + j] + at, done, size)
                                into = m * longest + t + j
                                s[into] = x if done == 0 else s[into] + x


@njit(fastmath=FASTMATH, cache=CACHED)
def _weigh(v, rows, lens, ahead, heads, group, size, longest, s, acc):
    """Weighted sums of a bundle of requests: s -> acc; see `attend` and `_score`."""
    lo, hi, chunk = heads
    count = (hi - lo) * group
    for t in range(0, lens.max(), TILE):
        for begin in range(lo, hi, chunk):
            for r in range(lens.size):
                tokens, row = min(TILE, lens[r] - t), r * longest + t
                for h in range(begin, min(begin + chunk, hi)):
                    at, i = h * ahead, r * count + (h - lo) * group
                    end, done = i + group, START
                    if tokens == TILE:
                        done = size - size % CHUNK
                        while i + 4 <= end:
                            j = i * longest + t
                            weigh_four(
                                s, j, longest, v, rows, row, at, ahead, done, size, acc, i * size
                            )
                            i += 4
                        while i < end:
                            j = i * longest + t
                            weigh_eight(s, j, v, rows, row, at, ahead, done, acc, i * size)
                            i += 1
                    if done < size:
                        for m in range(end - group, end):
                            for j in range(tokens):
                                p = s[m * longest + t + j]
                                weigh(p, v, rows[row + j] + at, done, size, acc, m * size)


@njit(fastmath=FASTMATH, cache=CACHED)
def attend(k, v, rows, lens, head_stride, heads, group, size, longest, q, s, acc, lse, inverse):
    """A bundle of requests, KV heads lo to hi of each: q -> acc, lse and 1 / sum of weights.

    q and acc are [requests, heads * group, size], s is [requests, heads * group, longest]. Heads
    are taken `chunk` at a time through all requests.
    """
    lo, hi, _ = heads
    count = (hi - lo) * group
    _score(k, rows, lens, head_stride, heads, group, size, longest, q, s)
    for i in range(lens.size * count):
        lse[i], inverse[i] = weights_of(s, i * longest, lens[i // count])
    acc[:] = np.float32(0.0)
    _weigh(v, rows, lens, head_stride, heads, group, size, longest, s, acc)


@njit(cache=CACHED)
def aligned(n):
    """Room for n float32 from a cache line on: loads across two lines take twice as long."""
    room = np.empty(n + WIDTH, np.float32)
    return room[-(room.ctypes.data // 4) % WIDTH :]
