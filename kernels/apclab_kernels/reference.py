"""Paged-attention decode in NumPy and float64, a sequence at a time: the truth, slow and short."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apclab_kernels.layout import Elements, Int32, by_token, cache_shape

Float64 = NDArray[np.float64]


# half the distance from 1 to the next larger number
ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# half the distance from 0 to the next number
UNDERFLOW = {"float32": 2.0**-150, "float16": 2.0**-25, "bfloat16": 2.0**-134}


class Attended(NamedTuple):
    """One decode step's attention in float64, and how far a float32 kernel may be from it."""

    out: Float64  # [batch, num_heads, head_size]
    lse: Float64  # [batch, num_heads], natural log; -inf where seq_len is 0
    out_bound: Float64  # [batch, num_heads, head_size], before rounding to the output's dtype
    lse_bound: Float64  # [batch, num_heads]
    spread: Float64  # [batch, num_heads, head_size], sum of |weight * value|


def gather(cache: Elements, block_table: Int32, seq_len: int, layout: str) -> Float64:
    """Collect one sequence from its blocks: float64 [seq_len, num_kv_heads, head_size]."""
    block_size = cache_shape(cache, layout).block_size
    blocks = by_token(cache[block_table[: -(-seq_len // block_size)]], layout)
    tokens: Elements = blocks.reshape(-1, *blocks.shape[2:])[:seq_len]
    return tokens.astype(np.float64)


def paged_attention_decode(
    query: Elements,
    key_cache: Elements,
    value_cache: Elements,
    block_tables: Int32,
    seq_lens: Int32,
    *,
    scale: float | None = None,
    layout: str = "NHD",
) -> Attended:
    """Attend each query to the keys and values that its row of the block table names.

    Args:
        query: float32, float16 or bfloat16 [batch, num_heads, head_size].
        key_cache: same dtype, [num_blocks, block_size, num_kv_heads, head_size] in layout NHD,
            [num_blocks, num_kv_heads, block_size, head_size] in HND.
        value_cache: as key_cache.
        block_tables: int32 [batch, max_blocks].
        seq_lens: int32 [batch], tokens; 0 gives a row of zeros.
        scale: factor of the scores, 1 / sqrt(head_size) if None.
        layout: "NHD" or "HND".

    The bounds hold for every kernel that multiplies and adds in float32, in whatever order: a sum
    of n products errs by at most n u sum |a b| with u = 2**-24; an error e of a score changes its
    weight by a factor of at most exp(2 e), since numerator and denominator both move; the kernels'
    exponentials add 4 u. So does each rescaling of a running sum, which saves more than that where
    its tiles are summed on their own first. Source: Higham, Accuracy and Stability of Numerical
    Algorithms, 3.1.
    """
    batch, num_heads, head_size = query.shape
    scale = head_size**-0.5 if scale is None else scale
    u = ROUNDOFF["float32"]
    out = np.zeros((batch, num_heads, head_size))
    lse = np.full((batch, num_heads), -np.inf)
    out_bound, lse_bound, spread = np.zeros_like(out), np.zeros_like(lse), np.zeros_like(out)
    for r in range(batch):
        if (n := int(seq_lens[r])) == 0:
            continue
        k = gather(key_cache, block_tables[r], n, layout)
        v = gather(value_cache, block_tables[r], n, layout)
        group = num_heads // k.shape[1]
        q = query[r].astype(np.float64).reshape(-1, group, head_size) * scale
        scores = np.einsum("hgd,thd->hgt", q, k)
        # in place: of a long sequence each copy counts
        sizes = np.einsum("hgd,thd->hgt", np.abs(q), np.abs(k, out=k)).max(-1, keepdims=True)
        top = scores.max(-1, keepdims=True)
        weights = np.exp(scores - top)
        total = weights.sum(-1, keepdims=True)
        weights /= total
        relative = relative_bound(sizes, n, head_size)  # [kv_heads, group, 1]
        out[r] = np.einsum("hgt,thd->hgd", weights, v).reshape(num_heads, head_size)
        absolute = np.einsum("hgt,thd->hgd", weights, np.abs(v, out=v))
        spread[r] = absolute.reshape(num_heads, head_size)
        out_bound[r] = (absolute * relative).reshape(num_heads, head_size)
        lse[r] = (top + np.log(total)).reshape(num_heads)
        lse_bound[r] = relative.reshape(-1) + 8 * u * (1 + np.abs(lse[r]))
    return Attended(out, lse, out_bound, lse_bound, spread)


def relative_bound(sizes: Any, seq_len: int, head_size: int) -> Any:
    """How far float32 attention may be from the exact one, as a part of sum p|v|.

    The errors of scores, exponentials, the sum of weights and the sum over values.

    Args:
        sizes: the largest sum |q||k| of the row's scores, any shape, NumPy or torch.
        seq_len: tokens.
        head_size: elements of a head.
    """
    u = ROUNDOFF["float32"]
    return 2 * (head_size + 4) * u * sizes + (2 * seq_len + 20) * u


def output_bound(truth: Any, dtype: str, *, rounded_weights: float = 0.0) -> Any:
    """How far an output in its dtype may be from the exact one: [.., head_size].

    The kernel's float32 arithmetic, then one rounding to the dtype; where the kernel rounds the
    weights to it before it multiplies them with the values, those roundings too.

    Args:
        truth: `out`, `out_bound` and `spread` as of `Attended`, NumPy or torch.
        dtype: of the output.
        rounded_weights: error of a weight in units of the dtype's roundoff: 1 for a kernel that
            rounds weights to the dtype before the second product, 2 if it truncates.
    """
    u = ROUNDOFF[dtype]
    arithmetic = truth.out_bound + rounded_weights * u * truth.spread
    rounding = max(1.0, rounded_weights) * u * (abs(truth.out) + arithmetic)
    return arithmetic + rounding + UNDERFLOW[dtype]


def as_decode(block_tables: Int32, seq_lens: Int32, query_start_loc: Int32) -> tuple[Int32, Int32]:
    """New tokens as a decode step: a request each, as long as the token can see.

    Args:
        block_tables: int32 [batch, max_blocks].
        seq_lens: int32 [batch], cached and new tokens.
        query_start_loc: int32 [batch + 1], where each request's new tokens start, and their number.

    Returns:
        Block tables [num_tokens, max_blocks] and lengths [num_tokens]. New token j of a request
        sees all that came before it and itself: seq_len - new + j + 1 tokens.
    """
    new = np.diff(query_start_loc)
    request = np.repeat(np.arange(len(new)), new)
    to_end = query_start_loc[1:][request] - np.arange(len(request))
    return block_tables[request], (seq_lens[request] - to_end + 1).astype(np.int32)


def paged_attention_prefill(
    query: Elements,
    key_cache: Elements,
    value_cache: Elements,
    block_tables: Int32,
    seq_lens: Int32,
    query_start_loc: Int32,
    *,
    scale: float | None = None,
    layout: str = "NHD",
) -> Attended:
    """Attend new tokens to the cached ones and causally to themselves.

    Args:
        query: float32, float16 or bfloat16 [num_tokens, num_heads, head_size], the new tokens of
            all requests, one after another; their keys and values lie in the caches already.
        key_cache: as in `paged_attention_decode`.
        value_cache: as in `paged_attention_decode`.
        block_tables: int32 [batch, max_blocks].
        seq_lens: int32 [batch], cached and new tokens.
        query_start_loc: int32 [batch + 1]; request r has tokens query_start_loc[r] to [r + 1].
        scale: as in `paged_attention_decode`.
        layout: as in `paged_attention_decode`.

    Returns:
        As of a decode step whose batch are the new tokens; the bounds hold as there.
    """
    tables, lens = as_decode(block_tables, seq_lens, query_start_loc)
    return paged_attention_decode(
        query, key_cache, value_cache, tables, lens, scale=scale, layout=layout
    )
