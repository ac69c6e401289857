"""Which variants of the Triton kernels a launcher can make in practice. No triton, no arithmetic.

Crossing all that a variant depends on gives thousands; these choices stand for them:

* dtype and head size decide the tile, the layout of registers and of shared memory, and the product
  that is used: crossed in full, with all block sizes.
* Rows of a tile of queries (the group, padded) decide the layout too: 16 for all groups to 16 in
  half precision, so that groups 1 to 16 differ by a mask; 32 and 64 rows have shapes of their own,
  and float32 has no padding. Each group meets each dtype, head size and block size.
* Splits are a division of the program's number and another store at the end, order and the number
  of KV heads are a division: each value meets each dtype and each head size.
* The layout (NHD, HND) only swaps two strides, and both are multiples of the head size.
"""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from apclab_kernels.triton.variant import HEAD_SIZES, MOST_SPLITS

DTYPES = ("float16", "bfloat16", "float32")
GROUPS = (1, 4, 8, 16)
BLOCK_SIZES = (1, 16, 32, 256)
# an odd number of splits: the merge pads it, and the division is not a shift
SPLITS = 7


class Shape(NamedTuple):
    """What a launcher is asked for, as far as it changes code."""

    dtype: str
    num_heads: int
    num_kv_heads: int
    head_size: int
    block_size: int = 16
    splits: int = 1
    order: str = "request"
    queries: int = 1  # of cascade and prefill: those that see the same tokens


def default_variants() -> Iterator[tuple[str, Shape]]:
    """The shapes of issue 4860 (40 heads) and of a grouped model (32 and 8) in each dtype."""
    for dtype, (num_heads, num_kv_heads) in product(DTYPES, ((40, 40), (32, 8))):
        yield "decode", Shape(dtype, num_heads, num_kv_heads, 128)


def doctor_variants() -> Iterator[tuple[str, Shape]]:
    """The default ones, and cascade and prefill in issue 4860's shape with 64 queries."""
    yield from default_variants()
    for dtype, kernel in product(DTYPES, ("cascade", "prefill")):
        yield kernel, Shape(dtype, 40, 40, 128, queries=64)


def quick_variants() -> Iterator[tuple[str, Shape]]:
    """A few that differ most: each dtype, the extremes of head size, rows and block size."""
    yield "decode", Shape("bfloat16", 40, 40, 128)
    yield "decode", Shape("float16", 32, 8, 96, block_size=1, splits=SPLITS, order="head")
    yield "decode", Shape("bfloat16", 48, 1, 256, block_size=256)
    yield "decode", Shape("float32", 40, 40, 128)
    yield "decode", Shape("float32", 32, 1, 256, block_size=32, splits=SPLITS)
    yield "merge", Shape("float16", 8, 8, 256, splits=MOST_SPLITS)


def shipped_variants() -> Iterator[tuple[str, Shape]]:
    """Every kernel ("decode" or "merge") and shape that stands for the ones that can be made."""
    yield from default_variants()
    heads = enumerate(HEAD_SIZES)
    for (i, dtype), (j, head_size), (k, block_size) in product(
        enumerate(DTYPES), heads, enumerate(BLOCK_SIZES)
    ):
        # of each dtype and head size: every block size with another group, both splits, both orders
        group = GROUPS[(i + j + k) % 4]
        num_kv_heads = 40 if group == 1 else 8
        yield "decode", Shape(
            dtype, group * num_kv_heads, num_kv_heads, head_size, block_size,
            splits=SPLITS if (k // 2 + j) % 2 else 1, order="head" if (k + i) % 2 else "request",
        )  # fmt: skip
    for (i, dtype), (j, head_size) in product(enumerate(DTYPES), enumerate(HEAD_SIZES)):
        # one KV head for all: 32 rows, and 64 where half precision allows them
        for group in (32, 48) if dtype != "float32" else (32,):
            splits = SPLITS if (i + j) % 2 else 1
            yield "decode", Shape(dtype, group, 1, head_size, splits=splits)
        for splits in (SPLITS, MOST_SPLITS):
            yield "merge", Shape(dtype, 8, 8, head_size, splits=splits)


def quick_products() -> Iterator[tuple[str, Shape]]:
    """Prefill and cascade in the shapes that are nearest to spilling."""
    yield "prefill", Shape("bfloat16", 32, 8, 128, queries=64)
    yield "cascade", Shape("bfloat16", 40, 40, 128, queries=64)


def product_variants() -> Iterator[tuple[str, Shape]]:
    """Prefill and cascade: every head size and count of rows in float32 and a half precision.

    The loop over tiles depends on these alone. float16 and bfloat16 differ by the name of an
    instruction; they take turns, as block sizes, splits and orders do.
    """
    for (j, head_size), (k, kernel), half in product(
        enumerate(HEAD_SIZES), enumerate(("prefill", "cascade")), (False, True)
    ):
        # groups of 4 and 1 query heads: 16 rows, and 64 where half precision allows them
        for n, (num_heads, num_kv_heads, queries) in enumerate(((32, 8, 4), (40, 40, 64))):
            turn = j + k + n
            yield kernel, Shape(
                DTYPES[turn % 2] if half else "float32", num_heads, num_kv_heads, head_size,
                BLOCK_SIZES[turn % 4], splits=SPLITS if turn % 2 else 1,
                order="head" if turn % 3 else "request", queries=queries,
            )  # fmt: skip
        if head_size == max(HEAD_SIZES):  # one KV head for 48 query heads, 32 of float32
            group, dtype = (48, DTYPES[k]) if half else (32, "float32")
            yield kernel, Shape(dtype, group, 1, head_size, queries=8)


WHICH = {
    "default": default_variants,
    "doctor": doctor_variants,
    "quick": quick_variants,
    "shipped": shipped_variants,
    "quick_products": quick_products,
    "products": product_variants,
}
