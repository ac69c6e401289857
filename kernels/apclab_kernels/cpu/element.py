"""Elements as a KV cache stores them, float32, float16 or bfloat16, to float32 vectors and back.

numba has neither 16-bit type: arrays come as their bits, float16 as int16, bfloat16 as uint16.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from apclab_kernels.cpu.vector import (
    F32,
    F32X16,
    I32,
    I32X16,
    WIDTH,
    integers,
    load_as,
    pointer_to,
    vector,
)

CHUNK = 2 * WIDTH  # elements that one `low` and one `high` cover

_F16X16 = ir.VectorType(ir.HalfType(), WIDTH)


def bits(array: NDArray[Any]) -> NDArray[Any]:
    """The array as numba can take it: float16 as int16, bfloat16 as uint16, float32 as it is."""
    if array.dtype == np.float32:
        return array
    return array.view(np.int16 if array.dtype == np.float16 else np.uint16)


def _half(array: Any, high: bool) -> Any:
    """Code that widens half of the 32 stored elements at an index; see `low`."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer = pointer_to(context, builder, array, *args)
        if array.dtype == types.uint16:  # bfloat16 bits: two in each 32-bit word
            words = load_as(builder, pointer, I32X16, 2)
            if high:
                bits = builder.and_(words, integers(0xFFFF0000))
            else:
                bits = builder.shl(words, integers(16))
            return builder.bitcast(bits, F32X16)
        if high:
            pointer = builder.gep(pointer, [ir.Constant(ir.IntType(64), WIDTH)])
        if array.dtype == types.int16:  # float16 bits
            return builder.fpext(load_as(builder, pointer, _F16X16, 2), F32X16)
        return load_as(builder, pointer, F32X16, 4)

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


def _prefetch(array: Any, types_of: tuple[int, ...]) -> Any:
    """Code that asks for the lines of 32 elements if their width in bits is among these."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        if array.dtype.bitwidth in types_of:
            byte = ir.IntType(8).as_pointer()
            kind = ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32])
            function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
            pointer = builder.bitcast(pointer_to(context, builder, array, *args), byte)
            for line in range(0, CHUNK * array.dtype.bitwidth // 8, 64):
                at = builder.gep(pointer, [ir.Constant(ir.IntType(64), line)])
                builder.call(function, [at, I32(0), I32(3), I32(1)])  # to read, into L1, data
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


@intrinsic
def prefetch(_typing: Any, array: Any, index: Any) -> Any:
    """Ask for the cache lines of the 32 elements at index; any index will do."""
    return _prefetch(array, (16, 32))


@intrinsic
def prefetch_narrow(_typing: Any, array: Any, index: Any) -> Any:
    """As `prefetch`, for 16-bit elements; nothing for float32, whose loads leave no room for it."""
    return _prefetch(array, (16,))


@intrinsic
def widen(_typing: Any, x: Any) -> Any:
    """One stored element as float32: float16 bits come as int16, bfloat16 bits as uint16."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        (value,) = args
        if x == types.int16:
            return builder.fpext(builder.bitcast(value, ir.HalfType()), F32)
        if x == types.uint16:
            word = builder.shl(builder.zext(value, I32), I32(16))
            return builder.bitcast(word, F32)
        return value

    return types.float32(x), codegen


def _bfloat16_bits(builder: Any, value: Any, kind: Any) -> Any:
    """Float32 bits whose upper half is the value rounded to nearest even; NaN stays NaN."""

    def of_kind(number: int) -> Any:
        return integers(number) if kind is I32X16 else ir.Constant(kind, number)

    word = builder.bitcast(value, kind)
    odd = builder.and_(builder.lshr(word, of_kind(16)), of_kind(1))
    rounded = builder.add(builder.add(word, odd), of_kind(0x7FFF))
    nan = builder.fcmp_unordered("uno", value, value)
    return builder.select(nan, of_kind(0x7FC00000), rounded)


@intrinsic
def narrow(_typing: Any, array: Any, x: Any) -> Any:
    """The float32 x rounded to nearest even, as the element type of the array."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        value = args[1]
        if array.dtype == types.int16:
            return builder.bitcast(builder.fptrunc(value, ir.HalfType()), ir.IntType(16))
        if array.dtype == types.uint16:
            word = _bfloat16_bits(builder, value, I32)
            return builder.trunc(builder.lshr(word, I32(16)), ir.IntType(16))
        return value

    return array.dtype(array, types.float32), codegen


@intrinsic
def store_halves(_typing: Any, array: Any, index: Any, first: Any, second: Any) -> Any:
    """Round and write the 32 elements at index whose `low` and `high` halves these are."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer = pointer_to(context, builder, array, args[0], args[1])
        if array.dtype == types.uint16:
            even, odd = (_bfloat16_bits(builder, half, I32X16) for half in args[2:])
            words = builder.or_(
                builder.lshr(even, integers(16)), builder.and_(odd, integers(0xFFFF0000))
            )
            builder.store(words, builder.bitcast(pointer, I32X16.as_pointer()), align=2)
            return context.get_dummy_value()
        kind = _F16X16 if array.dtype == types.int16 else F32X16
        align = 2 if kind is _F16X16 else 4
        for place, half in enumerate(args[2:]):
            value = builder.fptrunc(half, kind) if kind is _F16X16 else half
            target = builder.gep(pointer, [ir.Constant(ir.IntType(64), place * WIDTH)])
            builder.store(value, builder.bitcast(target, kind.as_pointer()), align=align)
        return context.get_dummy_value()

    return types.void(array, types.intp, first, second), codegen
