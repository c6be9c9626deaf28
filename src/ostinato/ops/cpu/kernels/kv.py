"""Rotary positions, and the KV blocks that attention reads.

A KV block holds 32 tokens of every layer and KV head: for each (layer, head) the keys as float16
[head_dim][32], so that a register is 16 tokens of one dimension, then the values as float16 [32][head_dim],
so that a register is 16 dimensions of one token.
"""

from __future__ import annotations

from ostinato.ops.batch import BLOCK_TOKENS
from ostinato.ops.cpu.kernel import inline, kernel
from ostinato.ops.cpu.simd import (
    F32,
    LANES,
    f32,
    get_f32,
    get_i32,
    get_u16,
    load_f32,
    maximum,
    set_f32,
    set_u16,
    splat,
    store_f16,
    store_f32,
    sum_lanes,
    where_below,
)

INFINITY = float("inf")
LOWEST = -65504.0
"""The lowest float16."""


@inline
def rotate(x: int, table: int, rotated: int) -> None:
    """Turn the pairs (i, i + rotated / 2) of a head in place; `table`: its cosines, then its sines."""
    half = rotated // 2
    whole = half - half % LANES
    for i in range(0, whole, LANES):
        a, b = load_f32(x + 4 * i), load_f32(x + 4 * (i + half))
        cosine, sine = load_f32(table + 4 * i), load_f32(table + 4 * (i + half))
        store_f32(x + 4 * i, a * cosine - b * sine)
        store_f32(x + 4 * (i + half), a * sine + b * cosine)
    for i in range(whole, half):
        c, d = get_f32(x + 4 * i), get_f32(x + 4 * (i + half))
        cos, sin = get_f32(table + 4 * i), get_f32(table + 4 * (i + half))
        set_f32(x + 4 * i, c * cos - d * sin)
        set_f32(x + 4 * (i + half), c * sin + d * cos)


@kernel
def rope(
    first: int,
    last: int,
    positions: int,
    x: int,
    stride: int,
    heads: int,
    head_dim: int,
    table: int,
    rotated: int,
) -> None:
    """Rotate heads in place. An item is a head of a token."""
    for n in range(first, last):
        t, head = n // heads, n % heads
        turns = table + get_i32(positions + 4 * t) * rotated * 4
        rotate(x + (t * stride + head * head_dim) * 4, turns, rotated)


@inline
def head_block(
    pool: int, block: int, layers: int, layer: int, kv_heads: int, head: int, head_dim: int
) -> int:
    """The address of the keys of one layer and KV head in a block; the values follow them."""
    return pool + ((block * layers + layer) * kv_heads + head) * head_dim * BLOCK_TOKENS * 4


@inline
def nan_of(value: F32) -> F32:
    """NaN where the value is NaN, else 0."""
    zero = splat(f32(0.0))
    return where_below(value, splat(f32(INFINITY)), zero, where_below(zero, value, zero, value))


@kernel
def store_kv(
    first: int,
    last: int,
    worker: int,
    positions: int,
    slot_of_token: int,
    block_tables: int,
    table_width: int,
    k: int,
    v: int,
    stride: int,
    pool: int,
    layers: int,
    layer: int,
    kv_heads: int,
    head_dim: int,
    table: int,
    rotated: int,
    scratch: int,
    scratch_bytes: int,
) -> None:
    """Write the keys, rotated if `table` is not 0, and the values of this step's tokens into their blocks.

    An item is a KV head of a token. Values are always finite, since those that a query must not see are
    multiplied with a weight of 0. Where one is NaN the keys become NaN instead: what must not be seen of them
    is left out, not multiplied.
    """
    halves = scratch + worker * scratch_bytes
    for n in range(first, last):
        t, head = n // kv_heads, n % kv_heads
        position, slot = get_i32(positions + 4 * t), get_i32(slot_of_token + 4 * t)
        block = get_i32(block_tables + (slot * table_width + position // BLOCK_TOKENS) * 4)
        column = position % BLOCK_TOKENS
        keys = head_block(pool, block, layers, layer, kv_heads, head, head_dim)
        values = keys + (head_dim * BLOCK_TOKENS + column * head_dim) * 2
        row = (t * stride + head * head_dim) * 4
        if table != 0:
            rotate(k + row, table + position * rotated * 4, rotated)
        spoilt = splat(f32(0.0))
        for d in range(0, head_dim, LANES):
            value = load_f32(v + row + 4 * d)
            spoilt = spoilt + nan_of(value)
            store_f16(values + 2 * d, maximum(value, splat(f32(LOWEST))))
        for d in range(0, head_dim, LANES):
            store_f16(halves + 2 * d, load_f32(k + row + 4 * d) + splat(sum_lanes(spoilt)))
        for d in range(head_dim):
            set_u16(keys + (d * BLOCK_TOKENS + column) * 2, get_u16(halves + 2 * d))
