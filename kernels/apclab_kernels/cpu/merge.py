"""Partial attention states and their merge: what parts of a sequence say, put together exactly.

A state of one (request, head) over some tokens is `acc`, float32 [head_size], the weighted mean of
their values in the element order of `tile.take_query` (halves of 32 elements split), and `lse`,
float32, the logarithm to base 2 of the sum of their weights, since the kernels' exponential has
base 2. No tokens: lse -inf, and acc is not read. Scores of -inf throughout count as no tokens.
"""

from typing import Any, NamedTuple

import numba
import numpy as np
from numba import njit, prange

from apclab_kernels.cpu.cache import CACHED, drop_stale
from apclab_kernels.cpu.element import bits
from apclab_kernels.cpu.tile import FASTMATH, LN_2, ONE, give_out
from apclab_kernels.cpu.vector import WIDTH, fma, load, splat, store
from apclab_kernels.layout import Elements, Float32

NOTHING = np.float32(-np.inf)


class States(NamedTuple):
    """Partial states of a batch; where a part has no tokens, `lse` is -inf."""

    acc: Float32  # [batch, num_heads, parts, head_size]
    lse: Float32  # [batch, num_heads, parts], base 2


def no_states(batch: int, num_heads: int, parts: int, head_size: int) -> States:
    """Room for states, all of them empty."""
    return States(
        np.empty((batch, num_heads, parts, head_size), np.float32),
        np.full((batch, num_heads, parts), -np.inf, np.float32),
    )


@njit(fastmath=FASTMATH, cache=CACHED)
def merge_state(partial, partial_lse, at, parts, size, acc):
    """Merge the states at to at + parts of flat arrays into acc, float32 [size].

    Returns:
        Log-sum-exp in base e and the factor that acc still lacks; -inf and 0 of nothing.
    """
    top, empty = NOTHING, True
    for p in range(at, at + parts):
        empty = empty and partial_lse[p] == NOTHING
        if partial_lse[p] > top:
            top = partial_lse[p]
    acc[:] = np.float32(0.0)
    if empty:
        return NOTHING, np.float32(0.0)
    summed = np.float32(0.0)
    whole = size - size % WIDTH
    for p in range(at, at + parts):
        if partial_lse[p] == NOTHING:
            continue
        weight = np.exp2(partial_lse[p] - top)  # NaN of a NaN
        summed += weight
        for d in range(0, whole, WIDTH):
            store(acc, d, fma(splat(weight), load(partial, p * size + d), load(acc, d)))
        for d in range(whole, size):
            acc[d] += weight * partial[p * size + d]
    return (top + np.log2(summed)) * LN_2, ONE / summed


@njit(parallel=True, fastmath=FASTMATH, cache=CACHED)
def _merge(partial, partial_lse, out, lse, parts, size, tasks):
    for task in prange(tasks):
        acc = np.empty(size, np.float32)
        for row in range(task * lse.size // tasks, (task + 1) * lse.size // tasks):
            lse[row], factor = merge_state(partial, partial_lse, row * parts, parts, size, acc)
            give_out(acc, 0, size, factor, out, row * size)


def bind(states: States, out: Elements, lse: Float32) -> tuple[Any, ...]:
    """Arguments for `run`.

    Args:
        states: of the parts of each (request, head).
        out: float32, float16 or bfloat16 [batch, num_heads, head_size], C-contiguous.
        lse: float32 [batch, num_heads], C-contiguous, natural log.
    """
    *_, parts, size = states.acc.shape
    tasks = min(numba.get_num_threads(), lse.size)
    acc, partial_lse = states.acc.reshape(-1), states.lse.reshape(-1)
    return acc, partial_lse, bits(out).reshape(-1), lse.reshape(-1), parts, size, tasks


def run(arguments: tuple[Any, ...]) -> None:
    """Merge: fills `out` and `lse`, zeros and -inf where every part is empty, NaN where one is."""
    _merge(*arguments)


drop_stale(_merge)
