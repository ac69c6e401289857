"""Launches that only read memory, and the comparison of a launch with the reference."""

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from apclab.attention.launch import ROUNDOFF, Array, Int32, Launch


def set_threads(threads: int | None = None) -> int:
    """Set the threads of the CPU kernels, None leaves them; see `cpu_decode.set_threads`.

    Returns:
        Threads in use.

    Raises:
        ValueError: not between 1 and what the machine offers.
    """
    from apclab_kernels import cpu_decode

    return cpu_decode.set_threads(threads)


def plan_stream(words: NDArray[np.float32], passes: int) -> tuple[Launch, int]:
    """A launch that reads a footprint, each thread its part, some times over; and its bytes.

    Args:
        words: float32 [n].
        passes: times that each thread reads its part.
    """
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
    query: Array,
    key_cache: Array,
    value_cache: Array,
    block_tables: Int32,
    seq_lens: Int32,
    *,
    scale: float | None = None,
    pairs: int | None = None,
    seed: int = 0,
) -> Comparison:
    """Compare what a launch has left in `out` with float64, element by element.

    Args:
        launch: already called.
        query: as in `plan`.
        key_cache: as in `plan`.
        value_cache: as in `plan`.
        block_tables: as in `plan`.
        seq_lens: as in `plan`.
        scale: as in `plan`.
        pairs: how many (request, head) pairs to draw; None compares everything.
        seed: of the draw.

    Returns:
        The element whose error is the largest part of its bound. The bound is that of the kernel's
        float32 arithmetic, plus one rounding to the output's dtype.
    """
    from apclab_kernels.reference import paged_attention_decode as attend

    batch, num_heads, _ = query.shape
    total = batch * num_heads
    chosen = np.arange(total)
    if pairs is not None and pairs < total:
        chosen = np.random.default_rng(seed).choice(total, pairs, replace=False)
    axis = 2 if launch.layout == "NHD" else 1
    group = num_heads // key_cache.shape[axis]
    u = ROUNDOFF[query.dtype.name]
    worst = Comparison(0.0, 1.0, "")
    for request, head in zip(*np.divmod(chosen, num_heads), strict=True):
        kv_head = [slice(None)] * 4
        kv_head[axis] = slice(head // group, head // group + 1)
        one = slice(request, request + 1)
        truth = attend(
            query[one, head : head + 1], key_cache[tuple(kv_head)], value_cache[tuple(kv_head)],
            block_tables[one], seq_lens[one], scale=scale, layout=launch.layout,
        )  # fmt: skip
        got = launch.out[request, head].astype(np.float64)
        exact = truth.out[0, 0]
        # a float16 below 2**-14 is rounded to a multiple of 2**-24
        bound = truth.out_bound[0, 0] * (1 + u) + u * np.abs(exact) + 2.0**-25
        error = np.abs(got - exact)
        at = int(np.argmax(np.where(np.isnan(error), np.inf, error / bound)))
        if not error[at] / bound[at] <= worst.max_error / worst.error_bound:
            worst = Comparison(float(error[at]), float(bound[at]), "")
    said = "all pairs" if len(chosen) == total else f"sample of {len(chosen)} of {total} pairs"
    return worst._replace(checked=said)
