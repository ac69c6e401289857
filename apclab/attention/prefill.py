"""Checks a prefill and binds it to the backend that was named."""

from typing import Any

from apclab.attention.binding import bind
from apclab.attention.checks import (
    check_arrays,
    check_how,
    check_names,
    check_new,
    check_out,
    check_place,
    check_starts,
    check_tables,
    one_place,
)
from apclab.attention.launch import Launch, require
from apclab.attention.tensors import to_host


def plan_prefill(
    query: Any,
    key_cache: Any,
    value_cache: Any,
    block_tables: Any,
    seq_lens: Any,
    query_start_loc: Any,
    *,
    scale: float | None = None,
    layout: str = "NHD",
    backend: str,
    order: str = "request",
    out: Any = None,
    return_lse: bool = False,
) -> Launch:
    """Check a prefill and bind it to a backend; nothing runs until the launch is called.

    New tokens attend to the cached tokens of their request, to the new ones before them and to
    themselves; their own keys and values lie in the caches already. What is cached costs no
    arithmetic but that of the new tokens. Kinds of arrays as in `plan`.

    Args:
        query: float32, float16 or bfloat16 [num_tokens, num_heads, head_size], finite: the new
            tokens of all requests, one request after another.
        key_cache: as in `plan`.
        value_cache: as in `plan`.
        block_tables: int32 [batch, max_blocks], block ids; ignored past a row's last block.
        seq_lens: int32 [batch], cached and new tokens of each request.
        query_start_loc: int32 [batch + 1], from 0 to num_tokens: request r has the new tokens
            query_start_loc[r] to query_start_loc[r + 1], none if the two are equal.
        scale: factor of the scores, 1 / sqrt(head_size) if None.
        layout: "NHD" or "HND".
        backend: "reference", "cpu" or "triton".
        order: which runs on the outside, "request" or "head".
        out: where the result goes, dtype and shape of query; made if None.
        return_lse: as in `paged_attention_prefill`; the launch holds `lse` in any case.

    Returns:
        A launch with `out` and `lse`, float32 [num_tokens, num_heads], natural log.

    Raises:
        TypeError: an array is none, has another dtype, or lives elsewhere than the others; or
            another argument is of another type.
        ValueError: a shape, a table entry, a length or a number does not fit, or out is read-only.
        Unavailable: the backend cannot run here.
    """
    check_names(layout=layout, backend=backend, order=order)
    check_how(scale=scale, return_lse=return_lse)
    require(backend)
    where = one_place(query=query, key_cache=key_cache, value_cache=value_cache,
                      block_tables=block_tables, seq_lens=seq_lens,
                      query_start_loc=query_start_loc)  # fmt: skip
    check_place(backend, where)
    check_arrays(query, key_cache, value_cache, layout, rows="num_tokens")
    tables, lens, starts = (to_host(a) for a in (block_tables, seq_lens, query_start_loc))
    check_starts(starts, len(query))
    block_size = key_cache.shape[1 if layout == "NHD" else 2]
    check_tables(tables, lens, len(starts) - 1, len(key_cache), block_size)
    check_new(starts, lens)
    if out is not None:
        check_out(out, query)
    arrays = (query, key_cache, value_cache, block_tables, seq_lens, query_start_loc)
    return bind("prefill", backend, arrays, out, scale=scale, layout=layout, order=order)


def paged_attention_prefill(
    query: Any,
    key_cache: Any,
    value_cache: Any,
    block_tables: Any,
    seq_lens: Any,
    query_start_loc: Any,
    *,
    scale: float | None = None,
    layout: str = "NHD",
    backend: str = "cpu",
    order: str = "request",
    out: Any = None,
    return_lse: bool = False,
) -> Any:
    """Attend new tokens to cached ones and causally to themselves; arguments as in `plan_prefill`.

    Returns:
        out [num_tokens, num_heads, head_size] in the kind and dtype of query; with return_lse also
        lse, float32 [num_tokens, num_heads], natural log.
    """
    launch = plan_prefill(
        query, key_cache, value_cache, block_tables, seq_lens, query_start_loc, scale=scale,
        layout=layout, backend=backend, order=order, out=out, return_lse=return_lse,
    )  # fmt: skip
    launch()
    return (launch.out, launch.lse) if return_lse else launch.out
