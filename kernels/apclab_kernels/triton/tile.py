"""One step of the online softmax in Triton: a tile of tokens is folded into the state of its rows.

Shared by the kernels whose rows see different tokens or none (prefill) and whose rows come from
different requests (cascade). It launches nothing.
"""

import triton
import triton.language as tl


@triton.jit
def fold(
    q,  # [ROWS, HEAD_PAD]
    k,  # [TILE, HEAD_PAD]
    v,  # [TILE, HEAD_PAD]
    seen,  # bool, [ROWS, TILE] or [1, TILE]: which row attends to which token
    top,  # float32 [ROWS], the largest score so far, base 2
    total,  # float32 [ROWS], the sum of weights so far
    acc,  # float32 [ROWS, HEAD_PAD]
    scale,  # of scores in base 2
    MASKED: tl.constexpr,  # False: every row attends to every token
    PRECISION: tl.constexpr,
):
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale  # [ROWS, TILE]
    if MASKED:
        scores = tl.where(seen, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    # a row that has seen no token yet: -inf - -inf would be NaN
    base = tl.where(new_top == float("-inf"), 0.0, new_top)
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(top - base)
    total = total * shrink + tl.sum(weights, 1)
    acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
    return new_top, total, acc
