"""The buffers of a measurement: random numbers of a dtype without a shape.

They are kept between measurements, so that the points of a sweep reuse them.
"""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from apclab.attention import dtype_of
from apclab.clock import Cancelled, machine

# numbers in the bank that is tiled through a pool: prime, so that no two blocks hold the same ones
_BANK = 1_000_003
_PAGE = 4096
_PIECE = 2**24  # bytes filled between two looks at the cancel flag

# (kind, dtype) -> keys and values; kind -> scratch
_pools: dict[tuple[str, str], tuple[Any, Any]] = {}
_scratch: dict[str, Any] = {}


def held_bytes(kind: str, dtype: str | None = None, pool_bytes: int = 0) -> int:
    """Bytes that earlier measurements of this process left, and a next one reuses or gives back.

    Only true where nothing else holds them: who binds several steps takes the largest pool first.

    Args:
        kind: "cpu" or "cuda".
        dtype: of the pool that is asked for next; one of another makes room. None: none is.
        pool_bytes: keys and values that are asked for next; a larger pool stays as it is.
    """
    held = scratch_bytes(kind)
    for (at, of), pair in _pools.items():
        if at == kind and dtype is not None:
            size = sum(int(array.nbytes) for array in pair)
            held += min(size, pool_bytes) if of == dtype else size
    return held


def scratch_bytes(kind: str) -> int:
    """Bytes of the scratch buffer as it is."""
    return int(_scratch[kind].nbytes) if kind in _scratch else 0


def release() -> None:
    """Give the buffers back."""
    _pools.clear()
    _scratch.clear()
    # torch keeps what it freed; another process may want it
    if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def key_value_pool(
    elements: int, dtype: str, kind: str = "cpu", cancelled: Callable[[], bool] | None = None
) -> tuple[Any, Any]:
    """Two flat arrays of random numbers, at least so long; kept for the next measurement.

    Args:
        elements: of each array.
        dtype: "float32", "float16" or "bfloat16".
        kind: "cpu" for NumPy arrays, "cuda" for tensors on the GPU.
        cancelled: asked every few megabytes.

    Raises:
        Cancelled: `cancelled` said so; nothing is kept.
    """
    key = (kind, dtype)
    if key not in _pools or len(_pools[key][0]) < elements:
        _pools.clear()  # a pool of another dtype makes room
        keys, values = (_random(elements, dtype, kind, seed, cancelled) for seed in (1, 2))
        _pools[key] = (keys, values)
    keys, values = _pools[key]
    return keys[:elements], values[:elements]


def scratch_buffer(
    nbytes: int, kind: str = "cpu", cancelled: Callable[[], bool] | None = None
) -> Any:
    """A float32 buffer to read, at least so large; kept for the next measurement."""
    words = nbytes // 4
    if kind not in _scratch or len(_scratch[kind]) < words:
        _scratch.pop(kind, None)
        _scratch[kind] = _random(words, "float32", kind, 3, cancelled)
    return _scratch[kind][:words]


def _random(
    elements: int, dtype: str, kind: str, seed: int, cancelled: Callable[[], bool] | None
) -> Any:
    """A bank of normal random numbers, tiled; by several threads, since copying is all there is."""
    bank: Any = np.random.default_rng(seed).standard_normal(_BANK, np.float32)
    if kind == "cuda":
        import torch

        wanted = getattr(torch, dtype)
        bank = torch.from_numpy(bank).to("cuda", wanted)
        flat = torch.empty(elements, dtype=wanted, device="cuda")
    else:
        bank = bank.astype(dtype_of(dtype))
        # from a page on: vectors that cross two cache lines load at half the rate
        room = np.empty(elements + _PAGE // bank.itemsize, bank.dtype)
        start = -room.ctypes.data % _PAGE // bank.itemsize
        flat = room[start : start + elements]
    step = max(1, _PIECE // bank.itemsize)

    def fill(start: int) -> None:
        if cancelled is not None and cancelled():
            raise Cancelled("stopped while filling the KV pool")
        piece = flat[start : start + step]
        for at in range(0, len(piece), _BANK):
            offset = (start + at) % _BANK
            part = piece[at : at + _BANK]
            head = min(len(part), _BANK - offset)
            part[:head] = bank[offset : offset + head]
            part[head:] = bank[: len(part) - head]

    # a GPU copies by itself, one asking thread is enough
    with ThreadPoolExecutor(1 if kind == "cuda" else machine(kind)["cores"]) as threads:
        list(threads.map(fill, range(0, elements, step)))
    return flat
