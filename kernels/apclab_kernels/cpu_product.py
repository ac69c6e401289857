"""Matrix products with accumulators in registers, and transposition, for numba kernels.

Lanes are columns: sixteen of them side by side, so that a softmax down the rows needs no sum
across lanes.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from apclab_kernels.cpu_vector import F32X16, I32X16, WIDTH, load_as, pointer_to

ROWS = 8  # of a register tile; with two vectors a row 16 accumulators and 10 loads a step

I64 = ir.IntType(64)


def _splat(builder: Any, value: Any) -> Any:
    one = builder.insert_element(ir.Constant(F32X16, ir.Undefined), value, ir.IntType(32)(0))
    zeros = ir.Constant(I32X16, [0] * WIDTH)
    return builder.shuffle_vector(one, ir.Constant(F32X16, ir.Undefined), zeros)


def _product(vectors: int, fresh: bool) -> Any:
    """Code of c (+)= a @ b for a tile of 8 rows and 16 * vectors columns."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a, at, row, step, b, bt, depth, width, c, ct = args
        kinds = signature.args
        fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(F32X16, [F32X16] * 3), f"llvm.fma.v{WIDTH}f32"
        )
        targets = [
            builder.add(ct, builder.add(builder.mul(I64(r), width), I64(WIDTH * w)))
            for r in range(ROWS)
            for w in range(vectors)
        ]
        outs = [pointer_to(context, builder, kinds[8], c, target) for target in targets]
        sums = [cgutils.alloca_once(builder, F32X16) for _ in outs]
        for out, place in zip(outs, sums, strict=True):
            zero = ir.Constant(F32X16, [0.0] * WIDTH)
            builder.store(zero if fresh else load_as(builder, out, F32X16, 4), place)
        left = [
            pointer_to(context, builder, kinds[0], a, builder.add(at, builder.mul(I64(r), row)))
            for r in range(ROWS)
        ]
        right = pointer_to(context, builder, kinds[4], b, bt)
        with cgutils.for_range(builder, depth) as loop:
            here = builder.gep(right, [builder.mul(loop.index, width)])
            columns = [
                load_as(builder, builder.gep(here, [I64(WIDTH * w)]), F32X16, 4)
                for w in range(vectors)
            ]
            offset = builder.mul(loop.index, step)
            for r in range(ROWS):
                x = _splat(builder, builder.load(builder.gep(left[r], [offset])))
                for w in range(vectors):
                    place = sums[r * vectors + w]
                    builder.store(builder.call(fma, [x, columns[w], builder.load(place)]), place)
        for out, place in zip(outs, sums, strict=True):
            builder.store(builder.load(place), builder.bitcast(out, F32X16.as_pointer()), align=4)
        return context.get_dummy_value()

    return codegen


def _signature(a: Any, b: Any, c: Any) -> Any:
    i = types.intp
    return types.void(a, i, i, i, b, i, i, i, c, i)


@intrinsic
def product_1(
    _typing: Any, a: Any, at: Any, row: Any, step: Any, b: Any, bt: Any, depth: Any, width: Any,
    c: Any, ct: Any,
) -> Any:  # fmt: skip
    """Write a @ b to c: 8 rows and 16 columns, all float32.

    Element (r, k) of a is a[at + r * row + k * step], that of b is b[bt + k * width + column], and
    c has rows of `width`, too; k runs to depth.
    """
    return _signature(a, b, c), _product(1, fresh=True)


@intrinsic
def product_2(
    _typing: Any, a: Any, at: Any, row: Any, step: Any, b: Any, bt: Any, depth: Any, width: Any,
    c: Any, ct: Any,
) -> Any:  # fmt: skip
    """As `product_1` for 32 columns."""
    return _signature(a, b, c), _product(2, fresh=True)


@intrinsic
def add_product_1(
    _typing: Any, a: Any, at: Any, row: Any, step: Any, b: Any, bt: Any, depth: Any, width: Any,
    c: Any, ct: Any,
) -> Any:  # fmt: skip
    """Add a @ b to c; see `product_1`."""
    return _signature(a, b, c), _product(1, fresh=False)


@intrinsic
def add_product_2(
    _typing: Any, a: Any, at: Any, row: Any, step: Any, b: Any, bt: Any, depth: Any, width: Any,
    c: Any, ct: Any,
) -> Any:  # fmt: skip
    """Add a @ b to c, 32 columns; see `product_1`."""
    return _signature(a, b, c), _product(2, fresh=False)


@intrinsic
def transpose(
    _typing: Any, a: Any, at: Any, rows_of_a: Any, b: Any, bt: Any, rows_of_b: Any
) -> Any:
    """Write 16 x 16 of a to b with rows and columns exchanged; the strides are those of rows.

    Pairs of rows are interleaved four times over: 64 instructions.
    """

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        source, at, row, target, bt, other = args
        rows = [
            load_as(
                builder,
                pointer_to(context, builder, a, source, builder.add(at, builder.mul(I64(r), row))),
                F32X16,
                4,
            )
            for r in range(WIDTH)
        ]
        half = WIDTH // 2
        first = [i // 2 + (i % 2) * WIDTH for i in range(WIDTH)]
        second = [i + half for i in first]
        for _ in range(4):  # a perfect shuffle of rows and columns, log2(16) times
            pairs = zip(rows[:half], rows[half:], strict=True)
            rows = [
                builder.shuffle_vector(x, y, ir.Constant(I32X16, mask))
                for x, y in pairs
                for mask in (first, second)
            ]
        for r, value in enumerate(rows):
            place = builder.add(bt, builder.mul(I64(r), other))
            pointer = pointer_to(context, builder, b, target, place)
            builder.store(value, builder.bitcast(pointer, F32X16.as_pointer()), align=4)
        return context.get_dummy_value()

    i = types.intp
    return types.void(a, i, i, b, i, i), codegen
