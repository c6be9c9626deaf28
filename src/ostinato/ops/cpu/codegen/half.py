"""float16: with the processor's conversions where it has them, by integer arithmetic where not."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ostinato.ops.cpu.codegen.types import (
    I32,
    V_F32,
    V_HALF,
    V_I16,
    V_I32,
    constant,
    splat,
)


def widen(builder: ir.IRBuilder, halves: Any, native: bool) -> Any:
    """float16 -> float32.

    Without the instruction: move the bits and let a multiplication by 2^112 rebias the exponent.
    """
    if native:
        return builder.fpext(halves, V_F32)
    bits = builder.zext(builder.bitcast(halves, V_I16), V_I32)
    sign = builder.shl(builder.and_(bits, constant(V_I32, 0x8000)), constant(V_I32, 16))
    magnitude = builder.shl(builder.and_(bits, constant(V_I32, 0x7FFF)), constant(V_I32, 13))
    scaled = builder.fmul(builder.bitcast(magnitude, V_F32), constant(V_F32, 2.0**112))
    special = builder.icmp_unsigned(">=", magnitude, constant(V_I32, 0x7C00 << 13))
    infinite = builder.or_(magnitude, constant(V_I32, 0x7F800000))
    finite = builder.bitcast(scaled, V_I32)
    return builder.bitcast(builder.or_(builder.select(special, infinite, finite), sign), V_F32)


def narrow(builder: ir.IRBuilder, value: Any, native: bool) -> Any:
    """float32 -> float16 to nearest even, clamped to ±65504.

    Without the instruction: round the mantissa by hand.
    """
    limit, below = constant(V_F32, 65504.0), constant(V_F32, -65504.0)
    value = builder.select(builder.fcmp_ordered(">", value, limit), limit, value)
    value = builder.select(builder.fcmp_ordered("<", value, below), below, value)
    if native:
        return builder.fptrunc(value, V_HALF)
    bits = builder.bitcast(value, V_I32)
    sign = builder.and_(builder.lshr(bits, constant(V_I32, 16)), constant(V_I32, 0x8000))
    magnitude = builder.and_(bits, constant(V_I32, 0x7FFFFFFF))
    odd = builder.and_(builder.lshr(magnitude, constant(V_I32, 13)), constant(V_I32, 1))
    rounded = builder.add(builder.add(magnitude, odd), constant(V_I32, 0x0FFF - (112 << 23)))
    normal = builder.lshr(rounded, constant(V_I32, 13))
    # Adding 0.5 leaves in the low mantissa bits the value counted in units of 2^-24, which are the subnormal
    # float16.
    shifted = builder.fadd(builder.bitcast(magnitude, V_F32), constant(V_F32, 0.5))
    subnormal = builder.sub(builder.bitcast(shifted, V_I32), constant(V_I32, 0x3F000000))
    small = builder.icmp_unsigned("<", magnitude, constant(V_I32, 113 << 23))
    nan = builder.icmp_unsigned(">", magnitude, constant(V_I32, 0x7F800000))
    half = builder.select(nan, constant(V_I32, 0x7E00), builder.select(small, subnormal, normal))
    return builder.bitcast(builder.trunc(builder.or_(half, sign), V_I16), V_HALF)


def widen_scalar(builder: ir.IRBuilder, half: Any, native: bool) -> Any:
    """One float16 -> float32, through a register."""
    return builder.extract_element(widen(builder, splat(builder, half, V_HALF), native), I32(0))


def narrow_scalar(builder: ir.IRBuilder, value: Any, native: bool) -> Any:
    """One float32 -> float16, through a register."""
    return builder.extract_element(narrow(builder, splat(builder, value, V_F32), native), I32(0))
