"""Functions that several kernels share: exp, and the quantisation of 32 activations."""

from __future__ import annotations

from ostinato.ops.cpu.kernel import inline
from ostinato.ops.cpu.simd import (
    F32,
    f32,
    float_of,
    fma,
    largest_magnitude,
    maximum,
    minimum,
    set_f32,
    set_i32,
    splat,
    splat_i32,
    store_i8,
    sum_lanes_i32,
    to_f32,
    to_i32,
    where_below,
)

GROUP = 32
"""Values that share one activation scale."""

NOTHING_BELOW = 1e-30
"""A group whose largest magnitude is below this is all zeros: its inverse scale would overflow."""

LOG2_E = 1.4426950408889634
LN2_HIGH = 0.693359375
LN2_LOW = -2.12194440054690583e-4
EXP_LOWEST, EXP_HIGHEST = -87.3, 88.3


@inline
def exp(x: F32) -> F32:
    """e^x within 2 units in the last place; exactly 1 at 0 and exactly 0 below -87.3; NaN stays NaN.

    Method: x = n ln 2 + r with |r| <= ln 2 / 2, the Taylor series of e^r to degree 7 by Horner's rule, then n
    into the exponent.
    """
    lowest = splat(f32(EXP_LOWEST))
    clamped = minimum(splat(f32(EXP_HIGHEST)), maximum(lowest, x))
    n = to_i32(clamped * splat(f32(LOG2_E)))
    whole = to_f32(n)
    r = fma(whole, splat(f32(-LN2_HIGH)), clamped)
    r = fma(whole, splat(f32(-LN2_LOW)), r)
    p = splat(f32(1.0 / 5040.0))
    p = fma(p, r, splat(f32(1.0 / 720.0)))
    p = fma(p, r, splat(f32(1.0 / 120.0)))
    p = fma(p, r, splat(f32(1.0 / 24.0)))
    p = fma(p, r, splat(f32(1.0 / 6.0)))
    p = fma(p, r, splat(f32(0.5)))
    p = fma(p, r, splat(f32(1.0)))
    p = fma(p, r, splat(f32(1.0)))
    power = p * float_of((n + splat_i32(127)) << 23)
    return where_below(x, lowest, splat(f32(0.0)), power)


@inline
def quantize_group(a: F32, b: F32, values: int, scale: int, scaled_sum: int, integer_sum: int) -> None:
    """Quantise 32 numbers to int8 with one scale, largest magnitude to 127; a NaN or infinity among them
    makes the scale one.

    Writes 32 int8 at `values`, their float32 scale, scale times their sum as float32, and their sum as int32.
    """
    largest = largest_magnitude(a, b)
    step = largest / f32(127.0)
    inverse = f32(0.0)
    if largest > f32(NOTHING_BELOW):
        inverse = f32(127.0) / largest
    low, high = to_i32(a * splat(inverse)), to_i32(b * splat(inverse))
    store_i8(values, low)
    store_i8(values + 16, high)
    total = sum_lanes_i32(low + high)
    set_f32(scale, step)
    set_f32(scaled_sum, step * f32(float(total)))
    set_i32(integer_sum, total)
