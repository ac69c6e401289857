"""Sixteen float32 side by side, for numba kernels: load, widen, multiply, sum.

LLVM lowers a vector to one 512-bit register, to two 256-bit or to four 128-bit ones, whatever the
CPU has. Spelt out because numba's own vectoriser stops at 256 bits and was 2-3 times slower on
bfloat16 rows held in cache. Indices are not wrapped and not checked: callers stay in bounds.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model
from numba.np.arrayobj import make_array

WIDTH = 16

F32 = ir.FloatType()
I32 = ir.IntType(32)
F32X16 = ir.VectorType(F32, WIDTH)
I32X16 = ir.VectorType(I32, WIDTH)
# minimax polynomial of 2**x on [0, 1), highest power first
_EXP2 = (1.8775767e-3, 8.9893397e-3, 5.5826318e-2, 2.4015361e-1, 6.9315308e-1, 9.9999994e-1)


class _Vector(types.Type):
    def __init__(self) -> None:
        super().__init__(name="float32x16")


vector = _Vector()


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, F32X16)


def pointer_to(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    data = make_array(array_type)(context, builder, array).data
    return builder.gep(data, [index])


def load_as(builder: Any, pointer: Any, kind: Any, align: int) -> Any:
    value = builder.load(builder.bitcast(pointer, kind.as_pointer()))
    value.align = align
    return value


def integers(value: int) -> Any:
    return ir.Constant(I32X16, [value] * WIDTH)


def _floats(value: float) -> Any:
    return ir.Constant(F32X16, [float(np.float32(value))] * WIDTH)


@intrinsic
def zeros(_typing: Any) -> Any:
    """Sixteen zeros."""
    return vector(), lambda _c, _b, _s, _a: ir.Constant(F32X16, [0.0] * WIDTH)


@intrinsic
def splat(_typing: Any, x: Any) -> Any:
    """Sixteen times the float32 x."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        one = builder.insert_element(ir.Constant(F32X16, ir.Undefined), args[0], I32(0))
        return builder.shuffle_vector(
            one, ir.Constant(F32X16, ir.Undefined), ir.Constant(I32X16, [0] * WIDTH)
        )

    return vector(types.float32), codegen


@intrinsic
def load(_typing: Any, array: Any, index: Any) -> Any:
    """array[index : index + 16] of a float32 array."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return load_as(builder, pointer_to(context, builder, array, *args), F32X16, 4)

    return vector(array, types.intp), codegen


@intrinsic
def store(_typing: Any, array: Any, index: Any, value: Any) -> Any:
    """Write to array[index : index + 16] of a float32 array."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer = pointer_to(context, builder, array, args[0], args[1])
        builder.store(args[2], builder.bitcast(pointer, F32X16.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, value), codegen


@intrinsic
def fma(_typing: Any, a: Any, b: Any, c: Any) -> Any:
    """A * b + c, rounded once."""
    return vector(a, b, c), lambda _c, builder, _s, args: _call(builder, "fma", *args)


@intrinsic
def xor(_typing: Any, a: Any, b: Any) -> Any:
    """Bits of a xor bits of b: takes note of loaded bytes without arithmetic on their values."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        x, y = (builder.bitcast(value, I32X16) for value in args)
        return builder.bitcast(builder.xor(x, y), F32X16)

    return vector(a, b), codegen


def _reduce(name: str, *start: Any, flags: tuple[str, ...] = ()) -> Any:
    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(F32, [*(F32 for _ in start), F32X16])
        function = cgutils.get_or_insert_function(
            builder.module, kind, f"llvm.vector.reduce.{name}.v{WIDTH}f32"
        )
        return builder.call(function, [*start, args[0]], fastmath=flags)

    return codegen


@intrinsic
def total(_typing: Any, a: Any) -> Any:
    """Sum of the sixteen, in any order."""
    return types.float32(a), _reduce("fadd", ir.Constant(F32, 0.0), flags=("reassoc",))


@intrinsic
def largest(_typing: Any, a: Any) -> Any:
    """The largest of the sixteen, NaN passed over."""
    return types.float32(a), _reduce("fmax")


@intrinsic
def subtract(_typing: Any, a: Any, b: Any) -> Any:
    """A - b."""
    return vector(a, b), lambda _c, builder, _s, args: builder.fsub(*args)


def _add_neighbours(builder: Any, a: Any, b: Any) -> Any:
    """Sums of neighbours: eight of a, then eight of b."""
    even, odd = (ir.Constant(I32X16, list(range(i, 2 * WIDTH, 2))) for i in (0, 1))
    return builder.fadd(builder.shuffle_vector(a, b, even), builder.shuffle_vector(a, b, odd))


@intrinsic
def store_totals(_typing: Any, array: Any, index: Any, *rows: Any) -> Any:
    """Write the sum of each of eight vectors to array[index : index + 8] of a float32 array.

    Neighbours are added three times over, all rows at once: 24 instructions, where eight sums one
    by one take 64.
    """

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer = pointer_to(context, builder, array, args[0], args[1])
        sums = [builder.extract_value(args[2], i) for i in range(8)]
        while len(sums) > 1:
            sums = [
                _add_neighbours(builder, a, b) for a, b in zip(sums[::2], sums[1::2], strict=True)
            ]
        done = _add_neighbours(builder, sums[0], sums[0])
        eight = ir.VectorType(F32, 8)
        first = ir.Constant(ir.VectorType(I32, 8), list(range(8)))
        done = builder.shuffle_vector(done, done, first)
        builder.store(done, builder.bitcast(pointer, eight.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.StarArgTuple(rows)), codegen


def _call(builder: Any, name: str, *vectors: Any) -> Any:
    kind = ir.FunctionType(F32X16, [F32X16] * len(vectors))
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{WIDTH}f32")
    return builder.call(function, vectors)


@intrinsic
def maximum(_typing: Any, a: Any, b: Any) -> Any:
    """The larger of each pair; of a number and a NaN the number."""
    return vector(a, b), lambda _c, builder, _s, args: _call(builder, "maxnum", *args)


@intrinsic
def exp2(_typing: Any, a: Any) -> Any:
    """2**a of each a <= 0, to 2e-7; 0 below the smallest normal number, NaN of NaN.

    The whole part goes into the exponent, a polynomial of the rest makes the mantissa.
    """

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        (x,) = args
        smallest = _floats(-126.0)
        whole = _call(builder, "floor", _call(builder, "maxnum", x, smallest))
        rest = builder.fsub(x, whole)
        value = _floats(_EXP2[0])
        for coefficient in _EXP2[1:]:
            value = _call(builder, "fma", value, rest, _floats(coefficient))
        exponent = builder.add(builder.fptosi(whole, I32X16), integers(127))
        value = builder.fmul(value, builder.bitcast(builder.shl(exponent, integers(23)), F32X16))
        tiny = builder.fcmp_ordered("<", x, smallest)
        return builder.select(tiny, _floats(0.0), value)

    return vector(a), codegen
