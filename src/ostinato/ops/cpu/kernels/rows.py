"""Kernels that work row by row, a row to a token: embedding, norm, quantisation, gated unit, choice of rows.
An item is a row.

Rows of float buffers are padded with zeros to a multiple of 16 (`stride`), so that loops need no tail. Sums
over a row go register by register into one accumulator of 16 lanes, then through `sum_lanes`: an order that
depends on the width alone.
"""

from __future__ import annotations

from ostinato.ops.cpu.kernel import Kernel, inline, kernel, variant
from ostinato.ops.cpu.kernels.common import GROUP, LOG2_E, exp2, quantize_group
from ostinato.ops.cpu.packing import LAYOUTS, Layout
from ostinato.ops.cpu.simd import (
    F32,
    LANES,
    f32,
    fma,
    get_f16,
    get_i32,
    get_u8,
    get_u16,
    load_f32,
    minimum,
    set_f32,
    set_i32,
    splat,
    sqrt,
    store_f32,
    sum_lanes,
)

# Constants of the variants, put in before compilation.
BITS, MINIMA, GROUP_BYTES, BRAIN = 4, 0, 288, 0


def _embed_quantized(
    first: int, last: int, token_ids: int, weights: int, x: int, stride: int, groups: int
) -> None:
    for t in range(first, last):
        row = get_i32(token_ids + 4 * t)
        panel, lane = weights + row // LANES * groups * GROUP_BYTES, row % LANES
        for g in range(groups):
            block = panel + g * GROUP_BYTES
            scale = get_f16(block + 64 * BITS + 2 * lane)
            for c in range(GROUP):
                if BITS == 4:
                    byte = get_u8(block + 64 * (c % 16 // 4) + 4 * lane + c % 4)
                    value = (byte & 15 if c < 16 else byte >> 4) - (0 if MINIMA else 8)
                else:
                    value = get_u8(block + 64 * (c // 4) + 4 * lane + c % 4) - 128
                number = scale * f32(float(value))
                if MINIMA:
                    number = number + get_f16(block + 64 * BITS + 32 + 2 * lane)
                set_f32(x + (t * stride + g * GROUP + c) * 4, number)


def _embed_floating(
    first: int, last: int, token_ids: int, weights: int, x: int, stride: int, columns: int
) -> None:
    for t in range(first, last):
        row = get_i32(token_ids + 4 * t)
        panel, lane = weights + row // LANES * columns * LANES * (BITS // 8), row % LANES
        for k in range(columns):
            out = x + (t * stride + k) * 4
            if BITS == 32:
                set_i32(out, get_i32(panel + (k * LANES + lane) * 4))
            elif BRAIN:
                set_i32(out, get_u16(panel + (k * LANES + lane) * 2) << 16)
            else:
                set_f32(out, get_f16(panel + (k * LANES + lane) * 2))
        for k in range(columns, stride):
            set_f32(x + (t * stride + k) * 4, f32(0.0))


def _embed_variant(layout: Layout) -> Kernel:
    name = f"embed_{layout.name}"
    if layout.quantized:
        constants = {"BITS": layout.bits, "MINIMA": int(layout.minima), "GROUP_BYTES": layout.group_bytes}
        return variant(_embed_quantized, name, **constants)
    return variant(_embed_floating, name, BITS=layout.bits, BRAIN=int(layout.name == "bf16"))


EMBED = {layout: _embed_variant(layout) for layout in LAYOUTS.values()}
"""The kernel that reads rows of each weight layout."""


@kernel
def take_rows(first: int, last: int, logits_rows: int, x: int, y: int, stride: int) -> None:
    """y[r] = x[logits_rows[r]]"""
    for r in range(first, last):
        source = x + get_i32(logits_rows + 4 * r) * stride * 4
        for i in range(0, 4 * stride, 4 * LANES):
            store_f32(y + r * stride * 4 + i, load_f32(source + i))


@inline
def inverse_rms(x: int, stride: int, width: int, eps: float) -> float:
    """1 / sqrt(mean of squares + eps) of the row at x, a float32."""
    total = splat(f32(0.0))
    for i in range(0, 4 * stride, 4 * LANES):
        value = load_f32(x + i)
        total = fma(value, value, total)
    return f32(1.0) / sqrt(sum_lanes(total) / f32(float(width)) + eps)


@kernel
def rms_norm(
    first: int,
    last: int,
    x: int,
    weight: int,
    y: int,
    stride: int,
    width: int,
    eps: float,
) -> None:
    """y = x / rms(x) · weight, as floats."""
    for t in range(first, last):
        row = 4 * t * stride
        scale = splat(inverse_rms(x + row, stride, width, eps))
        for i in range(0, 4 * stride, 4 * LANES):
            store_f32(y + row + i, load_f32(x + row + i) * scale * load_f32(weight + i))


@kernel
def rms_norm_quantize(
    first: int,
    last: int,
    x: int,
    weight: int,
    stride: int,
    width: int,
    eps: float,
    values: int,
    scales: int,
    scaled_sums: int,
    integer_sums: int,
) -> None:
    """x / rms(x) · weight, quantised in groups of 32."""
    groups = width // GROUP
    for t in range(first, last):
        row = x + 4 * t * stride
        scale = splat(inverse_rms(row, stride, width, eps))
        for g in range(groups):
            i = 4 * GROUP * g
            low = load_f32(row + i) * scale * load_f32(weight + i)
            high = load_f32(row + i + 64) * scale * load_f32(weight + i + 64)
            n = t * groups + g
            quantize_group(
                low, high, values + n * GROUP, scales + 4 * n, scaled_sums + 4 * n, integer_sums + 4 * n
            )


@kernel
def quantize(
    first: int,
    last: int,
    x: int,
    stride: int,
    groups: int,
    values: int,
    scales: int,
    scaled_sums: int,
    integer_sums: int,
) -> None:
    """x, quantised in groups of 32. An item is a group of a row."""
    for n in range(first, last):
        i = x + (n // groups * stride + n % groups * GROUP) * 4
        quantize_group(
            load_f32(i),
            load_f32(i + 64),
            values + n * GROUP,
            scales + 4 * n,
            scaled_sums + 4 * n,
            integer_sums + 4 * n,
        )


@inline
def silu(x: F32) -> F32:
    """x / (1 + e^-x)"""
    power = minimum(splat(f32(126.0)), x * splat(f32(-LOG2_E)))
    return x / (splat(f32(1.0)) + exp2(power))


@kernel
def gated_silu(first: int, last: int, gate: int, up: int, y: int, stride: int) -> None:
    """y = silu(gate) · up, as floats. An item is a register of a row."""
    for n in range(first, last):
        i = 4 * LANES * n
        store_f32(y + i, silu(load_f32(gate + i)) * load_f32(up + i))


@kernel
def gated_silu_quantize(
    first: int,
    last: int,
    gate: int,
    up: int,
    stride: int,
    groups: int,
    values: int,
    scales: int,
    scaled_sums: int,
    integer_sums: int,
) -> None:
    """silu(gate) · up, quantised in groups of 32. An item is a group of a row."""
    for n in range(first, last):
        i = (n // groups * stride + n % groups * GROUP) * 4
        low = silu(load_f32(gate + i)) * load_f32(up + i)
        high = silu(load_f32(gate + i + 64)) * load_f32(up + i + 64)
        quantize_group(
            low, high, values + n * GROUP, scales + 4 * n, scaled_sums + 4 * n, integer_sums + 4 * n
        )
