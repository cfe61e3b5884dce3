"""Non-temporal copies and rotations, sixteen float32 at a time, as LLVM instructions.

A plain store first reads the line that it overwrites; a non-temporal one does not, which saves
three of eight planes of traffic in an eviction. No fast-math flag is set anywhere, so products
and sums are the ones that plain code makes, bit for bit. Knows nothing about plans or pages.
"""

from __future__ import annotations

import importlib
import platform
from typing import Any

LANES = 16
LINE_BYTES = 64
#: The NaN that a rotation stores, whatever NaN the machine produced.
CANONICAL_NAN_BITS = 0x7FC00000

X86 = ("x86_64", "AMD64", "amd64")


def _numba() -> tuple[Any, Any, Any]:
    numba: Any = importlib.import_module("numba")
    extending: Any = importlib.import_module("numba.extending")
    ir: Any = importlib.import_module("llvmlite.ir")
    return numba, extending, ir


_nb, _extending, _ir = _numba()

#: Whether this process has non-temporal stores: decided once, when it starts.
STREAMS = platform.machine() in X86 and not _nb.config.DISABLE_JIT


def _vector_at(builder: Any, address: Any) -> Any:
    vector = _ir.VectorType(_ir.FloatType(), LANES)
    return builder.inttoptr(address, vector.as_pointer())


def _load(builder: Any, address: Any, align: int) -> Any:
    return builder.load(_vector_at(builder, address), align=align)


def _stream(builder: Any, value: Any, address: Any) -> None:
    store = builder.store(value, _vector_at(builder, address), align=LINE_BYTES)
    store.set_metadata("nontemporal", builder.module.add_metadata([_ir.IntType(32)(1)]))


def _canonical(builder: Any, value: Any) -> Any:
    """Replace every NaN by the canonical one."""
    words = _ir.VectorType(_ir.IntType(32), LANES)
    nan = _ir.Constant(words, [CANONICAL_NAN_BITS] * LANES)
    bad = builder.fcmp_unordered("uno", value, value)
    return builder.select(bad, builder.bitcast(nan, value.type), value)


def _turned(builder: Any, raw: Any, cosine: Any, sine: Any, half: Any) -> tuple[Any, ...]:
    """Return both elements of sixteen pairs, before and after their rotation."""
    first = _load(builder, raw, LINE_BYTES)
    second = _load(builder, builder.add(raw, half), LINE_BYTES)
    c = _load(builder, cosine, 4)
    s = _load(builder, sine, 4)
    upper = builder.fsub(builder.fmul(first, c), builder.fmul(second, s))
    lower = builder.fadd(builder.fmul(second, c), builder.fmul(first, s))
    return first, second, _canonical(builder, upper), _canonical(builder, lower)


@_extending.intrinsic
def stream(typing_context: Any, target: Any, source: Any) -> Any:
    """Copy sixteen floats between two addresses, both 64-byte aligned."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, source = arguments
        _stream(builder, _load(builder, source, LINE_BYTES), target)
        return context.get_dummy_value()

    return _nb.types.void(_nb.int64, _nb.int64), generate


@_extending.intrinsic
def stream_rotated(
    typing_context: Any, key: Any, raw: Any, cosine: Any, sine: Any, half: Any
) -> Any:
    """Rotate sixteen half-split pairs of a pre-RoPE row into a key row.

    `half` is the distance between the elements of a pair, in bytes.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        key, raw, cosine, sine, half = arguments
        _, _, upper, lower = _turned(builder, raw, cosine, sine, half)
        _stream(builder, upper, key)
        _stream(builder, lower, builder.add(key, half))
        return context.get_dummy_value()

    return _nb.types.void(*[_nb.int64] * 5), generate


@_extending.intrinsic
def stream_moved(
    typing_context: Any, key: Any, moved: Any, raw: Any, cosine: Any, sine: Any, half: Any
) -> Any:
    """Rotate sixteen half-split pairs into a key row, and move them to another pre-RoPE row."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        key, moved, raw, cosine, sine, half = arguments
        first, second, upper, lower = _turned(builder, raw, cosine, sine, half)
        _stream(builder, first, moved)
        _stream(builder, second, builder.add(moved, half))
        _stream(builder, upper, key)
        _stream(builder, lower, builder.add(key, half))
        return context.get_dummy_value()

    return _nb.types.void(*[_nb.int64] * 6), generate


@_extending.intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Ask for the cache line at an address that will be read soon; any address may be given."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = _ir.IntType(8).as_pointer()
        word = _ir.IntType(32)
        kind = _ir.FunctionType(_ir.VoidType(), [byte, word, word, word])
        call = builder.module.declare_intrinsic("llvm.prefetch", (byte,), kind)
        where = builder.inttoptr(arguments[0], byte)
        builder.call(call, [where, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return _nb.types.void(_nb.int64), generate


@_extending.intrinsic
def fence(typing_context: Any) -> Any:
    """Order all non-temporal stores before whatever is stored next."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.call(builder.module.declare_intrinsic("llvm.x86.sse.sfence", (), _fence_type()), [])
        return context.get_dummy_value()

    return _nb.types.void(), generate


def _fence_type() -> Any:
    return _ir.FunctionType(_ir.VoidType(), [])
