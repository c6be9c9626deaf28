"""A panel of packed weights made ready for many tokens: bytes in the order they are multiplied, scales as
floats.

Where a path is short of registers and many tokens want the same panel, what every tile would do again is done
once. Inline functions only, for matmul.py; they change how an integer comes about, not one bit of it.
"""

from __future__ import annotations

from ostinato.ops.cpu.kernel import inline
from ostinato.ops.cpu.kernels.planes import (
    factors,
    group_minima,
    group_scales,
    minima_factors,
    sub_minima,
    sub_scales,
    unpacked,
)
from ostinato.ops.cpu.simd import I32, splat_i32, store_f32, store_i32

LOW, GROUPS, SUBS, MINIMA, OFFSET, VALUE_BYTES, BLOCK_BYTES = 4, 1, 0, 0, 8, 256, 288

SCALES, MINIMA_AT, SUBS_AT, PAIR_AT = 512, 576, 640, 768
PREPARED_BYTES = 832
"""A prepared group of 32 columns: 8 registers of bytes; its scales and minima as float32; and for types with
two sub-scales a group those, twice in each lane as 16-bit numbers, and a pair: what the sums of the two
halves of x are multiplied with, for the offset or the minima."""

FLIP_SIGNS = -0x7F7F7F80
"""0x80808080 as an int32: turns four unsigned bytes w into the signed w - 128."""


@inline
def as_pair(low: I32, high: I32) -> I32:
    """Two 16-bit numbers to a lane."""
    return (low & splat_i32(0xFFFF)) | (high << 16)


@inline
def prepare_panel(panel: int, groups: int, prepared: int) -> None:
    """Unpack 16 rows."""
    for g in range(groups):
        block, i, out = panel + g // GROUPS * BLOCK_BYTES, g % GROUPS, prepared + g * PREPARED_BYTES
        for j in range(8):
            q = unpacked(block + i * VALUE_BYTES, j)
            if OFFSET == 128:
                q = q ^ splat_i32(FLIP_SIGNS)
            store_i32(out + 64 * j, q)
        if SUBS == 2:
            first, second = sub_scales(block, 2 * i), sub_scales(block, 2 * i + 1)
            store_i32(out + SUBS_AT, as_pair(first, first))
            store_i32(out + SUBS_AT + 64, as_pair(second, second))
            store_f32(out + SCALES, factors(block))
            if OFFSET:
                offset = splat_i32(-OFFSET)
                store_i32(out + PAIR_AT, as_pair(first * offset, second * offset))
            if MINIMA:
                store_i32(out + PAIR_AT, as_pair(sub_minima(block, 2 * i), sub_minima(block, 2 * i + 1)))
                store_f32(out + MINIMA_AT, minima_factors(block))
        else:
            store_f32(out + SCALES, group_scales(block, factors(block), i))
            if MINIMA:
                store_f32(out + MINIMA_AT, group_minima(block, minima_factors(block), i))
