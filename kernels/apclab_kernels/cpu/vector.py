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


def spread(builder: Any, value: Any) -> Any:
    undefined = ir.Constant(F32X16, ir.Undefined)
    one = builder.insert_element(undefined, value, I32(0))
    return builder.shuffle_vector(one, undefined, ir.Constant(I32X16, [0] * WIDTH))


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
    return vector(types.float32), lambda _c, builder, _s, args: spread(builder, args[0])


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
    return vector(a, b, c), lambda _c, builder, _s, args: call(builder, "fma", *args)


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


@intrinsic
def add(_typing: Any, a: Any, b: Any) -> Any:
    """A + b."""
    return vector(a, b), lambda _c, builder, _s, args: builder.fadd(*args)


def _add_shuffled(builder: Any, a: Any, b: Any, first: list[int], second: list[int]) -> Any:
    """Elements `first` of a and b side by side plus elements `second`."""
    picked = [
        builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))
        for lanes in (first, second)
    ]
    return builder.fadd(*picked)


def _by_quarter(of_first: list[int]) -> list[int]:
    """The same choice in each quarter of four; 16 and more is the second vector's."""
    return [quarter + lane for quarter in range(0, WIDTH, 4) for lane in of_first]


def _total_four(builder: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Sums of a, b, c, d quarter by quarter: those of the first quarters, the second, ..."""
    low, high = _by_quarter([0, 16, 1, 17]), _by_quarter([2, 18, 3, 19])
    x, y = _add_shuffled(builder, a, b, low, high), _add_shuffled(builder, c, d, low, high)
    low, high = _by_quarter([0, 1, 16, 17]), _by_quarter([2, 3, 18, 19])
    return _add_shuffled(builder, x, y, low, high)


def _quarters(*numbers: int) -> list[int]:
    return [4 * number + lane for number in numbers for lane in range(4)]


@intrinsic
def store_totals(_typing: Any, array: Any, index: Any, stride: Any, *rows: Any) -> Any:
    """Write the sums of vectors, four side by side: 8 at index, or 16 at index + 0 to 3 * stride.

    Sums of four are made in 9 instructions that stay within quarters of a vector, which every
    machine has; then quarters are added. Sums one by one take 8 each.
    """

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        vectors = [builder.extract_value(args[3], i) for i in range(len(rows))]
        fours = [_total_four(builder, *vectors[i : i + 4]) for i in range(0, len(rows), 4)]
        twos = [
            _add_shuffled(builder, a, b, _quarters(0, 1, 4, 5), _quarters(2, 3, 6, 7))
            for a, b in zip(fours[::2], fours[1::2], strict=True)
        ]
        a, b = (twos[0], twos[-1])
        last = (0, 2) if len(rows) == 8 else (0, 2, 4, 6)
        done = _add_shuffled(builder, a, b, _quarters(*last), _quarters(*(i + 1 for i in last)))
        if len(rows) == 8:
            pointer = pointer_to(context, builder, array, args[0], args[1])
            builder.store(done, builder.bitcast(pointer, done.type.as_pointer()), align=4)
            return context.get_dummy_value()
        at = args[1]
        for i in range(4):
            four = ir.Constant(ir.VectorType(I32, 4), _quarters(i))
            piece = builder.shuffle_vector(done, done, four)
            pointer = pointer_to(context, builder, array, args[0], at)
            builder.store(piece, builder.bitcast(pointer, piece.type.as_pointer()), align=4)
            at = builder.add(at, args[2])
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, types.StarArgTuple(rows)), codegen


@intrinsic
def number_at(_typing: Any, array: Any, index: Any) -> Any:
    """array[index] without numba's look for negative indices."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.load(pointer_to(context, builder, array, *args))

    return array.dtype(array, types.intp), codegen


def call(builder: Any, name: str, *vectors: Any) -> Any:
    kind = ir.FunctionType(F32X16, [F32X16] * len(vectors))
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{WIDTH}f32")
    return builder.call(function, vectors)


@intrinsic
def maximum(_typing: Any, a: Any, b: Any) -> Any:
    """The larger of each pair; of a number and a NaN the number."""
    return vector(a, b), lambda _c, builder, _s, args: call(builder, "maxnum", *args)


@intrinsic
def exp2(_typing: Any, a: Any) -> Any:
    """2**a of each a <= 0, to 2e-7; 0 below the smallest normal number, NaN of NaN.

    The whole part goes into the exponent, a polynomial of the rest makes the mantissa.
    """

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        (x,) = args
        smallest = _floats(-126.0)
        whole = call(builder, "floor", call(builder, "maxnum", x, smallest))
        rest = builder.fsub(x, whole)
        value = _floats(_EXP2[0])
        for coefficient in _EXP2[1:]:
            value = call(builder, "fma", value, rest, _floats(coefficient))
        exponent = builder.add(builder.fptosi(whole, I32X16), integers(127))
        value = builder.fmul(value, builder.bitcast(builder.shl(exponent, integers(23)), F32X16))
        tiny = builder.fcmp_ordered("<", x, smallest)
        return builder.select(tiny, _floats(0.0), value)

    return vector(a), codegen
