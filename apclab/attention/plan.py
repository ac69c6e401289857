"""Checks a decode step and binds it to the backend that was named."""

from dataclasses import replace
from typing import Any

from apclab_kernels.runs import Rates

from apclab.attention.binding import bind
from apclab.attention.cascade import runs_of
from apclab.attention.checks import (
    check_arrays,
    check_how,
    check_names,
    check_out,
    check_place,
    check_tables,
    one_place,
)
from apclab.attention.launch import Launch, require
from apclab.attention.tensors import to_host


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
    rates: Rates | None = None,
    out: Any = None,
    return_lse: bool = False,
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
        cascade: the prefix-aware kernel, which reads what requests share once for all of them;
            runs of shared blocks are found in the tables. The reference is the same either way.
        rates: of the machine, by which runs that do not pay are left out; None takes all.
        out: where the result goes, dtype and shape of query; made if None.
        return_lse: as in `paged_attention_decode`; the launch holds `lse` in any case.

    Returns:
        A launch with `out` and `lse`, float32 [batch, num_heads], natural log. With `cascade` its
        `ran` says which kernel was bound, and `why` what was left out.

    Raises:
        TypeError: an array is none, has another dtype, or lives elsewhere than the others; or
            another argument is of another type.
        ValueError: a shape, a table entry, a length or a number does not fit, or out is read-only.
        Unavailable: the backend cannot run here.
    """
    check_names(layout=layout, backend=backend, order=order)
    check_how(scale=scale, rates=rates, cascade=cascade, return_lse=return_lse)
    require(backend)
    where = one_place(query=query, key_cache=key_cache, value_cache=value_cache,
                      block_tables=block_tables, seq_lens=seq_lens)  # fmt: skip
    check_place(backend, where)
    check_arrays(query, key_cache, value_cache, layout)
    block_size = key_cache.shape[1 if layout == "NHD" else 2]
    on_host = to_host(block_tables), to_host(seq_lens)
    check_tables(*on_host, len(query), len(key_cache), block_size)
    if out is not None:
        check_out(out, query)
    runs, why = None, ""
    if cascade and backend != "reference":
        runs, why = runs_of(query, key_cache, *on_host, layout=layout, rates=rates)
    arrays = (query, key_cache, value_cache, block_tables, seq_lens)
    if runs is None:
        launch = bind("decode", backend, arrays, out, scale=scale, layout=layout, order=order)
        return replace(launch, why=why)
    launch = bind(
        "cascade", backend, arrays, out, scale=scale, layout=layout, order=order, runs=runs
    )
    return replace(launch, ran="cascade", why=why)


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
    rates: Rates | None = None,
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
        backend=backend, order=order, cascade=cascade, rates=rates, out=out,
        return_lse=return_lse,
    )  # fmt: skip
    launch()
    return (launch.out, launch.lse) if return_lse else launch.out
