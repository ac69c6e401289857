"""Checks a decode step, imports the backend that was named, binds the launch."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apclab.attention.checks import check_arrays, check_out, check_tables, one_place
from apclab.attention.launch import (
    BACKENDS,
    LAYOUTS,
    ORDERS,
    Launch,
    require,
)
from apclab.attention.tensors import Array, as_numpy, as_torch, interpreting, to_host


def plan(
    query: Any,
    key_cache: Any,
    value_cache: Any,
    block_tables: Any,
    seq_lens: Any,
    *,
    scale: float | None = None,
    layout: str = "NHD",
    backend: str,
    order: str = "request",
    cascade: bool = False,
    out: Any = None,
    return_lse: bool = False,  # noqa: ARG001 - one signature for both; the launch always has lse
) -> Launch:
    """Check a decode step and bind it to a backend; nothing runs until the launch is called.

    All arrays are NumPy's, or torch tensors on one device; the result is of the same kind. Host
    tensors go to the CPU kernel as they are, without a copy.

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
        TypeError: an array is none, has another dtype, or lives elsewhere than the others.
        ValueError: a shape, a table entry, a length or a number does not fit.
        Unavailable: the backend cannot run here, or the case does not exist yet.
    """
    for name, value, known in (
        ("layout", layout, LAYOUTS), ("backend", backend, BACKENDS), ("order", order, ORDERS),
    ):  # fmt: skip
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
    require(backend, cascade=cascade)
    where = one_place(query=query, key_cache=key_cache, value_cache=value_cache,
                      block_tables=block_tables, seq_lens=seq_lens)  # fmt: skip
    _check_place(backend, where)
    check_arrays(query, key_cache, value_cache, layout)
    block_size = key_cache.shape[1 if layout == "NHD" else 2]
    check_tables(to_host(block_tables), to_host(seq_lens), len(query), len(key_cache), block_size)
    if out is not None:
        check_out(out, query)
    scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
    arrays = (query, key_cache, value_cache, block_tables, seq_lens)
    if backend == "triton":
        return _on_gpu(arrays, out, scale, layout, order)
    host = [np.ascontiguousarray(as_numpy(array)) for array in arrays]
    made = np.empty_like(host[0]) if out is None else as_numpy(out)
    lse = np.empty(query.shape[:2], np.float32)
    if backend == "reference":
        act = _reference_act(host, made, lse, scale, layout)
    else:
        from apclab_kernels import cpu_decode

        q, k, v, tables, lens = host
        bound = cpu_decode.bind(
            q, k, v, tables, lens, made, lse, scale=scale, layout=layout, order=order
        )
        act = partial(cpu_decode.run, bound)
    if where == "torch":
        out = as_torch(made) if out is None else out
        return Launch(act, backend, layout, order, out, as_torch(lse))
    return Launch(act, backend, layout, order, made, lse)


def _check_place(backend: str, where: str) -> None:
    if backend == "triton" and where != "cuda" and not (where == "torch" and interpreting()):
        raise ValueError(
            "backend triton takes torch tensors on a GPU; move them there with .cuda(), "
            "or use backend='cpu' for arrays in host memory"
        )
    if backend != "triton" and where == "cuda":
        raise ValueError(
            f"backend {backend} takes arrays in host memory; use backend='triton' for CUDA "
            f"tensors, or bring them over with .cpu()"
        )


def _on_gpu(arrays: tuple[Any, ...], out: Any, scale: float, layout: str, order: str) -> Launch:
    import torch
    from apclab_kernels import triton_decode

    query, keys, values, tables, lens = arrays
    query, tables, lens = query.contiguous(), tables.contiguous(), lens.contiguous()
    out = torch.empty_like(query) if out is None else out
    lse = torch.empty(query.shape[:2], dtype=torch.float32, device=query.device)
    bound = triton_decode.bind(
        query, keys, values, tables, lens, out, lse, scale=scale, layout=layout, order=order
    )
    return Launch(partial(triton_decode.run, bound), "triton", layout, order, out, lse)


def paged_attention_decode(
    query: Any,
    key_cache: Any,
    value_cache: Any,
    block_tables: Any,
    seq_lens: Any,
    *,
    scale: float | None = None,
    layout: str = "NHD",
    backend: str = "cpu",
    order: str = "request",
    cascade: bool = False,
    out: Any = None,
    return_lse: bool = False,
) -> Any:
    """Attend each query to the cached keys and values of its sequence; arguments as in `plan`.

    Returns:
        out [batch, num_heads, head_size] in the kind and dtype of query; with return_lse also lse,
        float32 [batch, num_heads], natural log.
    """
    launch = plan(
        query, key_cache, value_cache, block_tables, seq_lens, scale=scale, layout=layout,
        backend=backend, order=order, cascade=cascade, out=out,
    )  # fmt: skip
    launch()
    return (launch.out, launch.lse) if return_lse else launch.out


def _reference_act(
    arrays: list[Array], out: Array, lse: NDArray[np.float32], scale: float, layout: str
) -> Callable[[], None]:
    from apclab_kernels.reference import paged_attention_decode as attend

    def act() -> None:
        truth = attend(*arrays, scale=scale, layout=layout)
        out[...] = truth.out.astype(out.dtype)
        lse[...] = truth.lse

    return act
