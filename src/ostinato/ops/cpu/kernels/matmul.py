"""Matrix products y[t, n] = x[t, :] · W[n, :], or y += …, for a tile of T tokens at a time. An item is a
panel of 16 rows.

Packed weights (see packing.py) lie in groups of 16 rows by 32 columns, a lane to a row. A product of a group
and a token is an exact integer; groups are then added in the order of the columns, each with one fused
multiply-add (two with minima). That order is all that the bits of y depend on: not on T, not on the worker,
not on what else is in the batch.
"""

from __future__ import annotations

from ostinato.ops.cpu.kernel import Kernel, variant
from ostinato.ops.cpu.kernels.common import GROUP
from ostinato.ops.cpu.packing import LAYOUTS, Layout
from ostinato.ops.cpu.simd import (
    LANES,
    dot4,
    dot4_small,
    f32,
    fma,
    get_i32,
    load_bf16,
    load_bytes4,
    load_f16,
    load_f32,
    load_i32,
    load_splat,
    registers,
    splat,
    splat_i32,
    static,
    store_f32,
    to_f32,
)

TILES = (1, 4, 8)
"""Tokens a tile: 1 for decode, 8 for prefill, 4 for a few requests at once."""

# Constants of the variants, put in before compilation.
T = 1
BITS, MINIMA, GROUP_BYTES = 4, 0, 288
ELEMENT_BYTES, BRAIN = 2, 0


def _quantized(
    first: int,
    last: int,
    num_tokens: int,
    num_rows: int,
    by_rows: int,
    values: int,
    scales: int,
    scaled_sums: int,
    integer_sums: int,
    weights: int,
    y: int,
    y_stride: int,
    groups: int,
    accumulate: int,
) -> None:
    count = num_rows if by_rows != 0 else num_tokens
    for r in range(first, last):
        panel = weights + r * groups * GROUP_BYTES
        for tile in range(0, count, T):
            acc = registers(T, splat(f32(0.0)))
            for g in range(groups):
                block = panel + g * GROUP_BYTES
                q = registers(8, splat_i32(0))
                if BITS == 4:
                    for j in static(4):
                        packed = load_i32(block + 64 * j)
                        q[j] = packed & splat_i32(0x0F0F0F0F)
                        q[j + 4] = (packed >> 4) & splat_i32(0x0F0F0F0F)
                else:
                    for j in static(8):
                        q[j] = load_i32(block + 64 * j)
                scale = load_f16(block + 64 * BITS)
                if MINIMA:
                    minimum = load_f16(block + 64 * BITS + 32)
                for t in static(T):
                    n = (tile + t) * groups + g
                    x = values + n * GROUP
                    if MINIMA:
                        dot = splat_i32(0)
                    else:
                        dot = splat_i32(-(1 << (BITS - 1)) * get_i32(integer_sums + 4 * n))
                    for j in static(8):
                        if BITS == 4:
                            dot = dot4_small(dot, q[j], load_bytes4(x + 4 * j))
                        else:
                            dot = dot4(dot, q[j], load_bytes4(x + 4 * j))
                    acc[t] = fma(to_f32(dot) * load_splat(scales + 4 * n), scale, acc[t])
                    if MINIMA:
                        acc[t] = fma(minimum, load_splat(scaled_sums + 4 * n), acc[t])
            for t in static(T):
                out = y + ((tile + t) * y_stride + r * LANES) * 4
                if accumulate != 0:
                    store_f32(out, load_f32(out) + acc[t])
                else:
                    store_f32(out, acc[t])


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
                out = y + ((tile + t) * y_stride + r * LANES) * 4
                if accumulate != 0:
                    store_f32(out, load_f32(out) + acc[t])
                else:
                    store_f32(out, acc[t])


def _variant(layout: Layout, tile: int) -> Kernel:
    name = f"matmul_{layout.name}_t{tile}"
    if layout.quantized:
        constants = {"BITS": layout.bits, "MINIMA": int(layout.minima), "GROUP_BYTES": layout.group_bytes}
        return variant(_quantized, name, T=tile, **constants)
    return variant(_floating, name, T=tile, ELEMENT_BYTES=layout.bits // 8, BRAIN=int(layout.name == "bf16"))


MATMUL = {(layout, tile): _variant(layout, tile) for layout in LAYOUTS.values() for tile in TILES}
"""The kernel of each weight layout and tile size."""
