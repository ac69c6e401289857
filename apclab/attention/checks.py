"""What a decode step must look like, said in one line where it does not."""

from typing import Any

import numpy as np

from apclab.attention.launch import DTYPES, Array


def check_arrays(query: Array, key_cache: Array, value_cache: Array, layout: str) -> None:
    """Check query and caches: dtypes, shapes, heads, contiguity, finite queries.

    Raises:
        TypeError: an array is none, or has another dtype.
        ValueError: shapes disagree, or the query holds NaN or infinity.
    """
    named = {"query": query, "key_cache": key_cache, "value_cache": value_cache}
    for name, array in named.items():
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{name} must be a NumPy array, got {type(array).__name__}")
        if array.dtype.name not in DTYPES:
            raise TypeError(f"{name} must be one of {', '.join(DTYPES)}, got {array.dtype}")
        if array.dtype != query.dtype:
            raise TypeError(
                f"{name} must have the dtype of query, {query.dtype}, got {array.dtype}"
            )
    if query.ndim != 3:
        raise ValueError(f"query must be [batch, num_heads, head_size], got {list(query.shape)}")
    if key_cache.ndim != 4 or value_cache.shape != key_cache.shape:
        raise ValueError(
            f"key_cache and value_cache must have one shape of 4 dimensions, "
            f"got {list(key_cache.shape)} and {list(value_cache.shape)}"
        )
    for name in ("key_cache", "value_cache"):
        if not named[name].flags.c_contiguous:
            raise ValueError(f"{name} must be C-contiguous; its strides decide what is measured")
    if 0 in query.shape or 0 in key_cache.shape:
        raise ValueError(
            f"no dimension may be 0, got query {list(query.shape)}, cache {list(key_cache.shape)}"
        )
    num_heads, head_size = query.shape[1:]
    num_kv_heads = key_cache.shape[2 if layout == "NHD" else 1]
    if key_cache.shape[3] != head_size:
        raise ValueError(f"head_size must be that of query, {head_size}, got {key_cache.shape[3]}")
    if num_heads % num_kv_heads:
        raise ValueError(
            f"num_heads must be a multiple of num_kv_heads, got {num_heads} and {num_kv_heads} "
            f"(is layout {layout} right?)"
        )
    if not np.isfinite(query).all():
        where = np.argwhere(~np.isfinite(query))[0].tolist()
        raise ValueError(f"query must be finite, got {query[tuple(where)]} at {where}")


def check_tables(
    block_tables: Any, seq_lens: Any, batch: int, num_blocks: int, block_size: int
) -> None:
    """Check tables and lengths: dtypes, shapes, rows long enough, ids inside the pool.

    Raises:
        TypeError: one is no int32 array.
        ValueError: a shape, a length or an id does not fit.
    """
    for name, array, ndim in (("block_tables", block_tables, 2), ("seq_lens", seq_lens, 1)):
        if not isinstance(array, np.ndarray) or array.dtype != np.int32:
            got = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
            raise TypeError(f"{name} must be an int32 array, got {got}")
        if array.ndim != ndim or len(array) != batch:
            wanted = "[batch, max_blocks]" if ndim == 2 else "[batch]"
            raise ValueError(f"{name} must be {wanted} with batch {batch}, got {list(array.shape)}")
    if (shortest := int(seq_lens.min())) < 0:
        raise ValueError(f"seq_lens must be at least 0, got {shortest}")
    max_blocks = block_tables.shape[1]
    if (longest := int(seq_lens.max())) > max_blocks * block_size:
        raise ValueError(f"seq_len {longest} does not fit {max_blocks} blocks of {block_size}")
    # [batch, max_blocks]: which entries a kernel reads
    named = np.arange(max_blocks) * block_size < seq_lens[:, None]
    outside = named & ((block_tables < 0) | (block_tables >= num_blocks))
    if outside.any():
        row, column = np.argwhere(outside)[0]
        raise ValueError(
            f"block_tables[{row}, {column}] is {block_tables[row, column]}, outside the pool "
            f"of blocks 0 to {num_blocks - 1}"
        )


def check_out(out: Any, query: Array) -> Array:
    """The caller's output array, if it fits.

    Raises:
        TypeError: no array, or another dtype than the query's.
        ValueError: another shape, or not C-contiguous.
    """
    if not isinstance(out, np.ndarray) or out.dtype != query.dtype:
        got = out.dtype if isinstance(out, np.ndarray) else type(out).__name__
        raise TypeError(f"out must be a {query.dtype} array, got {got}")
    if out.shape != query.shape or not out.flags.c_contiguous:
        raise ValueError(f"out must be C-contiguous {list(query.shape)}, got {list(out.shape)}")
    return out
