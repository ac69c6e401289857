"""Launches that no step asks for: probes that only read memory, a kernel with given splits."""

from functools import partial
from typing import Any

from apclab.attention.launch import Int32, Launch
from apclab.attention.tensors import Array, place


def set_threads(threads: int | None = None) -> int:
    """Set the threads of the CPU kernels, None leaves them; see `apclab_kernels.cpu.decode`.

    Returns:
        Threads in use.

    Raises:
        ValueError: not between 1 and what the machine offers.
    """
    from apclab_kernels.cpu import decode

    return decode.set_threads(threads)


def plan_stream(words: Any, passes: int) -> tuple[Launch, int]:
    """A launch that reads a footprint some times over, all threads or programs together.

    Args:
        words: float32 [n], NumPy for the CPU's probe, a CUDA tensor for Triton's.
        passes: times that the footprint is read.

    Returns:
        The launch, and the bytes that it reads.
    """
    if place(words) != "numpy":
        from apclab_kernels.triton import stream as on_gpu

        found = on_gpu.bind_stream(words, passes)
        return Launch(partial(on_gpu.stream, found), "triton"), on_gpu.bytes_read(found)
    from apclab_kernels.cpu import stream

    bound = stream.bind_stream(words, passes)
    return Launch(partial(stream.stream, bound), "cpu"), stream.bytes_read(bound)


def plan_touch(
    key_cache: Array,
    value_cache: Array,
    block_tables: Int32,
    seq_lens: Int32,
    *,
    layout: str = "NHD",
    order: str = "request",
) -> Launch:
    """A launch that only loads what the CPU decode kernel would load, in its order."""
    from apclab_kernels.cpu import stream

    bound = stream.bind_touch(
        key_cache, value_cache, block_tables, seq_lens, layout=layout, order=order
    )
    return Launch(partial(stream.touch, bound), "cpu", layout, order)


def plan_split(
    query: Any,
    key_cache: Any,
    value_cache: Any,
    block_tables: Int32,
    seq_lens: Int32,
    *,
    splits: int | None,
    layout: str = "NHD",
    order: str = "request",
) -> Launch:
    """A launch of the Triton kernel with so many programs a sequence; tables come from NumPy.

    Raises:
        ValueError: more splits than the kernel has.
    """
    import torch
    from apclab_kernels.triton import decode

    ids, lens = (torch.from_numpy(x).to(query.device) for x in (block_tables, seq_lens))
    out = torch.empty_like(query)
    lse = torch.empty(query.shape[:2], dtype=torch.float32, device=query.device)
    bound = decode.bind(
        query, key_cache, value_cache, ids, lens, out, lse, scale=query.shape[-1] ** -0.5,
        layout=layout, order=order, splits=splits,
    )  # fmt: skip
    return Launch(partial(decode.run, bound), "triton", layout, order, out, lse)
