"""What each name of simd.py becomes in LLVM.

`implementations(target)` returns the names a kernel's source is compiled with. Only the dot products, `fma`,
the conversions of float16 and `pause` depend on the target; everything else is plain LLVM on vectors of 16
lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from llvmlite import ir
from numba import types

from ostinato.ops.cpu.codegen.dot import (
    add_pairs,
    dot2_avx2,
    dot2_generic,
    dot4_avx2,
    dot4_generic,
    dot4_signed_avx2,
    dot4_signed_generic,
    dot4_signed_neon,
    dot4_vnni,
    in_order_avx2,
    look_up_generic,
    look_up_neon,
    look_up_x86,
    multiply_pairs_avx2,
    multiply_pairs_generic,
    sum_pairs_avx2,
    sum_pairs_generic,
)
from ostinato.ops.cpu.codegen.half import narrow, narrow_scalar, widen, widen_scalar
from ostinato.ops.cpu.codegen.types import (
    ADDRESS,
    DOUBLE,
    FLOAT,
    HALF,
    I8,
    I16,
    I32,
    I64,
    INT,
    NOTHING,
    REAL,
    V_F32,
    V_HALF,
    V_I8,
    V_I16,
    V_I32,
    Emit,
    F,
    I,
    called,
    constant,
    declared,
    instruction,
    load,
    pointer_to,
    splat,
    store,
)
from ostinato.ops.cpu.host import Target
from ostinato.ops.cpu.simd import LANES


def _memory(native_half: bool) -> dict[str, Any]:
    def loads(kind: ir.Type, align: int, result: types.Type) -> Any:
        return instruction(result, [ADDRESS], lambda b, a: load(b, a[0], kind, align))

    def stores(kind: types.Type, align: int, narrow: ir.Type | None = None) -> Any:
        def emit(b: ir.IRBuilder, a: Sequence[Any]) -> None:
            store(b, a[0], a[1] if narrow is None else b.trunc(a[1], narrow), align)

        return instruction(NOTHING, [ADDRESS, kind], emit)

    def gets(kind: ir.Type, extend: str | None) -> Any:
        def emit(b: ir.IRBuilder, a: Sequence[Any]) -> Any:
            value = load(b, a[0], kind, 1)
            return getattr(b, extend)(value, I64) if extend else value

        return instruction(INT, [ADDRESS], emit)

    def load_bf16(b: ir.IRBuilder, a: Sequence[Any]) -> Any:
        return b.bitcast(b.shl(b.zext(load(b, a[0], V_I16, 2), V_I32), constant(V_I32, 16)), V_F32)

    half = native_half
    return {
        "load_i32": loads(V_I32, 4, I),
        "load_f32": loads(V_F32, 4, F),
        "load_f16": instruction(F, [ADDRESS], lambda b, a: widen(b, load(b, a[0], V_HALF, 2), half)),
        "load_bf16": instruction(F, [ADDRESS], load_bf16),
        "load_i8": instruction(I, [ADDRESS], lambda b, a: b.sext(load(b, a[0], V_I8, 1), V_I32)),
        "load_u8": instruction(I, [ADDRESS], lambda b, a: b.zext(load(b, a[0], V_I8, 1), V_I32)),
        "load_bytes4": instruction(I, [ADDRESS], lambda b, a: splat(b, load(b, a[0], I32, 4), V_I32)),
        "load_splat": instruction(F, [ADDRESS], lambda b, a: splat(b, load(b, a[0], FLOAT, 4), V_F32)),
        "store_f32": stores(F, 4),
        "store_i32": stores(I, 4),
        "store_f16": instruction(
            NOTHING, [ADDRESS, F], lambda b, a: store(b, a[0], narrow(b, a[1], half), 2)
        ),
        "store_i8": stores(I, 1, V_I8),
        "get_i64": gets(I64, None),
        "get_i32": gets(I32, "sext"),
        "get_u16": gets(I16, "zext"),
        "get_u8": gets(I8, "zext"),
        "get_f32": loads(FLOAT, 4, REAL),
        "get_f16": instruction(REAL, [ADDRESS], lambda b, a: widen_scalar(b, load(b, a[0], HALF, 2), half)),
        "get_f64": loads(DOUBLE, 8, types.float64),
        "set_i32": stores(INT, 4, I32),
        "set_u16": stores(INT, 2, I16),
        "set_u8": stores(INT, 1, I8),
        "set_f32": stores(REAL, 4),
        "set_f16": instruction(
            NOTHING, [ADDRESS, REAL], lambda b, a: store(b, a[0], narrow_scalar(b, a[1], half), 2)
        ),
    }


def _conversions() -> dict[str, Any]:
    def to_i32(b: ir.IRBuilder, a: Sequence[Any]) -> Any:
        """Adding 1.5 · 2^23 leaves the nearest integer in the low bits of the sum."""
        shifted = b.bitcast(b.fadd(a[0], constant(V_F32, 1.5 * 2.0**23)), V_I32)
        return b.sub(shifted, constant(V_I32, 0x4B400000))

    return {
        "f32": instruction(REAL, [types.float64], lambda b, a: b.fptrunc(a[0], FLOAT)),
        "splat": instruction(F, [REAL], lambda b, a: splat(b, a[0], V_F32)),
        "splat_i32": instruction(I, [INT], lambda b, a: splat(b, b.trunc(a[0], I32), V_I32)),
        "lane_numbers": instruction(I, [], lambda b, a: ir.Constant(V_I32, [*range(LANES)])),
        "to_f32": instruction(F, [I], lambda b, a: b.sitofp(a[0], V_F32)),
        "to_i32": instruction(I, [F], to_i32),
        "bits_of": instruction(I, [F], lambda b, a: b.bitcast(a[0], V_I32)),
        "float_of": instruction(F, [I], lambda b, a: b.bitcast(a[0], V_F32)),
    }


def _folded(combine: Callable[[ir.IRBuilder, Any, Any], Any]) -> Emit:
    """Combine the upper half of the lanes with the lower, until one lane is left."""

    def emit(builder: ir.IRBuilder, args: Sequence[Any]) -> Any:
        vector = args[0]
        while vector.type.count > 1:
            half = vector.type.count // 2
            undefined = ir.Constant(vector.type, ir.Undefined)
            parts = [
                builder.shuffle_vector(
                    vector, undefined, ir.Constant(ir.VectorType(I32, half), [*range(s, s + half)])
                )
                for s in (0, half)
            ]
            vector = combine(builder, *parts)
        return builder.extract_element(vector, I32(0))

    return emit


def _compared(relation: str) -> Callable[[ir.IRBuilder, Any, Any], Any]:
    return lambda b, x, y: b.select(b.fcmp_ordered(relation, x, y), x, y)


def _larger_integer(builder: ir.IRBuilder, x: Any, y: Any) -> Any:
    return builder.select(builder.icmp_signed(">", x, y), x, y)


def _largest_magnitude(builder: ir.IRBuilder, args: Sequence[Any]) -> Any:
    """Without their sign, the bits of floats order like integers, NaN above infinity above all numbers."""
    magnitudes = [builder.and_(builder.bitcast(a, V_I32), constant(V_I32, 0x7FFFFFFF)) for a in args]
    bits = _folded(_larger_integer)(builder, [_larger_integer(builder, *magnitudes)])
    return builder.bitcast(bits, FLOAT)


_X86 = {"dot2": dot2_avx2, "multiply_pairs": multiply_pairs_avx2, "sum_pairs": sum_pairs_avx2}
_PORTABLE: dict[str, Emit] = {
    "dot2": dot2_generic,
    "dot4": dot4_generic,
    "dot4_small": dot4_generic,
    "dot4_signed": dot4_signed_generic,
    "multiply_pairs": multiply_pairs_generic,
    "add_pairs": add_pairs,
    "sum_pairs": sum_pairs_generic,
    "in_order": lambda builder, args: args[0],
    "look_up": look_up_generic,
}
_BYTES: dict[str, dict[str, Emit]] = {
    "avx512": {
        **_X86,
        "dot4": dot4_vnni,
        "dot4_small": dot4_vnni,
        "dot4_signed": dot4_signed_avx2,
        "look_up": partial(look_up_x86, wide=True),
    },
    "avx2": {
        **_X86,
        "dot4": dot4_avx2,
        "dot4_small": dot4_avx2,
        "dot4_signed": dot4_signed_avx2,
        "in_order": in_order_avx2,
        "look_up": partial(look_up_x86, wide=False),
    },
    "neon": {
        "dot4_small": dot4_signed_neon,
        "dot4_signed": dot4_signed_neon,
        "look_up": look_up_neon,
    },
    "generic": {},
}
"""How a path works on bytes, where not in the portable way."""


def _dot_products(target: Target) -> dict[str, Any]:
    arguments: dict[str, list[types.Type]] = {
        "multiply_pairs": [I, I],
        "add_pairs": [I, I],
        "sum_pairs": [I, I],
        "in_order": [I],
    }
    arguments["look_up"] = [I, INT, INT]
    emits = _PORTABLE | _BYTES[target.simd]
    return {name: instruction(I, arguments.get(name, [I, I, I]), emit) for name, emit in emits.items()}


def _arithmetic(target: Target) -> dict[str, Any]:
    vector, scalar = f"v{LANES}f32", "f32"
    fused = f"llvm.fma.{vector}" if target.fma else f"llvm.fmuladd.{vector}"

    def where_less(b: ir.IRBuilder, a: Sequence[Any]) -> Any:
        limit = splat(b, b.trunc(a[1], I32), V_I32)
        return b.select(b.icmp_signed("<", a[0], limit), a[2], a[3])

    return {
        "fma": instruction(F, [F, F, F], called(fused, V_F32, [V_F32] * 3)),
        "maximum": instruction(F, [F, F], lambda b, a: _compared(">")(b, a[0], a[1])),
        "minimum": instruction(F, [F, F], lambda b, a: _compared("<")(b, a[0], a[1])),
        "where_less": instruction(F, [I, INT, F, F], where_less),
        "where_below": instruction(
            F, [F, F, F, F], lambda b, a: b.select(b.fcmp_ordered("<", a[0], a[1]), a[2], a[3])
        ),
        "sum_lanes": instruction(REAL, [F], _folded(lambda b, x, y: b.fadd(x, y))),
        "max_lanes": instruction(REAL, [F], _folded(_compared(">"))),
        "largest_magnitude": instruction(REAL, [F, F], _largest_magnitude),
        "sum_lanes_i32": instruction(
            INT, [I], lambda b, a: b.sext(_folded(lambda b, x, y: b.add(x, y))(b, a), I64)
        ),
        "sqrt": instruction(REAL, [REAL], called(f"llvm.sqrt.{scalar}", FLOAT, [FLOAT])),
    }


def _control(target: Target) -> dict[str, Any]:
    nothing = ir.VoidType()

    def pause(b: ir.IRBuilder, _: Sequence[Any]) -> None:
        if target.is_x86:
            b.call(declared(b, "llvm.x86.sse2.pause", nothing, []), [])
        else:
            b.call(declared(b, "llvm.aarch64.hint", nothing, [I32]), [I32(1)])

    def prefetch(b: ir.IRBuilder, a: Sequence[Any]) -> None:
        pointer = pointer_to(b, a[0], I8)
        function = declared(b, "llvm.prefetch.p0", nothing, [pointer.type, I32, I32, I32])
        b.call(function, [pointer, I32(0), I32(3), I32(1)])

    def call(b: ir.IRBuilder, a: Sequence[Any]) -> None:
        kernel = ir.FunctionType(nothing, [I64] * 5)
        b.call(b.inttoptr(a[0], kernel.as_pointer()), a[1:])

    def atomic(operation: str) -> Emit:
        return lambda b, a: b.atomic_rmw(operation, pointer_to(b, a[0], I64), a[1], "seq_cst")

    def atomic_swap(b: ir.IRBuilder, a: Sequence[Any]) -> Any:
        pair = b.cmpxchg(pointer_to(b, a[0], I64), a[1], a[2], "seq_cst", "seq_cst")
        return b.extract_value(pair, 0)

    def atomic_store(b: ir.IRBuilder, a: Sequence[Any]) -> None:
        b.store_atomic(a[1], pointer_to(b, a[0], I64), "release", 8)

    return {
        "pause": instruction(NOTHING, [], pause),
        "yield_processor": instruction(NOTHING, [], called("sched_yield", I32, [])),
        "prefetch": instruction(NOTHING, [ADDRESS], prefetch),
        "call": instruction(NOTHING, [ADDRESS, INT, INT, INT, ADDRESS, ADDRESS], call),
        "atomic_add": instruction(INT, [ADDRESS, INT], atomic("add")),
        "atomic_swap": instruction(INT, [ADDRESS, INT, INT], atomic_swap),
        "atomic_exchange": instruction(INT, [ADDRESS, INT], atomic("xchg")),
        "atomic_load": instruction(
            INT, [ADDRESS], lambda b, a: b.load_atomic(pointer_to(b, a[0], I64), "seq_cst", 8)
        ),
        "atomic_store": instruction(NOTHING, [ADDRESS, INT], atomic_store),
    }


def implementations(target: Target) -> dict[str, Any]:
    """Return Numba's meaning of every function of simd.py, for this target."""
    native_half = target.simd != "generic" or not target.is_x86
    return {
        **_memory(native_half),
        **_conversions(),
        **_dot_products(target),
        **_arithmetic(target),
        **_control(target),
    }
