"""Prefill with a cached prefix in Triton: new tokens attend to cached blocks and to themselves.

Keys and values of the new tokens are in the cache already. A program has one KV head, a few new
tokens of one request with all query heads of that KV head as its rows, and one split of the tokens
that they see. Tiles that all rows see need no mask; only those along the diagonal have one.
"""

from typing import Any

import triton
import triton.language as tl

from apclab_kernels.layout import cache_shape, strides_of
from apclab_kernels.triton.decode import Bound, device
from apclab_kernels.triton.merge import merge
from apclab_kernels.triton.tile import fold
from apclab_kernels.triton.variant import LOG2_E, choose_splits, product_rows, product_variant


@triton.jit
def by_token(
    q,  # [ROWS, HEAD_PAD]
    own,  # int32 [ROWS], the last position that a row sees
    keys,  # of the KV head
    values,
    table,  # of the request
    first,
    last,
    scale,
    block_stride,
    token_stride,
    HEAD_SIZE: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Attend to one token after the other: slow, and no row takes part in what it does not see."""
    d = tl.arange(0, HEAD_PAD)
    top = tl.zeros_like(own).to(tl.float32) + float("-inf")
    total = tl.zeros_like(top)
    acc = tl.zeros_like(q).to(tl.float32)
    for position in range(first, last):
        block = tl.load(table + position // BLOCK_SIZE)
        row = block.to(tl.int64) * block_stride + (position % BLOCK_SIZE) * token_stride
        k = tl.load(keys + row + d, mask=d < HEAD_SIZE, other=0.0).to(tl.float32)  # [HEAD_PAD]
        v = tl.load(values + row + d, mask=d < HEAD_SIZE, other=0.0).to(tl.float32)
        seen = position <= own  # [ROWS]
        score = tl.where(seen, tl.sum(q.to(tl.float32) * k[None, :], 1) * scale, float("-inf"))
        new_top = tl.maximum(top, score)
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        weight = tl.exp2(score - base)
        shrink = tl.exp2(top - base)
        total = total * shrink + weight
        update = acc * shrink[:, None] + weight[:, None] * v[None, :]
        acc = tl.where(seen[:, None], update, acc)
        top = new_top
    return top, total, acc


@triton.jit
def prefill_kernel(
    query,  # [num_tokens, num_heads, HEAD_SIZE], new tokens of one request after the other
    key_cache,
    value_cache,
    block_tables,  # int32 [batch, max_blocks]
    seq_lens,  # int32 [batch], cached and new tokens
    query_start_loc,  # int32 [batch + 1]
    out,  # [num_tokens, num_heads, HEAD_SIZE], or float32 [.., SPLITS, HEAD_SIZE]
    lse,  # float32 [num_tokens, num_heads], or [.., SPLITS] in base 2
    scale,  # of scores in base 2: scale * log2(e)
    batch,
    query_tiles,
    table_stride,
    block_stride,
    token_stride,
    head_stride,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads of one KV head
    ROWS: tl.constexpr,  # of a tile of queries
    HEAD_SIZE: tl.constexpr,
    HEAD_PAD: tl.constexpr,  # HEAD_SIZE padded to a power of two
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,  # tokens of a tile of keys and values
    SPLITS: tl.constexpr,
    HEAD_FIRST: tl.constexpr,  # programs follow each other head by head, else request by request
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,  # the interpreter multiplies bfloat16 as integers
):
    program = tl.program_id(0)
    split = program % SPLITS
    if HEAD_FIRST:
        query_tile = (program // SPLITS) % query_tiles
        kv_head = program // SPLITS // query_tiles
    else:
        kv_head = (program // SPLITS) % NUM_KV_HEADS
        query_tile = program // SPLITS // NUM_KV_HEADS

    # Request r has the tiles from query_start_loc[r] // TOKENS + r on: enough for its tokens, and
    # known without a list. This tile is that of the last request which begins no later.
    TOKENS: tl.constexpr = ROWS // GROUP
    request = query_tile * 0
    beyond = request + batch
    while beyond - request > 1:
        middle = (request + beyond) // 2
        if tl.load(query_start_loc + middle) // TOKENS + middle <= query_tile:
            request = middle
        else:
            beyond = middle
    start_loc = tl.load(query_start_loc + request)
    new = tl.load(query_start_loc + request + 1) - start_loc
    token_first = (query_tile - start_loc // TOKENS - request) * TOKENS
    if token_first >= new:
        return

    rows = tl.arange(0, ROWS)
    d = tl.arange(0, HEAD_PAD)
    in_head = d < HEAD_SIZE
    token = token_first + rows // GROUP  # [ROWS], of the request's new tokens
    there = (rows < TOKENS * GROUP) & (token < new)
    head = kv_head * GROUP + rows % GROUP
    cell = (start_loc + token).to(tl.int64) * NUM_KV_HEADS * GROUP + head  # [ROWS]
    valid = there[:, None] & in_head[None, :]
    q = tl.load(query + cell[:, None] * HEAD_SIZE + d[None, :], mask=valid, other=0.0)
    if UPCAST:
        q = q.to(tl.float32)

    # The last position that a row sees is its own. All rows see the tokens before `diagonal`.
    cached = tl.load(seq_lens + request) - new
    own = cached + token  # [ROWS]
    seen_by_one = cached + tl.minimum(token_first + TOKENS, new)
    tiles = tl.cdiv(seen_by_one, TILE)
    first = (tiles * split // SPLITS) * TILE
    last = tl.minimum((tiles * (split + 1) // SPLITS) * TILE, seen_by_one)
    diagonal = (cached + token_first + 1) // TILE * TILE
    diagonal = tl.minimum(tl.maximum(diagonal, first), last)

    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD_PAD], tl.float32)
    table = block_tables + request.to(tl.int64) * table_stride
    head_start = kv_head.to(tl.int64) * head_stride
    for start in range(first, diagonal, TILE):
        position = start + tl.arange(0, TILE)  # [TILE]
        block = tl.load(table + position // BLOCK_SIZE)
        row = block.to(tl.int64) * block_stride + (position % BLOCK_SIZE) * token_stride
        place = (row + head_start)[:, None] + d[None, :]
        k = tl.load(key_cache + place, mask=in_head[None, :], other=0.0)  # [TILE, HEAD_PAD]
        v = tl.load(value_cache + place, mask=in_head[None, :], other=0.0)
        if UPCAST:
            k = k.to(tl.float32)
            v = v.to(tl.float32)
        top, total, acc = fold(q, k, v, None, top, total, acc, scale, False, PRECISION)

    for start in range(diagonal, last, TILE):
        position = start + tl.arange(0, TILE)  # [TILE]
        in_split = position < last
        block = tl.load(table + position // BLOCK_SIZE, mask=in_split, other=0)
        row = block.to(tl.int64) * block_stride + (position % BLOCK_SIZE) * token_stride
        place = (row + head_start)[:, None] + d[None, :]
        inside = in_split[:, None] & in_head[None, :]
        k = tl.load(key_cache + place, mask=inside, other=0.0)  # [TILE, HEAD_PAD]
        v = tl.load(value_cache + place, mask=inside, other=0.0)
        if UPCAST:
            k = k.to(tl.float32)
            v = v.to(tl.float32)
        seen = position[None, :] <= own[:, None]  # [ROWS, TILE]
        top, total, acc = fold(q, k, v, seen, top, total, acc, scale, True, PRECISION)

    # A weight of 0 times infinity is NaN, so a value that is not finite has reached rows that do
    # not see it; then no product of tiles will do.
    if tl.max((acc != acc).to(tl.int32)) > 0:
        top, total, acc = by_token(
            q, own, key_cache + head_start, value_cache + head_start, table, first, last, scale,
            block_stride, token_stride, HEAD_SIZE, HEAD_PAD, BLOCK_SIZE,
        )  # fmt: skip

    # a split of tokens that a row does not see: total 0, top -inf
    empty = total == 0.0
    acc = acc / tl.where(empty, 1.0, total)[:, None]  # [ROWS, HEAD_PAD]
    lse2 = tl.where(empty, float("-inf"), top + tl.log2(total))
    if SPLITS == 1:
        tl.store(lse + cell, lse2 * 0.6931471805599453, mask=there)
        place = cell[:, None] * HEAD_SIZE + d[None, :]
        tl.store(out + place, acc.to(out.dtype.element_ty), mask=valid)
    else:
        cell = cell * SPLITS + split
        tl.store(lse + cell, lse2, mask=there)
        tl.store(out + cell[:, None] * HEAD_SIZE + d[None, :], acc, mask=valid)


def bind(
    query: Any,
    key_cache: Any,
    value_cache: Any,
    block_tables: Any,
    seq_lens: Any,
    query_start_loc: Any,
    out: Any,
    lse: Any,
    *,
    scale: float,
    layout: str = "NHD",
    order: str = "request",
    splits: int | None = None,
) -> Bound:
    """Arguments for `run`: grid, variant and buffers, chosen from shapes alone.

    Torch tensors on one device. A CUDA graph may replay the launch with other lengths.

    Args:
        query: [num_tokens, num_heads, head_size], contiguous, new tokens of one request after the
            other. Rows past the last request's tokens are left alone.
        key_cache: contiguous, in the layout; holds the new tokens, too.
        value_cache: as key_cache.
        block_tables: int32 [batch, max_blocks], rows contiguous.
        seq_lens: int32 [batch], cached and new tokens.
        query_start_loc: int32 [batch + 1], where each request's new tokens begin; the first is 0.
        out: where the output goes, dtype and shape of query, contiguous.
        lse: where the log-sum-exp goes, float32 [num_tokens, num_heads], contiguous.
        scale: factor of the scores.
        layout: "NHD" or "HND".
        order: which programs follow each other, "request" or "head".
        splits: programs that share what a tile of queries sees; None lets `choose_splits` choose.

    Raises:
        ValueError: a shape that the kernel cannot do.
    """
    num_tokens, num_heads, head_size = query.shape
    batch = seq_lens.shape[0]
    _, block_size, num_kv_heads, _ = cache_shape(key_cache, layout)
    place = device(query)
    dtype = str(query.dtype).removeprefix("torch.")
    rows = product_rows(dtype, num_heads // num_kv_heads, -(-num_tokens // batch))
    shape = {
        "num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_size": head_size,
        "block_size": block_size, "rows": rows, "head_first": order == "head",
        "interpreted": triton.knobs.runtime.interpret, "amd": place.amd,
    }  # fmt: skip
    chosen = product_variant(dtype, **shape)
    query_tiles = num_tokens // (rows // chosen.constants["GROUP"]) + batch
    if splits is None:
        most_tokens = block_tables.shape[1] * block_size
        tile = chosen.constants["TILE"]
        splits = choose_splits(query_tiles, num_kv_heads, most_tokens, tile, place.sm_count)
    chosen = product_variant(dtype, splits=splits, **shape)
    partial, partial_lse = out, lse
    if splits > 1:
        partial = lse.new_empty((num_tokens, num_heads, splits, head_size))
        partial_lse = lse.new_empty((num_tokens, num_heads, splits))
    arrays = (
        *(query, key_cache, value_cache, block_tables, seq_lens, query_start_loc),
        *(partial, partial_lse),
    )
    numbers = (
        scale * LOG2_E, batch, query_tiles, block_tables.stride(0),
        *strides_of(key_cache, layout),
    )  # fmt: skip
    grid = (query_tiles * num_kv_heads * splits,)
    return Bound(grid, chosen, arrays, numbers, partial, partial_lse, out, lse)


def run(bound: Bound) -> None:
    """Launch the kernel once, and the merge where there are splits; does not wait for it."""
    constants = {name: v for name, v in bound.chosen.constants.items() if name != "PARTIAL"}
    prefill_kernel[bound.grid](*bound.arrays, *bound.numbers, **constants, **bound.chosen.options)
    if constants["SPLITS"] > 1:
        merge(bound.partial, bound.partial_lse, bound.out, bound.lse)
