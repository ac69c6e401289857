"""Sixteen float32 side by side, for numba kernels: load, widen, multiply, sum.

LLVM lowers a vector to one 512-bit register, to two 256-bit or to four 128-bit ones, whatever the
CPU has. Spelt out because numba's own vectoriser stops at 256 bits and was 2-3 times slower on
bfloat16 rows held in cache. Indices are not wrapped and not checked: callers stay in bounds.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model
from numba.np.arrayobj import make_array
from numpy.typing import NDArray

WIDTH = 16
CHUNK = 2 * WIDTH  # elements that one `low` and one `high` cover

_F32 = ir.FloatType()
_I32 = ir.IntType(32)
_F32X16 = ir.VectorType(_F32, WIDTH)
_I32X16 = ir.VectorType(_I32, WIDTH)
_F16X16 = ir.VectorType(ir.HalfType(), WIDTH)


def bits(array: NDArray[Any]) -> NDArray[Any]:
    """The array as numba can take it: float16 as int16, bfloat16 as uint16, float32 as it is."""
    if array.dtype == np.float32:
        return array
    return array.view(np.int16 if array.dtype == np.float16 else np.uint16)


class _Vector(types.Type):
    def __init__(self) -> None:
        super().__init__(name="float32x16")


vector = _Vector()


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _F32X16)


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    data = make_array(array_type)(context, builder, array).data
    return builder.gep(data, [index])


def _load(builder: Any, pointer: Any, kind: Any, align: int) -> Any:
    value = builder.load(builder.bitcast(pointer, kind.as_pointer()))
    value.align = align
    return value


def _constant(value: int) -> Any:
    return ir.Constant(_I32X16, [value] * WIDTH)


@intrinsic
def zeros(_typing: Any) -> Any:
    """Sixteen zeros."""
    return vector(), lambda _c, _b, _s, _a: ir.Constant(_F32X16, [0.0] * WIDTH)


@intrinsic
def splat(_typing: Any, x: Any) -> Any:
    """Sixteen times the float32 x."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        one = builder.insert_element(ir.Constant(_F32X16, ir.Undefined), args[0], _I32(0))
        return builder.shuffle_vector(
            one, ir.Constant(_F32X16, ir.Undefined), ir.Constant(_I32X16, [0] * WIDTH)
        )

    return vector(types.float32), codegen


@intrinsic
def load(_typing: Any, array: Any, index: Any) -> Any:
    """array[index : index + 16] of a float32 array."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return _load(builder, _pointer(context, builder, array, *args), _F32X16, 4)

    return vector(array, types.intp), codegen


@intrinsic
def store(_typing: Any, array: Any, index: Any, value: Any) -> Any:
    """Write to array[index : index + 16] of a float32 array."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, array, args[0], args[1])
        builder.store(args[2], builder.bitcast(pointer, _F32X16.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, value), codegen


def _half(array: Any, high: bool) -> Any:
    """Code that widens half of the 32 stored elements at an index; see `low`."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, array, *args)
        if array.dtype == types.uint16:  # bfloat16 bits: two in each 32-bit word
            words = _load(builder, pointer, _I32X16, 2)
            if high:
                bits = builder.and_(words, _constant(0xFFFF0000))
            else:
                bits = builder.shl(words, _constant(16))
            return builder.bitcast(bits, _F32X16)
        if high:
            pointer = builder.gep(pointer, [ir.Constant(ir.IntType(64), WIDTH)])
        if array.dtype == types.int16:  # float16 bits
            return builder.fpext(_load(builder, pointer, _F16X16, 2), _F32X16)
        return _load(builder, pointer, _F32X16, 4)

    return vector(array, types.intp), codegen


@intrinsic
def low(_typing: Any, array: Any, index: Any) -> Any:
    """Widen half of the 32 elements at index: of bfloat16 the even ones, else the first 16.

    The array holds float32, float16 bits as int16 or bfloat16 bits as uint16. Which half is which
    does not matter to a sum, as long as both factors are split alike: see `permuted_index`.
    """
    return _half(array, high=False)


@intrinsic
def high(_typing: Any, array: Any, index: Any) -> Any:
    """Widen the other half of the 32 elements at index; see `low`."""
    return _half(array, high=True)


@intrinsic
def fma(_typing: Any, a: Any, b: Any, c: Any) -> Any:
    """A * b + c, rounded once."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_F32X16, [_F32X16] * 3)
        function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{WIDTH}f32")
        return builder.call(function, args)

    return vector(a, b, c), codegen


@intrinsic
def xor(_typing: Any, a: Any, b: Any) -> Any:
    """Bits of a xor bits of b: takes note of loaded bytes without arithmetic on their values."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        x, y = (builder.bitcast(value, _I32X16) for value in args)
        return builder.bitcast(builder.xor(x, y), _F32X16)

    return vector(a, b), codegen


@intrinsic
def total(_typing: Any, a: Any) -> Any:
    """Sum of the sixteen, in any order."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_F32, [_F32, _F32X16])
        function = cgutils.get_or_insert_function(
            builder.module, kind, f"llvm.vector.reduce.fadd.v{WIDTH}f32"
        )
        return builder.call(function, [ir.Constant(_F32, 0.0), args[0]], fastmath=("reassoc",))

    return types.float32(a), codegen


def _add_neighbours(builder: Any, a: Any, b: Any) -> Any:
    """Sums of neighbours: eight of a, then eight of b."""
    even, odd = (ir.Constant(_I32X16, list(range(i, 2 * WIDTH, 2))) for i in (0, 1))
    return builder.fadd(builder.shuffle_vector(a, b, even), builder.shuffle_vector(a, b, odd))


@intrinsic
def store_totals(_typing: Any, array: Any, index: Any, *rows: Any) -> Any:
    """Write the sum of each of eight vectors to array[index : index + 8] of a float32 array.

    Neighbours are added three times over, all rows at once: 24 instructions, where eight sums one
    by one take 64.
    """

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, array, args[0], args[1])
        sums = [builder.extract_value(args[2], i) for i in range(8)]
        while len(sums) > 1:
            sums = [
                _add_neighbours(builder, a, b) for a, b in zip(sums[::2], sums[1::2], strict=True)
            ]
        done = _add_neighbours(builder, sums[0], sums[0])
        eight = ir.VectorType(_F32, 8)
        first = ir.Constant(ir.VectorType(_I32, 8), list(range(8)))
        done = builder.shuffle_vector(done, done, first)
        builder.store(done, builder.bitcast(pointer, eight.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.StarArgTuple(rows)), codegen


@intrinsic
def widen(_typing: Any, x: Any) -> Any:
    """One stored element as float32: float16 bits come as int16, bfloat16 bits as uint16."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        (value,) = args
        if x == types.int16:
            return builder.fpext(builder.bitcast(value, ir.HalfType()), _F32)
        if x == types.uint16:
            word = builder.shl(builder.zext(value, _I32), _I32(16))
            return builder.bitcast(word, _F32)
        return value

    return types.float32(x), codegen


@intrinsic
def _bits(_typing: Any, x: Any) -> Any:
    return types.uint32(x), lambda _c, builder, _s, args: builder.bitcast(args[0], _I32)


@intrinsic
def _float_of(_typing: Any, bits: Any) -> Any:
    return types.float32(types.uint32), lambda _c, builder, _s, args: builder.bitcast(args[0], _F32)


@intrinsic
def narrow(_typing: Any, array: Any, x: Any) -> Any:
    """The float32 x rounded to nearest even, as the element type of the array."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        value = args[1]
        if array.dtype == types.int16:
            half = builder.fptrunc(value, ir.HalfType())
            return builder.bitcast(half, ir.IntType(16))
        if array.dtype == types.uint16:
            word = builder.bitcast(value, _I32)
            odd = builder.and_(builder.lshr(word, _I32(16)), _I32(1))
            rounded = builder.add(builder.add(word, odd), _I32(0x7FFF))
            nan = builder.fcmp_unordered("uno", value, value)
            rounded = builder.select(nan, _I32(0x7FC00000), rounded)
            return builder.trunc(builder.lshr(rounded, _I32(16)), ir.IntType(16))
        return value

    return array.dtype(array, types.float32), codegen


@njit(cache=True, inline="always")
def exp2(x: Any) -> Any:
    """2**x of a float32 x <= 0, to 2e-7: a call of libm would keep the loop from vectorising."""
    whole = np.floor(max(x, np.float32(-126.0)))
    f = x - whole
    p = np.float32(1.8775767e-3)
    p = p * f + np.float32(8.9893397e-3)
    p = p * f + np.float32(5.5826318e-2)
    p = p * f + np.float32(2.4015361e-1)
    p = p * f + np.float32(6.9315308e-1)
    p = p * f + np.float32(9.9999994e-1)
    value = p * _float_of(np.uint32((np.int32(whole) + 127) << 23))
    # below the smallest normal number the answer is 0; a NaN stays one
    return np.float32(0.0) if x < np.float32(-126.0) else value


@intrinsic
def prefetch(_typing: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of array[index]; an index past the end does no harm."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer = builder.bitcast(
            _pointer(context, builder, array, *args), ir.IntType(8).as_pointer()
        )
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), _I32, _I32, _I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(function, [pointer, _I32(0), _I32(3), _I32(1)])  # read, keep, data
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen
