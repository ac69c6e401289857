"""Launches that only read memory, and the comparison of a launch with the reference."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from apclab.attention.launch import ROUNDOFF, Int32, Launch
from apclab.attention.tensors import Array, dtype_name, interpreting, place, to_host


def set_threads(threads: int | None = None) -> int:
    """Set the threads of the CPU kernels, None leaves them; see `cpu_decode.set_threads`.

    Returns:
        Threads in use.

    Raises:
        ValueError: not between 1 and what the machine offers.
    """
    from apclab_kernels import cpu_decode

    return cpu_decode.set_threads(threads)


def plan_stream(words: Any, passes: int) -> tuple[Launch, int]:
    """A launch that reads a footprint some times over, all threads or programs together.

    Args:
        words: float32 [n], NumPy for the CPU's probe, a CUDA tensor for Triton's.
        passes: times that the footprint is read.

    Returns:
        The launch, and the bytes that it reads.
    """
    if place(words) != "numpy":
        from apclab_kernels import triton_stream

        on_gpu = triton_stream.bind_stream(words, passes)
        launch = Launch(partial(triton_stream.stream, on_gpu), "triton")
        return launch, triton_stream.bytes_read(on_gpu)
    from apclab_kernels import cpu_stream

    bound = cpu_stream.bind_stream(words, passes)
    return Launch(partial(cpu_stream.stream, bound), "cpu"), cpu_stream.bytes_read(bound)


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
    from apclab_kernels import cpu_stream

    bound = cpu_stream.bind_touch(
        key_cache, value_cache, block_tables, seq_lens, layout=layout, order=order
    )
    return Launch(partial(cpu_stream.touch, bound), "cpu", layout, order)


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
    from apclab_kernels import triton_decode

    ids, lens = (torch.from_numpy(x).to(query.device) for x in (block_tables, seq_lens))
    out = torch.empty_like(query)
    lse = torch.empty(query.shape[:2], dtype=torch.float32, device=query.device)
    bound = triton_decode.bind(
        query, key_cache, value_cache, ids, lens, out, lse, scale=query.shape[-1] ** -0.5,
        layout=layout, order=order, splits=splits,
    )  # fmt: skip
    return Launch(partial(triton_decode.run, bound), "triton", layout, order, out, lse)


class Comparison(NamedTuple):
    """How far a launch is from the reference, at the pair that comes closest to its bound."""

    max_error: float
    error_bound: float
    checked: str

    @property
    def ok(self) -> bool:
        """Whether every compared element lies within its bound; false for NaN."""
        return self.max_error <= self.error_bound


def compare(
    launch: Launch,
    query: Any,
    key_cache: Any,
    value_cache: Any,
    block_tables: Any,
    seq_lens: Any,
    query_start_loc: Any = None,
    *,
    scale: float | None = None,
    pairs: int | None = None,
    seed: int = 0,
    layout: str | None = None,
    rounds_weights: bool | None = None,
    look: Callable[[], None] | None = None,
) -> Comparison:
    """Compare what a launch has left in `out` with float64, element by element.

    Args:
        launch: already called.
        query: as in `plan`.
        key_cache: as in `plan`.
        value_cache: as in `plan`.
        block_tables: as in `plan`.
        seq_lens: as in `plan`.
        query_start_loc: of a prefill, as in `plan_prefill`; None for a decode step.
        scale: as in `plan`.
        pairs: how many (request or new token, head) pairs to draw; None compares everything.
        seed: of the draw.
        layout: of the caches given here; the launch's if None.
        rounds_weights: whether the kernel rounds softmax weights to the dtype before it multiplies
            them with the values; None knows it of our own kernels.
        look: called before each pair; what it raises ends the comparison.

    Returns:
        The element whose error is the largest part of its bound. The bound is that of the kernel's
        float32 arithmetic, plus one rounding to the output's dtype, plus one of the weights where
        the kernel rounds them.
    """
    from apclab_kernels.reference import as_decode
    from apclab_kernels.reference import paged_attention_decode as attend

    batch, num_heads, _ = query.shape
    total = batch * num_heads
    chosen = np.arange(total)
    if pairs is not None and pairs < total:
        chosen = np.random.default_rng(seed).choice(total, pairs, replace=False)
    layout = layout or launch.layout
    axis = 2 if layout == "NHD" else 1
    group = num_heads // key_cache.shape[axis]
    tables, lens = to_host(block_tables), to_host(seq_lens)
    if query_start_loc is not None:
        tables, lens = as_decode(tables, lens, to_host(query_start_loc))
    u = ROUNDOFF[dtype_name(query)]
    # the Triton kernel rounds the weights, too, before it multiplies them with the values; its
    # interpreter truncates to bfloat16 where a GPU rounds
    rounds = launch.backend == "triton" if rounds_weights is None else rounds_weights
    rounded = u if rounds and dtype_name(query) != "float32" else 0.0
    rounded *= 2 if interpreting() else 1
    worst = Comparison(0.0, 1.0, "")
    for request, head in zip(*np.divmod(chosen, num_heads), strict=True):
        if look is not None:
            look()
        one = slice(request, request + 1)
        keys, values, table = _of_pair(
            key_cache, value_cache, tables[request], int(lens[request]), axis, head // group
        )
        truth = attend(
            to_host(query[one, head : head + 1]), keys, values, table, lens[one],
            scale=scale, layout=layout,
        )  # fmt: skip
        got = to_host(launch.out[request, head]).astype(np.float64)
        exact = truth.out[0, 0]
        arithmetic = truth.out_bound[0, 0] + rounded * truth.spread[0, 0]
        # a float16 below 2**-14 is rounded to a multiple of 2**-24
        bound = arithmetic * (1 + u) + max(u, rounded) * np.abs(exact) + 2.0**-25
        error = np.abs(got - exact)
        at = int(np.argmax(np.where(np.isnan(error), np.inf, error / bound)))
        # a NaN stays the worst, whatever comes after it
        if np.isnan(worst.max_error):
            break
        if not error[at] / bound[at] <= worst.max_error / worst.error_bound:
            worst = Comparison(float(error[at]), float(bound[at]), "")
    said = "all pairs" if len(chosen) == total else f"sample of {len(chosen)} of {total} pairs"
    return worst._replace(checked=said)


def _of_pair(
    key_cache: Any, value_cache: Any, table: Int32, seq_len: int, axis: int, kv_head: int
) -> tuple[Array, Array, Int32]:
    """Blocks of one request and KV head in host memory, and the table that names them there."""
    block_size = key_cache.shape[3 - axis]
    used = table[: -(-seq_len // block_size)].tolist()
    # the head first: a view, of which the blocks are then copied, not all heads of them
    head = (slice(None),) * axis + (slice(kv_head, kv_head + 1),)
    keys, values = (to_host(cache[head][used]) for cache in (key_cache, value_cache))
    return keys, values, np.arange(max(1, len(used)), dtype=np.int32)[None]
