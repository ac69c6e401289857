"""Products of small matrices held in cache, for numba kernels: sums stay in registers.

The columns of B and C are lanes, 16 or 32 side by side; an element of A is spread over all of them.
So A is read as it lies, by rows or by columns, and nothing but B and C is ever transposed.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from apclab_kernels.cpu.vector import (
    F32,
    F32X16,
    I32X16,
    WIDTH,
    call,
    load_as,
    pointer_to,
    spread,
)

I64 = ir.IntType(64)
# the CPU features that numba compiles for, NUMBA_CPU_FEATURES included
_WIDE = "+avx512f" in cpu_target.target_context.codegen().magic_tuple()[2]
# rows of C in registers: 8 x 2 sums of 512 bits, or 4 x 1 of twice 256 (four times 128) bits
BLOCK = 8 if _WIDE else 4
LANES = 2 * WIDTH if _WIDE else WIDTH  # query rows side by side


def _float_at(builder: Any, data: Any, index: Any) -> Any:
    return builder.load(builder.gep(data, [index]))


def _vector_at(builder: Any, data: Any, index: Any, number: int) -> Any:
    at = builder.add(index, I64(number * WIDTH))
    return load_as(builder, builder.gep(data, [at]), F32X16, 4)


def _put(builder: Any, value: Any, data: Any, index: Any, number: int) -> None:
    at = builder.gep(data, [builder.add(index, I64(number * WIDTH))])
    builder.store(value, builder.bitcast(at, F32X16.as_pointer()), align=4)


def _sums(context: Any, builder: Any, vectors: int) -> list[list[Any]]:
    zero = ir.Constant(F32X16, [0.0] * WIDTH)
    return [
        [cgutils.alloca_once_value(builder, zero) for _ in range(vectors)] for _ in range(BLOCK)
    ]


def _add_products(builder: Any, sums: Any, factors: Any, lanes: Any, seen: Any = None) -> None:
    """sums[m][v] += factors[m] * lanes[v], in those lanes alone that are seen if that is given."""
    for row, factor in zip(sums, factors, strict=True):
        for v, (place, lane) in enumerate(zip(row, lanes, strict=True)):
            old = builder.load(place)
            new = call(builder, "fma", factor, lane, old)
            builder.store(builder.select(seen[v], new, old) if seen else new, place)


def _rows_product(vectors: int) -> Any:
    @intrinsic
    def product(
        _typing: Any, a: Any, i: Any, a_row: Any, b: Any, j: Any, inner: Any, c: Any, k: Any
    ) -> Any:
        """BLOCK rows of C = rows of A @ B; see `rows_product`."""
        lanes = vectors * WIDTH

        def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            a_data, b_data, c_data = (
                pointer_to(context, builder, kind, args[n], I64(0))
                for n, kind in ((0, a), (3, b), (6, c))
            )
            sums = _sums(context, builder, vectors)
            starts = [builder.add(args[1], builder.mul(args[2], I64(m))) for m in range(BLOCK)]
            with cgutils.for_range(builder, args[5]) as loop:
                at = builder.add(args[4], builder.mul(loop.index, I64(lanes)))
                lane = [_vector_at(builder, b_data, at, v) for v in range(vectors)]
                factors = []
                for start in starts:
                    x = _float_at(builder, a_data, builder.add(start, loop.index))
                    factors.append(spread(builder, x))
                _add_products(builder, sums, factors, lane)
            for m, row in enumerate(sums):
                at = builder.add(args[7], I64(m * lanes))
                for v, total in enumerate(row):
                    _put(builder, builder.load(total), c_data, at, v)
            return context.get_dummy_value()

        return types.void(
            a, types.intp, types.intp, b, types.intp, types.intp, c, types.intp
        ), codegen

    return product


def _columns_product(vectors: int) -> Any:
    @intrinsic
    def product(
        _typing: Any, a: Any, i: Any, a_row: Any, b: Any, j: Any, clear: Any, inner: Any,
        limits: Any, factor: Any, c: Any, k: Any,
    ) -> Any:  # fmt: skip
        """BLOCK rows of C = C * factor + columns of A @ B; see `columns_product`."""
        lanes = vectors * WIDTH

        def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            a_data, b_data, limit_data, factor_data, c_data = (
                pointer_to(context, builder, kind, args[n], I64(0))
                for n, kind in ((0, a), (3, b), (7, limits), (8, factor), (9, c))
            )
            sums = _sums(context, builder, vectors)
            most = [_vector_at(builder, limit_data, I64(0), v) for v in range(vectors)]

            def add(index: Any, *, masked: bool) -> None:
                at = builder.add(args[4], builder.mul(index, I64(lanes)))
                lane = [_vector_at(builder, b_data, at, v) for v in range(vectors)]
                start = builder.add(args[1], builder.mul(args[2], index))
                factors = [
                    spread(builder, _float_at(builder, a_data, builder.add(start, I64(m))))
                    for m in range(BLOCK)
                ]
                seen = None
                if masked:  # left out, not multiplied by 0: 0 * NaN would be NaN
                    number = spread(builder, builder.sitofp(index, F32))
                    seen = [builder.fcmp_ordered("<", number, limit) for limit in most]
                _add_products(builder, sums, factors, lane, seen)

            with cgutils.for_range(builder, args[5]) as loop:
                add(loop.index, masked=False)
            with cgutils.for_range(builder, builder.sub(args[6], args[5])) as loop:
                add(builder.add(args[5], loop.index), masked=True)
            scale = [_vector_at(builder, factor_data, I64(0), v) for v in range(vectors)]
            for m, row in enumerate(sums):
                at = builder.add(args[10], I64(m * lanes))
                for v, total in enumerate(row):
                    old = _vector_at(builder, c_data, at, v)
                    new = call(builder, "fma", old, scale[v], builder.load(total))
                    _put(builder, new, c_data, at, v)
            return context.get_dummy_value()

        return types.void(
            a, types.intp, types.intp, b, types.intp, types.intp, types.intp, limits, factor, c,
            types.intp,
        ), codegen  # fmt: skip

    return product


# C[m, :] = sum over d of A[m, d] * B[d, :], m < BLOCK, A's rows a_row apart
rows_product_16 = _rows_product(1)
rows_product_32 = _rows_product(2)
# C[m, :] = C[m, :] * factor + sum over t of A[t, m] * B[t, :]; from t = clear on only in those
# lanes whose limit is above t
columns_product_16 = _columns_product(1)
columns_product_32 = _columns_product(2)


@intrinsic
def transpose(_typing: Any, a: Any, i: Any, a_row: Any, b: Any, j: Any, b_row: Any) -> Any:
    """Write the 16 x 16 numbers at a[i], rows a_row apart, transposed to b[j], rows b_row apart."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        a_data = pointer_to(context, builder, a, args[0], args[1])
        b_data = pointer_to(context, builder, b, args[3], args[4])
        rows = [_vector_at(builder, a_data, builder.mul(args[2], I64(m)), 0) for m in range(WIDTH)]
        # interleaving row m with row m + 8, four times over, is the transposition
        low = [x for m in range(WIDTH // 2) for x in (m, WIDTH + m)]
        high = [x + WIDTH // 2 for x in low]
        for _ in range(4):
            rows = [
                builder.shuffle_vector(rows[m], rows[m + 8], ir.Constant(I32X16, half))
                for m in range(8)
                for half in (low, high)
            ]
        for m, row in enumerate(rows):
            _put(builder, row, b_data, builder.mul(args[5], I64(m)), 0)
        return context.get_dummy_value()

    return types.void(a, types.intp, types.intp, b, types.intp, types.intp), codegen


@intrinsic
def below(_typing: Any, index: Any, limits: Any, x: Any, other: Any) -> Any:
    """Lanes of x where the float32 index is below the lane's limit, of `other` elsewhere."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        seen = builder.fcmp_ordered("<", spread(builder, args[0]), args[1])
        return builder.select(seen, args[2], args[3])

    return x(types.float32, limits, x, other), codegen
