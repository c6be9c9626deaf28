"""Matrix products y[t, n] = scale · (x[t, :] · W[n, :] + bias[n]), or y += …, for a tile of T tokens at a
time. An item is a panel of 16 rows.

Packed weights (see packing.py) lie in groups of 16 rows by 32 columns, a lane to a row. A product of a group
and a token is an exact integer; groups are then added in the order of the columns, each with one fused
multiply-add (two with minima). That order is all that the bits of y depend on: not on T, not on the worker,
not on what else is in the batch.

How an exact integer comes about is up to the path. Where there is a dot product of four bytes, it is that;
with AVX2, whose products of bytes are pairs in 16 bits, as many pairs are added there as cannot overflow
(CHAIN) before they are widened, which takes half the multiplications.
"""

from __future__ import annotations

from ostinato.ops.cpu.kernel import Kernel, inline, variant
from ostinato.ops.cpu.kernels.common import GROUP
from ostinato.ops.cpu.kernels.planes import (
    factors,
    group_minima,
    group_scales,
    minima_factors,
    sub_minima,
    sub_scales,
    unpacked,
)
from ostinato.ops.cpu.packing import LAYOUTS, Layout
from ostinato.ops.cpu.simd import (
    F32,
    LANES,
    add_pairs,
    dot4,
    dot4_signed,
    f32,
    fma,
    get_i32,
    in_order,
    load_bf16,
    load_bytes4,
    load_f16,
    load_f32,
    load_splat,
    multiply_pairs,
    registers,
    splat,
    splat_i32,
    static,
    store_f32,
    sum_pairs,
    to_f32,
)

TILES = (1, 4, 8)
"""Tokens a tile: 1 for decode, 8 for prefill, 4 for a few requests at once."""

# Constants of the variants, put in before compilation; PAIRS is of the target.
T = 1
LOW, GROUPS, SUBS, MINIMA, OFFSET, VALUE_BYTES, BLOCK_BYTES, CHAIN = 4, 1, 0, 0, 8, 256, 288, 8
ELEMENT_BYTES, BRAIN = 2, 0
PAIRS = 0

FLIP_SIGNS = -0x7F7F7F80
"""0x80808080 as an int32: turns four unsigned bytes w into the signed w - 128."""


@inline
def finish(y: int, total: F32, bias: int, panel: int, scale: float, accumulate: int) -> None:
    """y = scale · (total + bias), or y += …; a bias at address 0 is none."""
    if bias != 0:
        total = total + load_f32(bias + panel * LANES * 4)
    total = total * splat(scale)
    if accumulate != 0:
        total = load_f32(y) + total
    store_f32(y, total)


def _quantized(
    first: int, last: int, num_tokens: int, num_rows: int, by_rows: int,
    values: int, scales: int, scaled_sums: int, integer_sums: int,
    weights: int, y: int, y_stride: int, groups: int, accumulate: int, bias: int, scale: float,
) -> None:  # fmt: skip
    count = num_rows if by_rows != 0 else num_tokens
    for r in range(first, last):
        panel = weights + r * (groups // GROUPS) * BLOCK_BYTES
        for tile in range(0, count, T):
            acc = registers(T, splat(f32(0.0)))
            for s in range(groups // GROUPS):
                block = panel + s * BLOCK_BYTES
                factor = factors(block)
                if MINIMA:
                    lowest = minima_factors(block)
                for i in range(GROUPS):
                    n = tile * groups + s * GROUPS + i
                    dot = registers(T, splat_i32(0))
                    pairs = registers(T, splat_i32(0))
                    whole = registers(T, splat_i32(0))
                    minima = registers(T, splat_i32(0))
                    for half in static(2):
                        if SUBS == 2:
                            sub = sub_scales(block, 2 * i + half)
                            for t in static(T):
                                total = get_i32(integer_sums + 8 * (n + t * groups) + 4 * half)
                                dot[t] = splat_i32(-OFFSET * total)
                        elif half == 0 and OFFSET and not (PAIRS and OFFSET == 128):
                            for t in static(T):
                                sums = integer_sums + 8 * (n + t * groups)
                                dot[t] = splat_i32(-OFFSET * (get_i32(sums) + get_i32(sums + 4)))
                        for k in static(4):
                            q = unpacked(block + i * VALUE_BYTES, 4 * half + k)
                            if PAIRS and OFFSET == 128:
                                q = q ^ splat_i32(FLIP_SIGNS)
                            if PAIRS:
                                q = in_order(q)
                            for t in static(T):
                                x = load_bytes4(values + (n + t * groups) * GROUP + 16 * half + 4 * k)
                                if not PAIRS:
                                    dot[t] = dot4(dot[t], q, x)
                                elif OFFSET == 128:
                                    dot[t] = dot4_signed(dot[t], q, x)
                                elif (4 * half + k) % CHAIN == 0:
                                    pairs[t] = multiply_pairs(q, x)
                                else:
                                    pairs[t] = in_order(add_pairs(pairs[t], multiply_pairs(q, x)))
                            if PAIRS and OFFSET != 128 and (4 * half + k) % CHAIN == CHAIN - 1:
                                for t in static(T):
                                    dot[t] = sum_pairs(dot[t], pairs[t])
                        if SUBS == 2:
                            for t in static(T):
                                whole[t] = whole[t] + dot[t] * sub
                            if MINIMA:
                                low = sub_minima(block, 2 * i + half)
                                for t in static(T):
                                    total = get_i32(integer_sums + 8 * (n + t * groups) + 4 * half)
                                    minima[t] = minima[t] + low * splat_i32(total)
                    if SUBS == 2:
                        for t in static(T):
                            x_scale = load_splat(scales + 4 * (n + t * groups))
                            acc[t] = fma(to_f32(whole[t]) * x_scale, factor, acc[t])
                            if MINIMA:
                                acc[t] = fma(to_f32(minima[t]) * x_scale, lowest, acc[t])
                    else:
                        row_scale = group_scales(block, factor, i)
                        if MINIMA:
                            minimum = group_minima(block, lowest, i)
                        for t in static(T):
                            x_scale = load_splat(scales + 4 * (n + t * groups))
                            acc[t] = fma(to_f32(dot[t]) * x_scale, row_scale, acc[t])
                            if MINIMA:
                                acc[t] = fma(minimum, load_splat(scaled_sums + 4 * (n + t * groups)), acc[t])
            for t in static(T):
                finish(y + ((tile + t) * y_stride + r * LANES) * 4, acc[t], bias, r, scale, accumulate)


def _floating(
    first: int,
    last: int,
    num_tokens: int,
    num_rows: int,
    by_rows: int,
    x: int,
    x_stride: int,
    weights: int,
    y: int,
    y_stride: int,
    columns: int,
    accumulate: int,
    bias: int,
    scale: float,
) -> None:
    count = num_rows if by_rows != 0 else num_tokens
    for r in range(first, last):
        panel = weights + r * columns * LANES * ELEMENT_BYTES
        for tile in range(0, count, T):
            acc = registers(T, splat(f32(0.0)))
            for k in range(columns):
                if ELEMENT_BYTES == 4:
                    w = load_f32(panel + k * LANES * ELEMENT_BYTES)
                elif BRAIN:
                    w = load_bf16(panel + k * LANES * ELEMENT_BYTES)
                else:
                    w = load_f16(panel + k * LANES * ELEMENT_BYTES)
                for t in static(T):
                    acc[t] = fma(w, load_splat(x + ((tile + t) * x_stride + k) * 4), acc[t])
            for t in static(T):
                finish(y + ((tile + t) * y_stride + r * LANES) * 4, acc[t], bias, r, scale, accumulate)


def _chain(layout: Layout) -> int:
    """Return how many products of pairs a 16-bit integer surely holds: a power of two, within a sub-scale."""
    largest = 2 * (2 ** (layout.low + layout.high) - 1) * 127
    most = 4 if layout.subs == 2 else 8
    return max(n for n in (1, 2, 4, 8) if n == 1 or (n <= most and n * largest < 2**15))


def _variant(layout: Layout, tile: int) -> Kernel:
    name = f"matmul_{layout.name}_t{tile}"
    if layout.quantized:
        return variant(_quantized, name, T=tile, CHAIN=_chain(layout), **layout.constants())
    return variant(_floating, name, T=tile, ELEMENT_BYTES=layout.low // 8, BRAIN=int(layout.name == "bf16"))


MATMUL = {(layout, tile): _variant(layout, tile) for layout in LAYOUTS.values() for tile in TILES}
"""The kernel of each weight layout and tile size."""
