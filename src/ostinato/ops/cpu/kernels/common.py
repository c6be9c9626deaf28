"""Functions that several kernels share: exp2, and the quantisation of 32 activations."""

from __future__ import annotations

from ostinato.ops.cpu.kernel import inline
from ostinato.ops.cpu.simd import (
    F32,
    bits_of,
    f32,
    float_of,
    fma,
    largest_magnitude,
    maximum,
    set_f32,
    set_i32,
    splat,
    store_i8,
    sum_lanes_i32,
    to_i32,
    where_below,
)

GROUP = 32
"""Values that share one activation scale."""

NOTHING_BELOW = 1e-30
"""A group whose largest magnitude is below this is all zeros: its inverse scale would overflow."""

LOG2_E = 1.4426950408889634

EXP2_LOWEST = -126.0
"""Below it 2^x is not a normal float32, and counts as 0."""

ROUND_AND_BIAS = 1.5 * 2.0**23 + 127.0
"""Added to a small x, the low bits of the sum are the nearest integer plus 127: an exponent."""


@inline
def exp2(x: F32) -> F32:
    """2^x for x up to 127, within 1.5 units in the last place; 1 at 0, 0 below -126, NaN for NaN.

    x = n + f with |f| <= 1/2; 2^f by a polynomial of degree 6, fitted for the least relative error (2e-9)
    with 1 at f = 0; n put into an exponent.
    """
    magic = splat(f32(ROUND_AND_BIAS))
    shifted = x + magic
    f = x - (shifted - magic)
    p = splat(f32(0.00015353361959569156))
    p = fma(p, f, splat(f32(0.0013398875016719103)))
    p = fma(p, f, splat(f32(0.00961843691766262)))
    p = fma(p, f, splat(f32(0.055503323674201965)))
    p = fma(p, f, splat(f32(0.24022647738456726)))
    p = fma(p, f, splat(f32(0.6931471824645996)))
    p = fma(p, f, splat(f32(1.0)))
    power = p * float_of(bits_of(shifted) << 23)
    return where_below(x, splat(f32(EXP2_LOWEST)), splat(f32(0.0)), power)


@inline
def tanh(x: F32) -> F32:
    """The hyperbolic tangent, within 2e-7 of 1: (1 - e) / (1 + e) with e = exp(-2 |x|), and the sign of x."""
    zero, one = splat(f32(0.0)), splat(f32(1.0))
    magnitude = maximum(x, zero - x)
    power = exp2(magnitude * splat(f32(-2.0 * LOG2_E)))
    y = (one - power) / (one + power)
    return where_below(x, zero, zero - y, y)


@inline
def quantize_group(a: F32, b: F32, values: int, scale: int, scaled_sum: int, integer_sums: int) -> None:
    """Quantise 32 numbers to int8 with one scale, largest magnitude to 127; a NaN or infinity among them
    makes the scale one.

    Writes 32 int8 at `values`, their float32 scale, scale times their sum as float32, and the sums of the
    first and of the last 16 as two int32.
    """
    largest = largest_magnitude(a, b)
    step = largest / f32(127.0)
    inverse = f32(0.0)
    if largest > f32(NOTHING_BELOW):
        inverse = f32(127.0) / largest
    low, high = to_i32(a * splat(inverse)), to_i32(b * splat(inverse))
    store_i8(values, low)
    store_i8(values + 16, high)
    first, second = sum_lanes_i32(low), sum_lanes_i32(high)
    set_f32(scale, step)
    set_f32(scaled_sum, step * f32(float(first + second)))
    set_i32(integer_sums, first)
    set_i32(integer_sums + 4, second)
