"""Matrix products y[t, n] = scale · (x[t, :] · W[n, :] + bias[n]), or y += …, for a tile of T tokens at a
time. An item is a panel of 16 rows.

Packed weights (see packing.py) lie in groups of 16 rows by 32 columns, a lane to a row. A product of a group
and a token is an exact integer; groups are then added in the order of the columns, each with one fused
multiply-add (two with minima). That order is all that the bits of y depend on: not on T, not on the worker,
not on what else is in the batch.

How an exact integer comes about is up to the path. Where there is a dot product of four bytes, it is that;
with AVX2, whose products of bytes are pairs in 16 bits, as many pairs are added there as cannot overflow
(CHAIN) before they are widened, which takes half the multiplications; and for many tokens a panel is prepared
first (prepared.py).
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
from ostinato.ops.cpu.kernels.prepared import (
    FLIP_SIGNS,
    MINIMA_AT,
    PAIR_AT,
    PREPARED_BYTES,
    SCALES,
    SUBS_AT,
    prepare_panel,
)
from ostinato.ops.cpu.packing import LAYOUTS, Layout
from ostinato.ops.cpu.simd import (
    F32,
    LANES,
    add_pairs,
    dot2,
    dot4,
    dot4_signed,
    dot4_small,
    f32,
    fma,
    get_i32,
    in_order,
    load_bf16,
    load_bytes4,
    load_f16,
    load_f32,
    load_i32,
    load_splat,
    multiply_pairs,
    prefetch,
    registers,
    splat,
    splat_i32,
    static,
    store_f32,
    sum_pairs,
    to_f32,
)

TILES = (1, 4, 8)
"""Tokens a tile: 1 for decode, the most for prefill, in between for a few requests at once."""


def scratch_bytes(columns: int) -> int:
    """Bytes a worker needs for a prepared panel."""
    return columns // GROUP * PREPARED_BYTES


# Constants of the variants, put in before compilation; PAIRS is of the target.
T = 1
LOW, GROUPS, SUBS, MINIMA, OFFSET, VALUE_BYTES, BLOCK_BYTES, CHAIN = 4, 1, 0, 0, 8, 256, 288, 8
ELEMENT_BYTES, BRAIN = 2, 0
SIGNED, PAIRS, AHEAD = 0, 0, 0
LISTED = 0


@inline
def finish(y: int, total: F32, bias: int, panel: int, scale: float, accumulate: int) -> None:
    """y = scale · (total + bias), or y += …; a bias at address 0 is none."""
    if bias != 0:
        total = total + load_f32(bias + panel * LANES * 4)
    total = total * splat(scale)
    if accumulate != 0:
        total = load_f32(y) + total
    store_f32(y, total)


@inline
def row_of(tile: int, t: int, count: int, rows: int) -> int:
    """Which row of y a token of a tile has: its number, or what a list of `count` rows says.

    The last one of a list is computed again where a tile has no more.
    """
    return get_i32(rows + 4 * min(tile + t, count - 1)) if LISTED else tile + t


@inline
def quantized_tile(
    values: int, scales: int, scaled_sums: int, integer_sums: int, panel: int, y: int, y_stride: int,
    groups: int, accumulate: int, bias: int, scale: float, r: int, tile: int, count: int, rows: int,
    share: int,
) -> None:  # fmt: skip
    """The products of one panel and T rows of x, each `share` times in y."""
    y_row = registers(T, 0)
    x_row = registers(T, 0)
    for t in static(T):
        y_row[t] = row_of(tile, t, count, rows)
        x_row[t] = y_row[t] // share if LISTED else y_row[t]
    acc = registers(T, splat(f32(0.0)))
    for s in range(groups // GROUPS):
        block = panel + s * BLOCK_BYTES
        factor = factors(block)
        if MINIMA:
            lowest = minima_factors(block)
        for i in range(GROUPS):
            g = s * GROUPS + i
            if T == 1 and AHEAD:
                for line in static((VALUE_BYTES + 64) // 64):
                    prefetch(block + i * VALUE_BYTES + AHEAD + 64 * line)
            dot = registers(T, splat_i32(0))
            pairs = registers(T, splat_i32(0))
            whole = registers(T, splat_i32(0))
            minima = registers(T, splat_i32(0))
            for half in static(2):
                if SUBS == 2:
                    sub = sub_scales(block, 2 * i + half)
                    for t in static(T):
                        total = get_i32(integer_sums + 8 * (x_row[t] * groups + g) + 4 * half)
                        dot[t] = splat_i32(-OFFSET * total)
                elif half == 0 and OFFSET and not (SIGNED and OFFSET == 128):
                    for t in static(T):
                        sums = integer_sums + 8 * (x_row[t] * groups + g)
                        dot[t] = splat_i32(-OFFSET * (get_i32(sums) + get_i32(sums + 4)))
                for k in static(4):
                    q = unpacked(block + i * VALUE_BYTES, 4 * half + k)
                    if SIGNED and OFFSET == 128:
                        q = q ^ splat_i32(FLIP_SIGNS)
                    if PAIRS:
                        q = in_order(q)
                    for t in static(T):
                        x = load_bytes4(values + (x_row[t] * groups + g) * GROUP + 16 * half + 4 * k)
                        if SIGNED and OFFSET == 128:
                            dot[t] = dot4_signed(dot[t], q, x)
                        elif OFFSET == 128:
                            dot[t] = dot4(dot[t], q, x)
                        elif not PAIRS:
                            dot[t] = dot4_small(dot[t], q, x)
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
                            total = get_i32(integer_sums + 8 * (x_row[t] * groups + g) + 4 * half)
                            minima[t] = minima[t] + low * splat_i32(total)
            if SUBS == 2:
                for t in static(T):
                    x_scale = load_splat(scales + 4 * (x_row[t] * groups + g))
                    acc[t] = fma(to_f32(whole[t]) * x_scale, factor, acc[t])
                    if MINIMA:
                        acc[t] = fma(to_f32(minima[t]) * x_scale, lowest, acc[t])
            else:
                row_scale = group_scales(block, factor, i)
                if MINIMA:
                    minimum = group_minima(block, lowest, i)
                for t in static(T):
                    x_scale = load_splat(scales + 4 * (x_row[t] * groups + g))
                    acc[t] = fma(to_f32(dot[t]) * x_scale, row_scale, acc[t])
                    if MINIMA:
                        acc[t] = fma(minimum, load_splat(scaled_sums + 4 * (x_row[t] * groups + g)), acc[t])
    for t in static(T):
        finish(y + (y_row[t] * y_stride + r * LANES) * 4, acc[t], bias, r, scale, accumulate)


@inline
def prepared_tile(
    values: int, scales: int, scaled_sums: int, integer_sums: int, prepared: int, y: int, y_stride: int,
    groups: int, accumulate: int, bias: int, scale: float, r: int, tile: int,
) -> None:  # fmt: skip
    """The products of a prepared panel and T / 2 rows of x, in pairs."""
    acc = registers(T // 2, splat(f32(0.0)))
    for g in range(groups):
        group = prepared + g * PREPARED_BYTES
        n = tile * groups + g
        dot = registers(T // 2, splat_i32(0))
        pairs = registers(T // 2, splat_i32(0))
        minima = registers(T // 2, splat_i32(0))
        if SUBS == 2:
            both = load_i32(group + PAIR_AT)
            for t in static(T // 2):
                sums = integer_sums + 8 * (n + t * groups)
                halves = splat_i32((get_i32(sums) & 0xFFFF) | (get_i32(sums + 4) << 16))
                if OFFSET:
                    dot[t] = dot2(dot[t], both, halves)
                if MINIMA:
                    minima[t] = dot2(minima[t], both, halves)
        elif OFFSET and OFFSET != 128:
            for t in static(T // 2):
                sums = integer_sums + 8 * (n + t * groups)
                dot[t] = splat_i32(-OFFSET * (get_i32(sums) + get_i32(sums + 4)))
        for j in static(8):
            q = in_order(load_i32(group + 64 * j))
            if CHAIN == 2 and j % 2 == 1:
                before = in_order(load_i32(group + 64 * (j - 1)))
            for t in static(T // 2):
                at = values + (n + t * groups) * GROUP + 4 * j
                if OFFSET == 128:
                    dot[t] = in_order(dot4_signed(dot[t], q, load_bytes4(at)))
                elif CHAIN == 2 and j % 2 == 1:
                    two = add_pairs(
                        multiply_pairs(before, load_bytes4(at - 4)), multiply_pairs(q, load_bytes4(at))
                    )
                    dot[t] = in_order(dot2(dot[t], two, load_i32(group + SUBS_AT + 64 * (j // 4))))
                elif CHAIN > 2 and j % CHAIN == 0:
                    pairs[t] = multiply_pairs(q, load_bytes4(at))
                elif CHAIN > 2:
                    pairs[t] = in_order(add_pairs(pairs[t], multiply_pairs(q, load_bytes4(at))))
            if OFFSET != 128 and CHAIN > 2 and j % CHAIN == CHAIN - 1:
                for t in static(T // 2):
                    if SUBS == 2:
                        dot[t] = dot2(dot[t], pairs[t], load_i32(group + SUBS_AT + 64 * (j // 4)))
                    else:
                        dot[t] = sum_pairs(dot[t], pairs[t])
        row_scale = load_f32(group + SCALES)
        if MINIMA:
            minimum = load_f32(group + MINIMA_AT)
        for t in static(T // 2):
            x_scale = load_splat(scales + 4 * (n + t * groups))
            acc[t] = fma(to_f32(dot[t]) * x_scale, row_scale, acc[t])
            if MINIMA and SUBS == 2:
                acc[t] = fma(to_f32(minima[t]) * x_scale, minimum, acc[t])
            elif MINIMA:
                acc[t] = fma(minimum, load_splat(scaled_sums + 4 * (n + t * groups)), acc[t])
    for t in static(T // 2):
        finish(y + ((tile + t) * y_stride + r * LANES) * 4, acc[t], bias, r, scale, accumulate)


def _quantized(
    first: int, last: int, worker: int, num_tokens: int, num_rows: int, by_rows: int,
    values: int, scales: int, scaled_sums: int, integer_sums: int,
    weights: int, y: int, y_stride: int, groups: int, accumulate: int, bias: int, scale: float,
    scratch: int, scratch_bytes: int,
) -> None:  # fmt: skip
    count = num_rows if by_rows != 0 else num_tokens
    for r in range(first, last):
        panel = weights + r * (groups // GROUPS) * BLOCK_BYTES
        if PAIRS and T == 8:
            prepared = scratch + worker * scratch_bytes
            prepare_panel(panel, groups, prepared)
            for tile in range(0, count, T // 2):
                prepared_tile(
                    values, scales, scaled_sums, integer_sums, prepared, y, y_stride, groups, accumulate,
                    bias, scale, r, tile,
                )  # fmt: skip
        else:
            for tile in range(0, count, T):
                quantized_tile(
                    values, scales, scaled_sums, integer_sums, panel, y, y_stride, groups, accumulate, bias,
                    scale, r, tile, count, 0, 1,
                )  # fmt: skip


def _quantized_experts(
    first: int, last: int, values: int, scales: int, scaled_sums: int, integer_sums: int,
    weights: int, expert_bytes: int, panels: int, y: int, y_stride: int, groups: int, starts: int, pairs: int,
    share: int,
) -> None:  # fmt: skip
    """An item is a panel of an expert, for the pairs of a token and that expert: rows starts[e] … of `pairs`.

    A pair has a row of its own in y; in x too, or (`share` above 1) `share` pairs have one.
    """
    for n in range(first, last):
        expert, r = n // panels, n % panels
        begin = get_i32(starts + 4 * expert)
        count = get_i32(starts + 4 * expert + 4) - begin
        panel = weights + expert * expert_bytes + r * (groups // GROUPS) * BLOCK_BYTES
        for tile in range(0, count, T):
            quantized_tile(
                values, scales, scaled_sums, integer_sums, panel, y, y_stride, groups, 0, 0, f32(1.0), r,
                tile, count, pairs + 4 * begin, share,
            )  # fmt: skip


@inline
def floating_tile(
    x: int, x_stride: int, panel: int, y: int, y_stride: int, columns: int, accumulate: int, bias: int,
    scale: float, r: int, tile: int, count: int, rows: int, share: int,
) -> None:  # fmt: skip
    """As quantized_tile."""
    y_row = registers(T, 0)
    x_row = registers(T, 0)
    for t in static(T):
        y_row[t] = row_of(tile, t, count, rows)
        x_row[t] = y_row[t] // share if LISTED else y_row[t]
    acc = registers(T, splat(f32(0.0)))
    for k in range(columns):
        if ELEMENT_BYTES == 4:
            w = load_f32(panel + k * LANES * ELEMENT_BYTES)
        elif BRAIN:
            w = load_bf16(panel + k * LANES * ELEMENT_BYTES)
        else:
            w = load_f16(panel + k * LANES * ELEMENT_BYTES)
        for t in static(T):
            acc[t] = fma(w, load_splat(x + (x_row[t] * x_stride + k) * 4), acc[t])
    for t in static(T):
        finish(y + (y_row[t] * y_stride + r * LANES) * 4, acc[t], bias, r, scale, accumulate)


def _floating(
    first: int, last: int, num_tokens: int, num_rows: int, by_rows: int, x: int, x_stride: int, weights: int,
    y: int, y_stride: int, columns: int, accumulate: int, bias: int, scale: float,
) -> None:  # fmt: skip
    count = num_rows if by_rows != 0 else num_tokens
    for r in range(first, last):
        panel = weights + r * columns * LANES * ELEMENT_BYTES
        for tile in range(0, count, T):
            floating_tile(
                x, x_stride, panel, y, y_stride, columns, accumulate, bias, scale, r, tile, count, 0, 1
            )


def _floating_experts(
    first: int, last: int, x: int, x_stride: int, weights: int, expert_bytes: int, panels: int, y: int,
    y_stride: int, columns: int, starts: int, pairs: int, share: int,
) -> None:  # fmt: skip
    """As _quantized_experts."""
    for n in range(first, last):
        expert, r = n // panels, n % panels
        begin = get_i32(starts + 4 * expert)
        count = get_i32(starts + 4 * expert + 4) - begin
        panel = weights + expert * expert_bytes + r * columns * LANES * ELEMENT_BYTES
        for tile in range(0, count, T):
            floating_tile(
                x, x_stride, panel, y, y_stride, columns, 0, 0, f32(1.0), r, tile, count,
                pairs + 4 * begin, share,
            )  # fmt: skip


def _chain(layout: Layout) -> int:
    """Return how many products of pairs a 16-bit integer surely holds: a power of two, within a sub-scale."""
    largest = 2 * (2 ** (layout.low + layout.high) - 1) * 127
    most = 4 if layout.subs == 2 else 8
    return max(n for n in (1, 2, 4, 8) if n == 1 or (n <= most and n * largest < 2**15))


def _variant(layout: Layout, tile: int, experts: bool = False) -> Kernel:
    name = f"matmul_{layout.name}_t{tile}" + ("_experts" if experts else "")
    constants = {"T": tile, "LISTED": int(experts)}
    if layout.quantized:
        constants |= {"CHAIN": _chain(layout), **layout.constants()}
        return variant(_quantized_experts if experts else _quantized, name, **constants)
    constants |= {"ELEMENT_BYTES": layout.low // 8, "BRAIN": int(layout.name == "bf16")}
    return variant(_floating_experts if experts else _floating, name, **constants)


MATMUL = {(layout, tile): _variant(layout, tile) for layout in LAYOUTS.values() for tile in TILES}
EXPERTS = {(layout, tile): _variant(layout, tile, True) for layout in LAYOUTS.values() for tile in TILES[:2]}
"""The kernel of each weight layout and tile size; and for mixtures of experts."""
