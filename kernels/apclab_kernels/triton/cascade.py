"""Prefix-aware decode in Triton: a run that requests share is read once for all their queries.

A program has one KV head, a tile of query rows from several requests of a run, and a piece of the
run's tokens; it leaves a state for each row. What is behind the runs, the tails, is left to the
decode kernel over shifted tables. Then all states of a request are merged. `runs.py` finds the
runs; whether they pay is not asked here.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from apclab_kernels.layout import cache_shape, strides_of
from apclab_kernels.runs import Runs, tails_of
from apclab_kernels.triton import decode
from apclab_kernels.triton.merge import merge
from apclab_kernels.triton.tile import fold
from apclab_kernels.triton.variant import LOG2_E, Variant, product_rows, product_variant
from apclab_kernels.triton.work import choose_piece, cut


@triton.jit
def cascade_kernel(
    query,  # [batch, num_heads, HEAD_SIZE]
    key_cache,
    value_cache,
    requests,  # int32, those of all runs
    blocks,  # int32, those of all runs
    pieces,  # int32 [pieces, 6]: where its requests begin, how many; where its run's blocks begin;
    # its first token in the run, the first after it; which of a request's states it leaves
    partial,  # float32 [batch, num_heads, parts, HEAD_SIZE]
    partial_lse,  # float32 [batch, num_heads, parts], base 2
    scale,  # of scores in base 2: scale * log2(e)
    count,  # of pieces
    parts,
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
    HEAD_FIRST: tl.constexpr,  # programs follow each other head by head, else piece by piece
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,  # the interpreter multiplies bfloat16 as integers
):
    program = tl.program_id(0)
    if HEAD_FIRST:
        piece = program % count
        kv_head = program // count
    else:
        kv_head = program % NUM_KV_HEADS
        piece = program // NUM_KV_HEADS
    request_first = tl.load(pieces + piece * 6)
    request_count = tl.load(pieces + piece * 6 + 1)
    run = blocks + tl.load(pieces + piece * 6 + 2)
    first = tl.load(pieces + piece * 6 + 3)
    last = tl.load(pieces + piece * 6 + 4)
    part = tl.load(pieces + piece * 6 + 5)

    rows = tl.arange(0, ROWS)
    d = tl.arange(0, HEAD_PAD)
    in_head = d < HEAD_SIZE
    there = rows // GROUP < request_count  # [ROWS]
    request = tl.load(requests + request_first + rows // GROUP, mask=there, other=0)
    head = kv_head * GROUP + rows % GROUP
    cell = request.to(tl.int64) * NUM_KV_HEADS * GROUP + head  # [ROWS]
    valid = there[:, None] & in_head[None, :]
    q = tl.load(query + cell[:, None] * HEAD_SIZE + d[None, :], mask=valid, other=0.0)
    if UPCAST:
        q = q.to(tl.float32)

    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD_PAD], tl.float32)
    head_start = kv_head.to(tl.int64) * head_stride
    for start in range(first, last, TILE):
        token = start + tl.arange(0, TILE)  # [TILE], of the run
        in_piece = token < last
        block = tl.load(run + token // BLOCK_SIZE, mask=in_piece, other=0)
        row = block.to(tl.int64) * block_stride + (token % BLOCK_SIZE) * token_stride
        place = (row + head_start)[:, None] + d[None, :]
        inside = in_piece[:, None] & in_head[None, :]
        k = tl.load(key_cache + place, mask=inside, other=0.0)  # [TILE, HEAD_PAD]
        v = tl.load(value_cache + place, mask=inside, other=0.0)
        if UPCAST:
            k = k.to(tl.float32)
            v = v.to(tl.float32)
        top, total, acc = fold(q, k, v, in_piece[None, :], top, total, acc, scale, True, PRECISION)

    cell = cell * parts + part
    # total is 0 only where every score is -inf
    empty = total == 0.0
    acc = acc / tl.where(empty, 1.0, total)[:, None]  # [ROWS, HEAD_PAD]
    lse2 = tl.where(empty, float("-inf"), top + tl.log2(total))
    tl.store(partial_lse + cell, lse2, mask=there)
    tl.store(partial + cell[:, None] * HEAD_SIZE + d[None, :], acc, mask=valid)


class Bound(NamedTuple):
    """A step that is ready to run."""

    grid: tuple[int]  # of the runs; 0 programs if there are none
    chosen: Variant
    arrays: tuple[Any, ...]
    numbers: tuple[Any, ...]
    tails: decode.Bound  # and where all states and their merge go


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
    runs: Runs,
    splits: int | None = None,
    piece_tokens: int | None = None,
) -> Bound:
    """Arguments for `run`: grids, variants, buffers and lists of work.

    Tables and lengths are read on the host here and never in `run`, so a CUDA graph may capture
    that; the next step has other tails and is bound again. Tensors as of `decode.bind`.

    Args:
        query: [batch, num_heads, head_size], contiguous.
        key_cache: contiguous, in the layout.
        value_cache: as key_cache.
        block_tables: int32 [batch, max_blocks], rows contiguous.
        seq_lens: int32 [batch].
        out: where the output goes, contiguous.
        lse: where the log-sum-exp goes, float32 [batch, num_heads], contiguous.
        scale: factor of the scores.
        layout: "NHD" or "HND".
        order: which programs follow each other, "request" (here: pieces of runs) or "head".
        runs: of these tables, from `runs.find_runs`.
        splits: programs that share a tail; None lets `choose_splits` choose.
        piece_tokens: most tokens of a run that one program has; None lets `choose_piece` choose.

    Raises:
        ValueError: a shape that the kernels cannot do.
    """
    _, num_heads, head_size = query.shape
    _, block_size, num_kv_heads, _ = cache_shape(key_cache, layout)
    place = decode.device(query)
    group = num_heads // num_kv_heads
    dtype = str(query.dtype).removeprefix("torch.")
    rows = product_rows(dtype, group, max((len(run.requests) for run in runs.runs), default=1))
    chosen = product_variant(
        dtype, num_heads=num_heads, num_kv_heads=num_kv_heads, head_size=head_size,
        block_size=block_size, rows=rows, head_first=order == "head",
        interpreted=triton.knobs.runtime.interpret, amd=place.amd,
    )  # fmt: skip
    tile, at_once = chosen.constants["TILE"], rows // group
    if piece_tokens is None:
        piece_tokens = choose_piece(
            runs, block_size=block_size, at_once=at_once, num_kv_heads=num_kv_heads, tile=tile,
            sm_count=place.sm_count,
        )  # fmt: skip
    work = cut(runs, block_size=block_size, at_once=at_once, tile=tile, piece_tokens=piece_tokens)
    tables, lens = tails_of(block_tables.cpu().numpy(), seq_lens.cpu().numpy(), runs, block_size)
    tail_tables, tail_lens = block_tables.new_tensor(tables), block_tables.new_tensor(lens)
    if splits is None:
        splits = decode.splits_of(query, key_cache, tail_tables, layout)
        splits = max(1, min(splits, work.room))
    parts = work.parts + splits
    partial = lse.new_empty((*lse.shape, parts, head_size))
    # of most requests some states are never written; they stay empty
    partial_lse = lse.new_full((*lse.shape, parts), float("-inf"))
    caches = (query, key_cache, value_cache)
    tails = decode.bind_partial(
        *caches, tail_tables, tail_lens, partial, partial_lse, scale=scale, layout=layout,
        order=order, splits=splits, parts=parts, part_first=work.parts,
    )  # fmt: skip
    lists = (block_tables.new_tensor(x) for x in (work.requests, work.blocks, work.pieces))
    numbers = (scale * LOG2_E, len(work.pieces), parts, *strides_of(key_cache, layout))
    return Bound(
        (len(work.pieces) * num_kv_heads,), chosen, (*caches, *lists, partial, partial_lse),
        numbers, tails._replace(out=out, lse=lse),
    )  # fmt: skip


def run(bound: Bound) -> None:
    """Launch the products of the runs, the tails and the merge; does not wait for them."""
    left_out = ("SPLITS", "PARTIAL")
    constants = {name: v for name, v in bound.chosen.constants.items() if name not in left_out}
    if bound.grid[0]:
        cascade_kernel[bound.grid](
            *bound.arrays, *bound.numbers, **constants, **bound.chosen.options
        )
    decode.run_partial(bound.tails)
    merge(bound.tails.partial, bound.tails.partial_lse, bound.tails.out, bound.tails.lse)
