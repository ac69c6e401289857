"""Read-bandwidth probes on the CPU: a footprint in a row, or the addresses of a decode.

Nothing is computed from the bytes but their xor, which keeps the compiler from dropping the loads.
The first gives the ladder of a machine (L2, L3, DRAM), the second the roof of a decode kernel.
"""

from typing import Any

import numba
import numpy as np
from numba import njit, prange

from apclab_kernels.cpu.cache import CACHED, drop_stale
from apclab_kernels.cpu.cut import cut, number_of_tasks, split_tables, task_range
from apclab_kernels.cpu.decode import BUNDLE, row_starts
from apclab_kernels.cpu.tile import TILE
from apclab_kernels.cpu.vector import WIDTH, load, store, xor, zeros
from apclab_kernels.layout import Elements, Float32, Int32, cache_shape, strides_of

LINE = 64  # bytes of a cache line and of one vector


@njit(parallel=True, cache=CACHED)
def _stream(words, passes, parts, seen):
    share = words.size // parts // (TILE * WIDTH) * (TILE * WIDTH)
    for part in prange(parts):
        s0 = s1 = s2 = s3 = zeros()
        for _ in range(passes):
            for i in range(part * share, (part + 1) * share, 4 * WIDTH):
                s0 = xor(s0, load(words, i))
                s1 = xor(s1, load(words, i + WIDTH))
                s2 = xor(s2, load(words, i + 2 * WIDTH))
                s3 = xor(s3, load(words, i + 3 * WIDTH))
        store(seen, part * WIDTH, xor(xor(s0, s1), xor(s2, s3)))


def bind_stream(words: Float32, passes: int = 1) -> tuple[Any, ...]:
    """Arguments for `stream`: read a footprint some times over, each thread its own part of it.

    Args:
        words: float32 [n], the footprint; any bit patterns will do.
        passes: how often each thread reads its part.
    """
    parts = numba.get_num_threads()
    return words, passes, parts, np.empty(parts * WIDTH, np.float32)


def bytes_read(arguments: tuple[Any, ...]) -> int:
    """Bytes that one `stream` call loads."""
    words, passes, parts, _ = arguments
    line = TILE * WIDTH
    return int(words.size) // parts // line * line * parts * passes * int(words.itemsize)


def stream(arguments: tuple[Any, ...]) -> None:
    """Read the footprint, and compute nothing."""
    _stream(*arguments)


@njit(cache=CACHED, forceinline=True)
def _read_sized(cache, rows, t, at, size, seen):
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = zeros()
    for d in range(at, at + size, WIDTH):
        s0 = xor(s0, load(cache, rows[t] + d))
        s1 = xor(s1, load(cache, rows[t + 1] + d))
        s2 = xor(s2, load(cache, rows[t + 2] + d))
        s3 = xor(s3, load(cache, rows[t + 3] + d))
        s4 = xor(s4, load(cache, rows[t + 4] + d))
        s5 = xor(s5, load(cache, rows[t + 5] + d))
        s6 = xor(s6, load(cache, rows[t + 6] + d))
        s7 = xor(s7, load(cache, rows[t + 7] + d))
    folded = xor(xor(xor(s0, s1), xor(s2, s3)), xor(xor(s4, s5), xor(s6, s7)))
    store(seen, 0, xor(folded, load(seen, 0)))


@njit(cache=CACHED)
def _read_rows(cache, rows, lens, head_stride, lo, hi, size, longest, seen):
    for t in range(0, lens.max(), TILE):
        for r in range(lens.size):
            n, row = lens[r], r * longest + t
            for h in range(lo, hi):
                if t + TILE <= n:
                    if size == 64:  # a known size unrolls the loop: 128 elements of 2 bytes
                        _read_sized(cache, rows, row, h * head_stride, np.int64(64), seen)
                    else:
                        _read_sized(cache, rows, row, h * head_stride, size, seen)
                else:
                    for j in range(n - t):
                        for d in range(h * head_stride, h * head_stride + size, WIDTH):
                            store(seen, 0, xor(load(cache, rows[row + j] + d), load(seen, 0)))


@njit(parallel=True, cache=CACHED)
def _touch(k, v, tables, lens, kv_heads, size, block_size, strides, tasks, seen):
    longest = max(lens.max(), 1)
    for task in prange(number_of_tasks(tasks, lens.size, kv_heads)):
        first, last, lo, hi = task_range(task, tasks, lens.size, kv_heads)
        rows = np.empty(BUNDLE * longest, np.int64)
        mine = np.zeros(WIDTH, np.float32)
        for start in range(first, last, BUNDLE):
            end = min(start + BUNDLE, last)
            for r in range(start, end):
                row_starts(rows, (r - start) * longest, tables[r], lens[r], block_size, strides)
            for cache in (k, v):
                _read_rows(cache, rows, lens[start:end], strides[2], lo, hi, size, longest, mine)
        seen[task] = mine[0]


def bind_touch(
    key_cache: Elements,
    value_cache: Elements,
    block_tables: Int32,
    seq_lens: Int32,
    *,
    layout: str = "NHD",
    order: str = "request",
) -> tuple[Any, ...]:
    """Arguments for `touch`: the addresses of a decode launch, in its order, cut into its tasks.

    Shapes as in `decode.bind`.

    Raises:
        ValueError: a row of one head is not a whole number of 64-byte lines.
    """
    size = key_cache.shape[-1]
    if (row_bytes := size * key_cache.itemsize) % LINE:
        raise ValueError(f"a row of one head must be a multiple of {LINE} bytes, got {row_bytes}")
    _, block_size, num_kv_heads, _ = cache_shape(key_cache, layout)
    longest = int(seq_lens.max(initial=0))
    tasks = cut(order, len(seq_lens), num_kv_heads, longest, row_bytes, numba.get_num_threads())
    if tasks.parts > 1:
        block_tables, seq_lens = split_tables(block_tables, seq_lens, block_size, tasks.parts)
    words = 4 // key_cache.itemsize  # elements in a float32
    k, v = (cache.reshape(-1).view(np.float32) for cache in (key_cache, value_cache))
    strides = tuple(stride // words for stride in strides_of(key_cache, layout))
    seen = np.empty(number_of_tasks(tuple(tasks)[:3], len(seq_lens), num_kv_heads), np.float32)
    return (
        k, v, block_tables, seq_lens, num_kv_heads, size // words, block_size, strides,
        tuple(tasks)[:3], seen,
    )  # fmt: skip


def touch(arguments: tuple[Any, ...]) -> None:
    """Load every byte that the decode launch would load, and compute nothing."""
    _touch(*arguments)


drop_stale(_touch)
