"""Checks a decode step, imports the backend that was named, binds the launch."""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from apclab.attention.checks import check_arrays, check_out, check_tables
from apclab.attention.launch import (
    BACKENDS,
    LAYOUTS,
    ORDERS,
    Array,
    Int32,
    Launch,
    require,
)


def plan(
    query: Array,
    key_cache: Array,
    value_cache: Array,
    block_tables: Int32,
    seq_lens: Int32,
    *,
    scale: float | None = None,
    layout: str = "NHD",
    backend: str,
    order: str = "request",
    cascade: bool = False,
    out: Array | None = None,
    return_lse: bool = False,  # noqa: ARG001 - one signature for both; the launch always has lse
) -> Launch:
    """Check a decode step and bind it to a backend; nothing runs until the launch is called.

    Args:
        query: float32, float16 or bfloat16 [batch, num_heads, head_size], finite.
        key_cache: same dtype, C-contiguous, [num_blocks, block_size, num_kv_heads, head_size] in
            layout NHD, [num_blocks, num_kv_heads, block_size, head_size] in HND.
        value_cache: as key_cache.
        block_tables: int32 [batch, max_blocks], block ids; ignored past a row's last block.
        seq_lens: int32 [batch], tokens; 0 gives a row of zeros.
        scale: factor of the scores, 1 / sqrt(head_size) if None.
        layout: "NHD" or "HND".
        backend: "reference", "cpu" or "triton".
        order: which runs on the outside, "request" or "head".
        cascade: the prefix-aware kernel.
        out: where the result goes, dtype and shape of query; made if None.
        return_lse: as in `paged_attention_decode`; the launch holds `lse` in any case.

    Returns:
        A launch with `out` and `lse`, float32 [batch, num_heads], natural log.

    Raises:
        TypeError: an array is none, or has another dtype.
        ValueError: a shape, a table entry, a length or a number does not fit.
        Unavailable: the backend cannot run here, or the case does not exist yet.
    """
    for name, value, known in (
        ("layout", layout, LAYOUTS), ("backend", backend, BACKENDS), ("order", order, ORDERS),
    ):  # fmt: skip
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
    require(backend, cascade=cascade)
    check_arrays(query, key_cache, value_cache, layout)
    block_size = key_cache.shape[1 if layout == "NHD" else 2]
    check_tables(block_tables, seq_lens, len(query), len(key_cache), block_size)
    query, block_tables, seq_lens = map(np.ascontiguousarray, (query, block_tables, seq_lens))
    out = np.empty_like(query) if out is None else check_out(out, query)
    lse = np.empty(query.shape[:2], np.float32)
    scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
    arrays = (query, key_cache, value_cache, block_tables, seq_lens)
    if backend == "reference":
        act = _reference_act(arrays, out, lse, scale, layout)
    else:
        from apclab_kernels import cpu_decode

        bound = cpu_decode.bind(*arrays, out, lse, scale=scale, layout=layout, order=order)
        act = partial(cpu_decode.run, bound)
    return Launch(act, backend, layout, order, out, lse)


def paged_attention_decode(
    query: Array,
    key_cache: Array,
    value_cache: Array,
    block_tables: Int32,
    seq_lens: Int32,
    *,
    scale: float | None = None,
    layout: str = "NHD",
    backend: str = "cpu",
    order: str = "request",
    cascade: bool = False,
    out: Array | None = None,
    return_lse: bool = False,
) -> Array | tuple[Array, NDArray[np.float32]]:
    """Attend each query to the cached keys and values of its sequence; arguments as in `plan`.

    Returns:
        out [batch, num_heads, head_size] in the dtype of query; with return_lse also lse, float32
        [batch, num_heads], natural log.
    """
    launch = plan(
        query, key_cache, value_cache, block_tables, seq_lens, scale=scale, layout=layout,
        backend=backend, order=order, cascade=cascade, out=out,
    )  # fmt: skip
    launch()
    return (launch.out, launch.lse) if return_lse else launch.out


def _reference_act(
    arrays: tuple[Array, ...], out: Array, lse: NDArray[np.float32], scale: float, layout: str
) -> Callable[[], None]:
    from apclab_kernels.reference import paged_attention_decode as attend

    def act() -> None:
        truth = attend(*arrays, scale=scale, layout=layout)
        out[...] = truth.out.astype(out.dtype)
        lse[...] = truth.lse

    return act
