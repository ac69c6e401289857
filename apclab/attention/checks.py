"""What a decode step or a prefill must look like, said in one line where it does not."""

import math
from typing import Any

import numpy as np
from apclab_kernels.runs import Rates

from apclab.arguments import instance, one_of, real, truth
from apclab.attention.launch import BACKENDS, DTYPES, LAYOUTS, ORDERS
from apclab.attention.tensors import (
    dtype_name,
    first_not_finite,
    interpreting,
    is_contiguous,
    place,
)


def check_names(**names: str) -> None:
    """Check a layout, a backend and an order, as far as they are given.

    Raises:
        TypeError, ValueError: a name is not known.
    """
    all_known = {"layout": LAYOUTS, "backend": BACKENDS, "order": ORDERS}
    for name, value in names.items():
        one_of(name, value, all_known[name])


def check_how(*, scale: float | None, rates: Rates | None = None, **switches: bool) -> None:
    """Check what a step is to be done with, beside its arrays.

    Raises:
        TypeError: scale is no number, rates are none, a switch is neither True nor False.
        ValueError: scale is not finite.
    """
    if scale is not None and not math.isfinite(real("scale", scale)):
        raise ValueError(f"scale must be finite, got {scale}")
    if rates is not None:
        instance("rates", rates, Rates, "Rates or None")
    for name, value in switches.items():
        truth(name, value)


def check_arrays(
    query: Any, key_cache: Any, value_cache: Any, layout: str, *, rows: str = "batch"
) -> None:
    """Check query and caches: dtypes, shapes, heads, contiguity, finite queries.

    Args:
        query: one row a request, or one a new token.
        key_cache: as in `plan`.
        value_cache: as in `plan`.
        layout: "NHD" or "HND".
        rows: what the query's first dimension is called.

    Raises:
        TypeError: an array is none, or has another dtype.
        ValueError: shapes disagree, or the query holds NaN or infinity.
    """
    named = {"query": query, "key_cache": key_cache, "value_cache": value_cache}
    for name, array in named.items():
        if (dtype := dtype_name(array)) not in DTYPES:
            raise TypeError(f"{name} must be one of {', '.join(DTYPES)}, got {dtype}")
        if dtype != dtype_name(query):
            raise TypeError(f"{name} must have the dtype of query, {query.dtype}, got {dtype}")
    if query.ndim != 3:
        raise ValueError(f"query must be [{rows}, num_heads, head_size], got {list(query.shape)}")
    if key_cache.ndim != 4 or value_cache.shape != key_cache.shape:
        raise ValueError(
            f"key_cache and value_cache must have one shape of 4 dimensions, "
            f"got {list(key_cache.shape)} and {list(value_cache.shape)}"
        )
    for name in ("key_cache", "value_cache"):
        if not is_contiguous(named[name]):
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
    if (where := first_not_finite(query)) is not None:
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


def check_starts(query_start_loc: Any, num_tokens: int) -> None:
    """Check where each request's new tokens start: dtype, shape, first, last, never falling.

    Raises:
        TypeError: no int32 array.
        ValueError: another shape, or starts that do not cut num_tokens into runs.
    """
    starts = query_start_loc
    if not isinstance(starts, np.ndarray) or starts.dtype != np.int32:
        got = starts.dtype if isinstance(starts, np.ndarray) else type(starts).__name__
        raise TypeError(f"query_start_loc must be an int32 array, got {got}")
    if starts.ndim != 1 or len(starts) < 2:
        raise ValueError(f"query_start_loc must be [batch + 1], got {list(starts.shape)}")
    if (starts[0], starts[-1]) != (0, num_tokens):
        raise ValueError(
            f"query_start_loc must go from 0 to the {num_tokens} tokens of query, "
            f"got {starts[0]} to {starts[-1]}"
        )
    if (falls := np.diff(starts) < 0).any():
        at = int(np.argmax(falls))
        raise ValueError(
            f"query_start_loc must not fall, got {starts[at]} and then {starts[at + 1]} at {at + 1}"
        )


def check_new(query_start_loc: Any, seq_lens: Any) -> None:
    """Check that no request has more new tokens than tokens.

    Raises:
        ValueError: one has.
    """
    new = np.diff(query_start_loc)
    if (over := new > seq_lens).any():
        at = int(np.argmax(over))
        raise ValueError(
            f"seq_lens counts cached and new tokens: request {at} has {new[at]} new ones, "
            f"seq_len {seq_lens[at]}"
        )


def check_place(backend: str, where: str) -> None:
    """Check that the arrays live where the backend can use them; `where` as from `one_place`.

    Raises:
        ValueError: they do not.
    """
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


def check_out(out: Any, query: Any) -> None:
    """Check that an output array of the caller fits the query.

    Raises:
        TypeError: no array, on another device, or of another dtype than the query.
        ValueError: another shape, or not C-contiguous.
    """
    if place(out) != place(query) or dtype_name(out) != dtype_name(query):
        got = type(out).__name__ if place(out) is None else f"{dtype_name(out)} ({place(out)})"
        raise TypeError(f"out must be a {dtype_name(query)} array like query, got {got}")
    if tuple(out.shape) != tuple(query.shape) or not is_contiguous(out):
        raise ValueError(f"out must be C-contiguous {list(query.shape)}, got {list(out.shape)}")
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ValueError("out must be an array that can be written, got one that is read-only")


def one_place(**arrays: Any) -> str:
    """Where all arrays live; see `tensors.place`.

    Raises:
        TypeError: one is no array, or they live in different places.
    """
    places = {name: place(array) for name, array in arrays.items()}
    for name, where in places.items():
        if where is None:
            raise TypeError(
                f"{name} must be a NumPy array or a torch tensor, got {type(arrays[name]).__name__}"
            )
    if len(set(places.values())) > 1:
        said = ", ".join(f"{name} {where}" for name, where in places.items())
        raise TypeError(f"all arrays must be NumPy, or torch on one device; got {said}")
    return str(places["query"])
