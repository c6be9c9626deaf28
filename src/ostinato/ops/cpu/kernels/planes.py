"""How kernels read a super-block of packed weights (packing.py): values, scales and minima of 16 rows.

Inline functions only; the constants are those of `Layout.constants`, put in before compilation.
"""

from __future__ import annotations

from ostinato.ops.cpu.kernel import inline
from ostinato.ops.cpu.simd import (
    F32,
    I32,
    f32,
    float_of,
    get_u8,
    load_f16,
    load_i8,
    load_i32,
    load_u8,
    look_up,
    splat,
    splat_i32,
    to_f32,
)

LOW, HIGH, TABLE, TABLE_FIRST, TABLE_SECOND = 4, 0, 0, 0, 0
E8M0, MINIMA, SUBS = 0, 0, 0
SUB_SCALES, SUB_MINIMA, FACTORS, MINIMA_FACTORS = 0, 0, 0, 0


@inline
def unpacked(values: int, j: int) -> I32:
    """The columns 4j … 4j + 3 of a group, as unsigned bytes."""
    if LOW == 8:
        q = load_i32(values + 64 * j)
    elif LOW == 4:
        q = (load_i32(values + 64 * (j % 4)) >> (4 * (j // 4))) & splat_i32(0x0F0F0F0F)
    else:
        q = (load_i32(values + 64 * (j // 4)) >> (2 * (j % 4))) & splat_i32(0x03030303)
    if HIGH == 1:
        q = q | (((load_i32(values + 64 * LOW) >> j) & splat_i32(0x01010101)) << LOW)
    if HIGH == 2:
        plane = load_i32(values + 64 * (LOW + j // 4))
        q = q | (((plane >> (2 * (j % 4))) & splat_i32(0x03030303)) << LOW)
    if TABLE:
        q = look_up(q, TABLE_FIRST, TABLE_SECOND)
    return q


@inline
def unpacked_byte(values: int, lane: int, column: int) -> int:
    """One value of a group, as `unpacked` has it."""
    j = column // 4
    byte = values + 4 * lane + column % 4
    if LOW == 8:
        q = get_u8(byte + 64 * j)
    elif LOW == 4:
        q = (get_u8(byte + 64 * (j % 4)) >> (4 * (j // 4))) & 15
    else:
        q = (get_u8(byte + 64 * (j // 4)) >> (2 * (j % 4))) & 3
    if HIGH == 1:
        q = q | (((get_u8(byte + 64 * LOW) >> j) & 1) << LOW)
    if HIGH == 2:
        q = q | (((get_u8(byte + 64 * (LOW + j // 4)) >> (2 * (j % 4))) & 3) << LOW)
    if TABLE:
        q = ((TABLE_FIRST if q < 8 else TABLE_SECOND) >> (8 * (q % 8))) & 255
    return q


@inline
def factors(block: int) -> F32:
    """The factor of each row.

    An E8M0 byte e stands for 2^(e - 128), as the product of two numbers that are never subnormal.
    """
    if E8M0:
        e = load_u8(block + FACTORS)
        half = e >> 1
        scale = float_of((half + splat_i32(63)) << 23) * float_of((e - half + splat_i32(63)) << 23)
    else:
        scale = load_f16(block + FACTORS)
    return scale


@inline
def sub_scales(block: int, index: int) -> I32:
    """The sub-scale of each row; `index`: which of the super-block's."""
    s = load_i8(block + SUB_SCALES + 16 * index)
    if MINIMA == 3:
        s = s & splat_i32(15)
    return s


@inline
def sub_minima(block: int, index: int) -> I32:
    """The minimum of each row, before its factor."""
    if MINIMA == 3:
        m = load_u8(block + SUB_SCALES + 16 * index) >> 4
    else:
        m = load_u8(block + SUB_MINIMA + 16 * index)
    return m


@inline
def group_scales(block: int, factor: F32, group: int) -> F32:
    """What the integers of a group are multiplied with, where they share one scale."""
    scale = factor
    if SUBS == 1:
        scale = factor * to_f32(sub_scales(block, group))
    return scale


@inline
def minima_factors(block: int) -> F32:
    """The minimum of each row, to be added; or the (negative) factor of its sub-minima."""
    lowest = load_f16(block + MINIMA_FACTORS)
    if MINIMA >= 2:
        lowest = splat(f32(0.0)) - lowest
    return lowest


@inline
def group_minima(block: int, lowest: F32, group: int) -> F32:
    """What is added to each value of a group."""
    minimum = lowest
    if MINIMA == 2:
        minimum = lowest * to_f32(sub_minima(block, group))
    return minimum
