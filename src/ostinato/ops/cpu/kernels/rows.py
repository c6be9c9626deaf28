"""Kernels that work row by row, a row to a token: embedding, norm, quantisation, gated unit, choice of rows.
An item is a row.

Rows of float buffers are padded with zeros to a multiple of 16 (`stride`), so that loops need no tail. Sums
over a row go register by register into one accumulator of 16 lanes, then through `sum_lanes`: an order that
depends on the width alone.
"""

from __future__ import annotations

from ostinato.ops.cpu.kernel import Kernel, inline, kernel, variant
from ostinato.ops.cpu.kernels.common import GROUP, LOG2_E, exp2, quantize_group, tanh
from ostinato.ops.cpu.kernels.planes import (
    factors,
    group_minima,
    group_scales,
    minima_factors,
    sub_minima,
    sub_scales,
    unpacked_byte,
)
from ostinato.ops.cpu.packing import LAYOUTS, Layout
from ostinato.ops.cpu.simd import (
    F32,
    LANES,
    f32,
    fma,
    get_f16,
    get_f32,
    get_i32,
    get_u16,
    load_f32,
    minimum,
    set_f32,
    set_i32,
    splat,
    sqrt,
    store_f32,
    sum_lanes,
    to_f32,
)

# Constants of the variants, put in before compilation.
LOW, GROUPS, SUBS, MINIMA, OFFSET, VALUE_BYTES, BLOCK_BYTES, BRAIN = 4, 1, 0, 0, 8, 256, 288, 0
GELU = 0


def _embed_quantized(
    first: int, last: int, worker: int, token_ids: int, weights: int, x: int, stride: int, groups: int,
    scale: float, scratch: int, scratch_bytes: int,
) -> None:  # fmt: skip
    """Scales and minima of 16 rows go through scratch memory, to choose one of them."""
    scales, minima = scratch + worker * scratch_bytes, scratch + worker * scratch_bytes + 2 * 4 * LANES
    supers = groups // GROUPS
    for t in range(first, last):
        row = get_i32(token_ids + 4 * t)
        panel, lane = weights + row // LANES * supers * BLOCK_BYTES, row % LANES
        for g in range(groups):
            block, group = panel + g // GROUPS * BLOCK_BYTES, g % GROUPS
            for half in range(2):
                if SUBS == 2:
                    sub = to_f32(sub_scales(block, 2 * group + half))
                    store_f32(scales + 4 * LANES * half, factors(block) * sub)
                else:
                    store_f32(scales + 4 * LANES * half, group_scales(block, factors(block), group))
                if MINIMA == 3:
                    low = to_f32(sub_minima(block, 2 * group + half))
                    store_f32(minima + 4 * LANES * half, minima_factors(block) * low)
                elif MINIMA:
                    store_f32(minima + 4 * LANES * half, group_minima(block, minima_factors(block), group))
            for c in range(GROUP):
                value = unpacked_byte(block + group * VALUE_BYTES, lane, c) - OFFSET
                number = get_f32(scales + 4 * LANES * (c // 16) + 4 * lane) * f32(float(value))
                if MINIMA:
                    number = number + get_f32(minima + 4 * LANES * (c // 16) + 4 * lane)
                set_f32(x + (t * stride + g * GROUP + c) * 4, number * scale)


def _embed_floating(
    first: int, last: int, token_ids: int, weights: int, x: int, stride: int, columns: int, scale: float
) -> None:
    for t in range(first, last):
        row = get_i32(token_ids + 4 * t)
        panel, lane = weights + row // LANES * columns * LANES * (LOW // 8), row % LANES
        for k in range(columns):
            out = x + (t * stride + k) * 4
            if LOW == 32:
                set_i32(out, get_i32(panel + (k * LANES + lane) * 4))
            elif BRAIN:
                set_i32(out, get_u16(panel + (k * LANES + lane) * 2) << 16)
            else:
                set_f32(out, get_f16(panel + (k * LANES + lane) * 2))
            set_f32(out, get_f32(out) * scale)
        for k in range(columns, stride):
            set_f32(x + (t * stride + k) * 4, f32(0.0))


def _embed_variant(layout: Layout) -> Kernel:
    name = f"embed_{layout.name}"
    if layout.quantized:
        return variant(_embed_quantized, name, **layout.constants())
    return variant(_embed_floating, name, LOW=layout.low, BRAIN=int(layout.name == "bf16"))


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
    first: int, last: int, x: int, weight: int, y: int, stride: int, heads: int, part: int, width: int,
    eps: float, accumulate: int,
) -> None:  # fmt: skip
    """y = x / rms(x) · weight, or y += …, as floats.

    A row is `heads` vectors of `width` numbers, `part` apart, with one weight; y may be x.
    """
    for t in range(first, last):
        for head in range(heads):
            vector = 4 * (t * stride + head * part)
            scale = splat(inverse_rms(x + vector, part, width, eps))
            for i in range(0, 4 * part, 4 * LANES):
                value = load_f32(x + vector + i) * scale * load_f32(weight + i)
                if accumulate != 0:
                    value = load_f32(y + vector + i) + value
                store_f32(y + vector + i, value)


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
                low, high, values + n * GROUP, scales + 4 * n, scaled_sums + 4 * n, integer_sums + 8 * n
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
            integer_sums + 8 * n,
        )


@inline
def activation(x: F32) -> F32:
    """silu(x) = x / (1 + e^-x), or gelu(x) = x / (1 + e^-2u) with u = √(2/π) · (x + 0.044715 x³)."""
    if GELU:
        u = fma(x * x * splat(f32(0.044715)), x, x)
        power = u * splat(f32(-2.0 * 0.7978845608028654 * LOG2_E))
    else:
        power = x * splat(f32(-LOG2_E))
    return x / (splat(f32(1.0)) + exp2(minimum(splat(f32(126.0)), power)))


def _gated(first: int, last: int, gate: int, up: int, y: int) -> None:
    """y = activation(gate) · up, as floats. An item is a register of a row."""
    for n in range(first, last):
        i = 4 * LANES * n
        store_f32(y + i, activation(load_f32(gate + i)) * load_f32(up + i))


def _gated_quantize(
    first: int, last: int, gate: int, up: int, stride: int, groups: int, values: int, scales: int,
    scaled_sums: int, integer_sums: int,
) -> None:  # fmt: skip
    """activation(gate) · up, quantised in groups of 32. An item is a group of a row."""
    for n in range(first, last):
        i = (n // groups * stride + n % groups * GROUP) * 4
        low = activation(load_f32(gate + i)) * load_f32(up + i)
        high = activation(load_f32(gate + i + 64)) * load_f32(up + i + 64)
        quantize_group(
            low, high, values + n * GROUP, scales + 4 * n, scaled_sums + 4 * n, integer_sums + 8 * n
        )


GATED = {name: variant(_gated, f"gated_{name}", GELU=gelu) for gelu, name in enumerate(("silu", "gelu"))}
GATED_QUANTIZE = {
    name: variant(_gated_quantize, f"gated_{name}_quantize", GELU=gelu)
    for gelu, name in enumerate(("silu", "gelu"))
}
"""The kernels of each activation."""


@kernel
def softcap(first: int, last: int, x: int, cap: float) -> None:
    """x = cap · tanh(x / cap), in place. An item is a register of a row."""
    for n in range(first, last):
        i = x + 4 * LANES * n
        store_f32(i, tanh(load_f32(i) * splat(f32(1.0) / cap)) * splat(cap))
