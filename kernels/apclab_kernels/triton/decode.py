"""Paged-attention decode in Triton: split-KV, query heads of a KV head packed into one tile.

A program has one request, one KV head and one split of the request's tokens. It keeps the online
softmax of Milakov and Gimelshein (arXiv 1805.02867) over tiles of tokens whose blocks it looks up
one by one, so a tile does not care how large a block is. With more than one split a second kernel
merges what the splits left. reference.py does the same in ten lines; read it beside this.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from apclab_kernels.layout import cache_shape, strides_of
from apclab_kernels.triton.merge import merge
from apclab_kernels.triton.variant import LOG2_E, Variant, choose_splits, variant


@triton.jit
def decode_kernel(
    query,  # [batch, num_heads, HEAD_SIZE]
    key_cache,
    value_cache,
    block_tables,  # int32 [batch, max_blocks]
    seq_lens,  # int32 [batch]
    out,  # [batch, num_heads, HEAD_SIZE], or float32 [batch, num_heads, parts, HEAD_SIZE]
    lse,  # float32 [batch, num_heads], or [batch, num_heads, parts] in base 2
    scale,  # of scores in base 2: scale * log2(e)
    batch,
    parts,  # states that a merge finds of each request and head
    part_first,  # which of them is that of the first split
    table_stride,
    block_stride,
    token_stride,
    head_stride,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads of one KV head
    ROWS: tl.constexpr,  # GROUP padded
    HEAD_SIZE: tl.constexpr,
    HEAD_PAD: tl.constexpr,  # HEAD_SIZE padded to a power of two
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,  # tokens of a tile
    SPLITS: tl.constexpr,
    PARTIAL: tl.constexpr,  # leave a state to merge, else the result
    HEAD_FIRST: tl.constexpr,  # programs follow each other head by head, else request by request
    PRECISION: tl.constexpr,  # of a float32 product: "ieee" keeps all bits, "tf32" would not
    UPCAST: tl.constexpr,  # the interpreter multiplies bfloat16 as integers
):
    # which request, KV head and split; splits of a sequence are neighbours
    program = tl.program_id(0)
    split = program % SPLITS
    if HEAD_FIRST:
        request = (program // SPLITS) % batch
        kv_head = program // SPLITS // batch
    else:
        kv_head = (program // SPLITS) % NUM_KV_HEADS
        request = program // SPLITS // NUM_KV_HEADS

    # the tokens of this split: whole tiles, as evenly as they go
    n = tl.load(seq_lens + request)
    tiles = tl.cdiv(n, TILE)
    first = (tiles * split // SPLITS) * TILE
    last = tl.minimum((tiles * (split + 1) // SPLITS) * TILE, n)

    rows = tl.arange(0, ROWS)
    d = tl.arange(0, HEAD_PAD)
    in_head = d < HEAD_SIZE
    head = kv_head * GROUP + rows  # [ROWS]
    at = (request.to(tl.int64) * NUM_KV_HEADS * GROUP + head) * HEAD_SIZE
    valid = (rows < GROUP)[:, None] & in_head[None, :]
    q = tl.load(query + at[:, None] + d[None, :], mask=valid, other=0.0)  # [ROWS, HEAD_PAD]
    if UPCAST:
        q = q.to(tl.float32)

    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD_PAD], tl.float32)
    table = block_tables + request.to(tl.int64) * table_stride
    head_start = kv_head.to(tl.int64) * head_stride
    for start in range(first, last, TILE):
        token = start + tl.arange(0, TILE)  # [TILE]
        in_split = token < last
        block = tl.load(table + token // BLOCK_SIZE, mask=in_split, other=0)
        row = block.to(tl.int64) * block_stride + (token % BLOCK_SIZE) * token_stride + head_start
        place = row[:, None] + d[None, :]
        inside = in_split[:, None] & in_head[None, :]
        k = tl.load(key_cache + place, mask=inside, other=0.0)  # [TILE, HEAD_PAD]
        v = tl.load(value_cache + place, mask=inside, other=0.0)  # [TILE, HEAD_PAD]
        if UPCAST:
            k = k.to(tl.float32)
            v = v.to(tl.float32)

        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale  # [ROWS, TILE]
        scores = tl.where(in_split[None, :], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        top = new_top

    # no tokens: total 0, top -inf
    empty = total == 0.0
    acc = acc / tl.where(empty, 1.0, total)[:, None]  # [ROWS, HEAD_PAD]
    lse2 = tl.where(empty, float("-inf"), top + tl.log2(total))
    cell = request.to(tl.int64) * NUM_KV_HEADS * GROUP + head
    if not PARTIAL:
        tl.store(lse + cell, lse2 * 0.6931471805599453, mask=rows < GROUP)
        place = cell[:, None] * HEAD_SIZE + d[None, :]
        tl.store(out + place, acc.to(out.dtype.element_ty), mask=valid)
    else:
        cell = cell * parts + part_first + split
        tl.store(lse + cell, lse2, mask=rows < GROUP)
        tl.store(out + cell[:, None] * HEAD_SIZE + d[None, :], acc, mask=valid)


class Device(NamedTuple):
    """What decides a variant besides the shape."""

    sm_count: int
    amd: bool


def device(tensor: Any) -> Device:
    """The device of a tensor; the interpreter has one SM, and needs no torch."""
    if not tensor.is_cuda:
        return Device(1, False)
    import torch

    found = torch.cuda.get_device_properties(tensor.device)
    return Device(found.multi_processor_count, torch.version.hip is not None)


class Bound(NamedTuple):
    """A launch that is ready to run."""

    grid: tuple[int]
    chosen: Variant
    arrays: tuple[Any, ...]
    numbers: tuple[Any, ...]
    partial: Any  # the states that a merge takes, or the result where there is none
    partial_lse: Any
    out: Any = None  # where a merge puts them
    lse: Any = None


def bind(
    query: Any,
    key_cache: Any,
    value_cache: Any,
    block_tables: Any,
    seq_lens: Any,
    out: Any,
    lse: Any,
    *,
    scale: float,
    layout: str = "NHD",
    order: str = "request",
    splits: int | None = None,
) -> Bound:
    """Arguments for `run`: grid, variant and buffers, chosen from shapes alone.

    Shapes and dtypes as in `reference.paged_attention_decode`, as torch tensors on one device;
    `out` has the dtype of the query, lse is float32 [batch, num_heads].

    Args:
        query: [batch, num_heads, head_size], contiguous.
        key_cache: contiguous, in the layout.
        value_cache: as key_cache.
        block_tables: int32 [batch, max_blocks], rows contiguous.
        seq_lens: int32 [batch].
        out: where the output goes, contiguous.
        lse: where the log-sum-exp goes, contiguous.
        scale: factor of the scores.
        layout: "NHD" or "HND".
        order: which programs follow each other, "request" or "head".
        splits: programs that share a sequence; None lets `choose_splits` choose.

    Raises:
        ValueError: a shape that the kernel cannot do.
    """
    cache = (query, key_cache, value_cache, block_tables, seq_lens)
    if splits is None:
        splits = splits_of(*cache[:2], block_tables, layout)
    partial, partial_lse, parts = out, lse, 1
    if splits > 1:
        batch, num_heads, head_size = query.shape
        partial = lse.new_empty((batch, num_heads, splits, head_size))
        partial_lse, parts = lse.new_empty((batch, num_heads, splits)), splits
    bound = bind_partial(
        *cache, partial, partial_lse, scale=scale, layout=layout, order=order, splits=splits,
        parts=parts, part_first=0, final=splits == 1,
    )  # fmt: skip
    return bound._replace(out=out, lse=lse)


def splits_of(query: Any, key_cache: Any, block_tables: Any, layout: str) -> int:
    """Into how many splits `choose_splits` cuts the sequences of a step; arguments as of `bind`."""
    batch, num_heads, head_size = query.shape
    _, block_size, num_kv_heads, _ = cache_shape(key_cache, layout)
    found = device(query)
    chosen = variant(
        str(query.dtype).removeprefix("torch."), num_heads=num_heads, num_kv_heads=num_kv_heads,
        head_size=head_size, block_size=block_size, amd=found.amd,
    )  # fmt: skip
    most_tokens = block_tables.shape[1] * block_size
    return choose_splits(batch, num_kv_heads, most_tokens, chosen.constants["TILE"], found.sm_count)


def bind_partial(
    query: Any,
    key_cache: Any,
    value_cache: Any,
    block_tables: Any,
    seq_lens: Any,
    partial: Any,
    partial_lse: Any,
    *,
    scale: float,
    layout: str,
    order: str,
    splits: int,
    parts: int,
    part_first: int,
    final: bool = False,
) -> Bound:
    """Arguments for `run_partial`, which leaves states that `merge` takes; others as of `bind`.

    Args:
        query: and the next four: see `bind`.
        key_cache: see `bind`.
        value_cache: see `bind`.
        block_tables: see `bind`.
        seq_lens: see `bind`; 0 leaves an empty state, lse -inf.
        partial: float32 [batch, num_heads, parts, head_size], where the states go.
        partial_lse: float32 [batch, num_heads, parts], in base 2.
        scale: see `bind`.
        layout: see `bind`.
        order: see `bind`.
        splits: programs that share a sequence.
        parts: states of each request and head, these and others'.
        part_first: which of them is that of the first split.
        final: the only state is the result, its lse in base e, its dtype that of `partial`.
    """
    batch, num_heads, head_size = query.shape
    _, block_size, num_kv_heads, _ = cache_shape(key_cache, layout)
    chosen = variant(
        str(query.dtype).removeprefix("torch."), num_heads=num_heads, num_kv_heads=num_kv_heads,
        head_size=head_size, block_size=block_size, splits=splits, partial=not final,
        head_first=order == "head", interpreted=triton.knobs.runtime.interpret,
        amd=device(query).amd,
    )  # fmt: skip
    arrays = (query, key_cache, value_cache, block_tables, seq_lens, partial, partial_lse)
    numbers = (
        scale * LOG2_E, batch, parts, part_first, block_tables.stride(0),
        *strides_of(key_cache, layout),
    )  # fmt: skip
    return Bound((batch * num_kv_heads * splits,), chosen, arrays, numbers, partial, partial_lse)


def run(bound: Bound) -> None:
    """Launch the kernel once, and the merge where sequences are split; does not wait for it."""
    run_partial(bound)
    if bound.chosen.constants["PARTIAL"]:
        merge(bound.partial, bound.partial_lse, bound.out, bound.lse)


def run_partial(bound: Bound) -> None:
    """Launch the kernel once, without a merge."""
    decode_kernel[bound.grid](
        *bound.arrays, *bound.numbers, **bound.chosen.constants, **bound.chosen.options
    )
