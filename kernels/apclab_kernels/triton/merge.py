"""Merges the states that splits and runs left of a row: the last step of split and prefix-aware.

A state is what attention over some of the tokens gives, with the log-sum-exp of their scores.
"""

from typing import Any

import triton
import triton.language as tl

from apclab_kernels.triton.variant import MERGE_WARPS, power_of_two


@triton.jit
def merge_kernel(
    partial,  # float32 [batch * num_heads, SPLITS, HEAD_SIZE]
    partial_lse,  # float32 [batch * num_heads, SPLITS], base 2, -inf where a split was empty
    out,  # [batch * num_heads, HEAD_SIZE]
    lse,  # float32 [batch * num_heads], natural
    HEAD_SIZE: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLITS_PAD: tl.constexpr,
):
    cell = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS_PAD)
    d = tl.arange(0, HEAD_PAD)
    there = split < SPLITS
    parts = tl.load(partial_lse + cell * SPLITS + split, mask=there, other=float("-inf"))
    top = tl.max(parts, 0)
    # a sequence without tokens: every part is -inf, and -inf - -inf would be NaN
    weights = tl.where(parts == float("-inf"), 0.0, tl.exp2(parts - top))  # [SPLITS_PAD]
    total = tl.sum(weights, 0)
    place = (cell * SPLITS + split)[:, None] * HEAD_SIZE + d[None, :]
    # nothing is read of a state that holds no tokens: it may never have been written
    valid = (there & (parts != float("-inf")))[:, None] & (d < HEAD_SIZE)[None, :]
    acc = tl.load(partial + place, mask=valid, other=0.0)  # [SPLITS_PAD, HEAD_PAD]
    merged = tl.sum(acc * weights[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out + cell * HEAD_SIZE + d, merged.to(out.dtype.element_ty), mask=d < HEAD_SIZE)
    tl.store(lse + cell, (top + tl.log2(total)) * 0.6931471805599453)


def merge(partial: Any, partial_lse: Any, out: Any, lse: Any) -> None:
    """Launch the merge of states.

    Args:
        partial: float32 [.., parts, head_size], contiguous.
        partial_lse: float32 [.., parts], base 2; -inf where a state is empty, which is not read.
        out: [.., head_size]; zeros where every state is empty.
        lse: float32 [..], natural.
    """
    cells = 1
    for length in lse.shape:
        cells *= length
    parts, head_size = partial.shape[-2:]
    merge_kernel[(cells,)](
        partial, partial_lse, out, lse, head_size, power_of_two(head_size),
        parts, power_of_two(parts), num_warps=MERGE_WARPS,
    )  # fmt: skip
