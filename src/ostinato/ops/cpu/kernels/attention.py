"""Attention with one fixed order of reduction.

It goes through absolute positions in segments of 256. Within a segment: scores, their maximum, powers, their
sum, and the weighted sum of values, position by position. Segments are then merged in order of position.
Neither the number of queries in a tile, nor who computes a segment, nor where a chunk of a prompt ended plays
a part, so neither can it in the bits.

A tile is QUERIES queries that read the same KV head: HEADS_PER_KV heads of QUERIES / HEADS_PER_KV
neighbouring tokens of one sequence. Where fewer tokens are left the last one is computed again. The state of
a tile after some segments is, for each query, the maximum score and the sum of powers of two (16 equal floats
each), then the weighted sum of values [head_dim].

Where there are few tokens, one of each sequence, segments are items of their own (`_segments`) and are merged
by `merge_segments`: the same states, merged in the same order.
"""

from __future__ import annotations

from ostinato.ops.batch import BLOCK_TOKENS
from ostinato.ops.cpu.kernel import REGISTRY, Kernel, inline, kernel, variant
from ostinato.ops.cpu.kernels.common import LOG2_E, exp2, tanh
from ostinato.ops.cpu.kernels.kv import head_block
from ostinato.ops.cpu.simd import (
    F32,
    LANES,
    f32,
    fma,
    get_i32,
    lane_numbers,
    load_f16,
    load_f32,
    load_splat,
    max_lanes,
    maximum,
    registers,
    splat,
    splat_i32,
    static,
    store_f32,
    sum_lanes,
    where_less,
)

SEGMENT = 256
"""Positions whose softmax is taken together before it is merged with what came before."""

MINUS_INFINITY = float("-inf")

# Constants of the variants, put in before compilation.
QUERIES, HEADS_PER_KV, KEY_REGISTERS, VALUE_REGISTERS = 8, 1, 2, 4

STATE_HEAD_BYTES = 2 * LANES * 4


@inline
def token_of(query: int, first: int, last: int) -> int:
    """The token of a query of the tile that starts at token `first` and must not go beyond `last`."""
    return min(first + query // HEADS_PER_KV, last)


@inline
def block_at(table: int, position: int) -> int:
    """The KV block that holds a position, from the sequence's row of the block tables."""
    return get_i32(table + 4 * (position // BLOCK_TOKENS))


@inline
def first_seen(position: int, window: int) -> int:
    """The first position that a token sees; a window of 0 has no end."""
    return max(0, position + 1 - window) if window > 0 else 0


@inline
def scaled(product: F32, scale: float, softcap: float) -> F32:
    """log2(e) times the score of a product of query and key."""
    if softcap > f32(0.0):
        score = tanh(product * splat(scale / softcap)) * splat(softcap * f32(LOG2_E))
    else:
        score = product * splat(scale * f32(LOG2_E))
    return score


@inline
def segment_scores(
    queries: int, stride: int, first: int, last: int, keys_of: int, block_stride: int, table: int, start: int,
    length: int, head_dim: int, scale: float, softcap: float, scores: int,
) -> None:  # fmt: skip
    """scores[query][position], as `scaled`; sums go through the dimensions in order."""
    for p in range(0, length, LANES * KEY_REGISTERS):
        keys = keys_of + block_at(table, start + p) * block_stride + p % BLOCK_TOKENS * 2
        acc = registers(QUERIES * KEY_REGISTERS, splat(f32(0.0)))
        for d in range(head_dim):
            k = registers(KEY_REGISTERS, splat(f32(0.0)))
            for r in static(KEY_REGISTERS):
                k[r] = load_f16(keys + (d * BLOCK_TOKENS + r * LANES) * 2)
            for j in static(QUERIES):
                token = token_of(j, first, last)
                x = load_splat(queries + (token * stride + j % HEADS_PER_KV * head_dim + d) * 4)
                for r in static(KEY_REGISTERS):
                    acc[j * KEY_REGISTERS + r] = fma(k[r], x, acc[j * KEY_REGISTERS + r])
        for j in static(QUERIES):
            for r in static(KEY_REGISTERS):
                out = scores + (j * SEGMENT + p + r * LANES) * 4
                store_f32(out, scaled(acc[j * KEY_REGISTERS + r], scale, softcap))


@inline
def segment_softmax(scores: int, length: int, hidden: int, visible: int, state: int) -> None:
    """Turn one query's scores into powers of two; only positions from `hidden` to `visible` count.

    Writes maximum and sum to `state`.
    """
    largest = splat(f32(MINUS_INFINITY))
    for p in range(0, length, LANES):
        score = load_f32(scores + 4 * p)
        if p + LANES > visible:
            score = where_less(lane_numbers() + splat_i32(p), visible, score, splat(f32(MINUS_INFINITY)))
            store_f32(scores + 4 * p, score)
        if p < hidden:
            score = where_less(lane_numbers() + splat_i32(p), hidden, splat(f32(MINUS_INFINITY)), score)
            store_f32(scores + 4 * p, score)
        largest = maximum(largest, score)
    top = splat(max_lanes(largest))
    total = splat(f32(0.0))
    for p in range(0, length, LANES):
        weight = exp2(load_f32(scores + 4 * p) - top)
        store_f32(scores + 4 * p, weight)
        total = total + weight
    store_f32(state, top)
    store_f32(state + 4 * LANES, splat(sum_lanes(total)))


@inline
def segment_values(
    scores: int,
    values_of: int,
    block_stride: int,
    table: int,
    start: int,
    length: int,
    head_dim: int,
    state: int,
) -> None:
    """Weighted sums of values, position by position, VALUE_REGISTERS · 16 dimensions at a time."""
    state_bytes = STATE_HEAD_BYTES + 4 * head_dim
    for d in range(0, head_dim, LANES * VALUE_REGISTERS):
        acc = registers(QUERIES * VALUE_REGISTERS, splat(f32(0.0)))
        for p in range(0, length, BLOCK_TOKENS):
            values = values_of + block_at(table, start + p) * block_stride + 2 * d
            for i in range(min(BLOCK_TOKENS, length - p)):
                v = registers(VALUE_REGISTERS, splat(f32(0.0)))
                for r in static(VALUE_REGISTERS):
                    v[r] = load_f16(values + (i * head_dim + r * LANES) * 2)
                for j in static(QUERIES):
                    weight = load_splat(scores + (j * SEGMENT + p + i) * 4)
                    for r in static(VALUE_REGISTERS):
                        acc[j * VALUE_REGISTERS + r] = fma(v[r], weight, acc[j * VALUE_REGISTERS + r])
        for j in static(QUERIES):
            for r in static(VALUE_REGISTERS):
                out = state + j * state_bytes + STATE_HEAD_BYTES + (d + r * LANES) * 4
                store_f32(out, acc[j * VALUE_REGISTERS + r])


@inline
def merge(state: int, later: int, head_dim: int) -> None:
    """Fold the state of a later segment into the state of those before it, for one query."""
    top_a, top_b = load_f32(state), load_f32(later)
    top = maximum(top_a, top_b)
    a, b = exp2(top_a - top), exp2(top_b - top)
    store_f32(state, top)
    for i in range(4 * LANES, STATE_HEAD_BYTES + 4 * head_dim, 4 * LANES):
        store_f32(state + i, fma(load_f32(later + i), b, load_f32(state + i) * a))


@inline
def finish(state: int, y: int, head_dim: int) -> None:
    """y = sums / sum of powers, for one query."""
    inverse = splat(f32(1.0)) / load_f32(state + 4 * LANES)
    for d in range(0, head_dim, LANES):
        store_f32(y + 4 * d, load_f32(state + STATE_HEAD_BYTES + 4 * d) * inverse)


@inline
def copy_state(state: int, later: int, head_dim: int) -> None:
    """Begin with the state of a segment, for one query."""
    for i in range(0, STATE_HEAD_BYTES + 4 * head_dim, 4 * LANES):
        store_f32(state + i, load_f32(later + i))


@inline
def attend_segment(
    queries: int, stride: int, first: int, last: int, positions: int, keys_of: int, block_stride: int,
    table: int, start: int, head_dim: int, scale: float, window: int, softcap: float, scores: int, state: int,
) -> None:  # fmt: skip
    """The state of one tile after the one segment that begins at position `start`."""
    length = min(SEGMENT, get_i32(positions + 4 * last) + 1 - start)
    segment_scores(
        queries, stride, first, last, keys_of, block_stride, table, start, length, head_dim, scale, softcap,
        scores,
    )  # fmt: skip
    for j in range(QUERIES):
        position = get_i32(positions + 4 * token_of(j, first, last))
        segment_softmax(
            scores + j * SEGMENT * 4,
            length,
            first_seen(position, window) - start,
            position + 1 - start,
            state + j * (STATE_HEAD_BYTES + 4 * head_dim),
        )
    values_of = keys_of + head_dim * BLOCK_TOKENS * 2
    segment_values(scores, values_of, block_stride, table, start, length, head_dim, state)


@inline
def attend_tile(
    queries: int, q_stride: int, y: int, y_stride: int, first: int, last: int, positions: int, keys_of: int,
    block_stride: int, table: int, head_dim: int, scale: float, window: int, softcap: float, scratch: int,
) -> None:  # fmt: skip
    """Attention of one tile over all positions that any of its tokens sees, segment after segment."""
    state_bytes = STATE_HEAD_BYTES + 4 * head_dim
    scores, state = scratch, scratch + QUERIES * SEGMENT * 4
    later = state + QUERIES * state_bytes
    begin = first_seen(get_i32(positions + 4 * first), window) // SEGMENT * SEGMENT
    for start in range(begin, get_i32(positions + 4 * last) + 1, SEGMENT):
        into = state if start == begin else later
        attend_segment(
            queries, q_stride, first, last, positions, keys_of, block_stride, table, start, head_dim, scale,
            window, softcap, scores, into,
        )  # fmt: skip
        if start > begin:
            for j in range(QUERIES):
                position = get_i32(positions + 4 * token_of(j, first, last))
                own = first_seen(position, window) // SEGMENT * SEGMENT
                if start == own:
                    copy_state(state + j * state_bytes, later + j * state_bytes, head_dim)
                elif own < start and start <= position:
                    merge(state + j * state_bytes, later + j * state_bytes, head_dim)
    for j in range(QUERIES):
        out = y + (token_of(j, first, last) * y_stride + j % HEADS_PER_KV * head_dim) * 4
        finish(state + j * state_bytes, out, head_dim)


def _attention(
    first: int, last: int, worker: int, num_tokens: int, positions: int, slot_of_token: int,
    block_tables: int, table_width: int, q: int, y: int, stride: int, pool: int, layers: int, layer: int,
    kv_heads: int, head_dim: int, scale: float, window: int, softcap: float, scratch: int, scratch_bytes: int,
) -> None:  # fmt: skip
    """An item is a KV head of a tile of tokens."""
    tile_tokens = QUERIES // HEADS_PER_KV
    block_stride = head_block(0, 1, layers, 0, kv_heads, 0, head_dim)
    for n in range(first, last):
        head, begin = n % kv_heads, n // kv_heads * tile_tokens
        end = min(begin + tile_tokens, num_tokens)
        offset = head * HEADS_PER_KV * head_dim * 4
        while begin < end:
            slot, final = get_i32(slot_of_token + 4 * begin), begin
            while final + 1 < end and get_i32(slot_of_token + 4 * (final + 1)) == slot:
                final += 1
            attend_tile(
                q + offset, stride, y + offset, stride, begin, final, positions,
                head_block(pool, 0, layers, layer, kv_heads, head, head_dim), block_stride,
                block_tables + slot * table_width * 4, head_dim, scale, window, softcap,
                scratch + worker * scratch_bytes,
            )  # fmt: skip
            begin = final + 1


def _segments(
    first: int, last: int, worker: int, num_segments: int, positions: int, slot_of_token: int,
    block_tables: int, table_width: int, q: int, stride: int, pool: int, layers: int, layer: int,
    kv_heads: int, head_dim: int, scale: float, window: int, softcap: float, scratch: int, scratch_bytes: int,
    states: int,
) -> None:  # fmt: skip
    """An item is a KV head of a segment of a token; its state is the one of that number in `states`."""
    block_stride = head_block(0, 1, layers, 0, kv_heads, 0, head_dim)
    for n in range(first, last):
        head, start, t = n % kv_heads, n // kv_heads % num_segments * SEGMENT, n // kv_heads // num_segments
        position = get_i32(positions + 4 * t)
        if start <= position and first_seen(position, window) < start + SEGMENT:
            attend_segment(
                q + head * HEADS_PER_KV * head_dim * 4, stride, t, t, positions,
                head_block(pool, 0, layers, layer, kv_heads, head, head_dim), block_stride,
                block_tables + get_i32(slot_of_token + 4 * t) * table_width * 4, start, head_dim, scale,
                window, softcap, scratch + worker * scratch_bytes,
                states + n * QUERIES * (STATE_HEAD_BYTES + 4 * head_dim),
            )  # fmt: skip


@kernel
def merge_segments(
    first: int, last: int, num_segments: int, positions: int, y: int, stride: int, kv_heads: int,
    heads_per_kv: int, head_dim: int, window: int, states: int,
) -> None:  # fmt: skip
    """Merge the states that `_segments` left. An item is a query head of a token."""
    state_bytes = STATE_HEAD_BYTES + 4 * head_dim
    heads = kv_heads * heads_per_kv
    for n in range(first, last):
        t, head = n // heads, n % heads
        position = get_i32(positions + 4 * t)
        apart = heads * state_bytes
        begin = first_seen(position, window) // SEGMENT
        state = states + t * num_segments * apart + head * state_bytes
        for s in range(begin + 1, position // SEGMENT + 1):
            merge(state + begin * apart, state + s * apart, head_dim)
        finish(state + begin * apart, y + (t * stride + head * head_dim) * 4, head_dim)


def scratch_bytes(queries: int, head_dim: int) -> int:
    """Bytes a worker needs for a tile: scores, and two states."""
    return queries * (SEGMENT * 4 + 2 * (STATE_HEAD_BYTES + 4 * head_dim))


def states_bytes(tokens: int, segments: int, heads: int, head_dim: int) -> int:
    """Bytes of the states of so many tokens and segments each."""
    return tokens * segments * heads * (STATE_HEAD_BYTES + 4 * head_dim)


def accumulators(simd: str) -> int:
    """Return how many registers of a path can hold sums while others hold what is added."""
    return 24 if simd == "avx512" else 6


def queries(simd: str) -> int:
    """Return how many queries a tile of a path has at most."""
    return 8 if simd == "avx512" else 6


def attention_kernel(queries: int, heads_per_kv: int, head_dim: int, accumulators: int = 24) -> Kernel:
    """Return the kernel for tiles of this many queries."""
    return _named(f"attention_q{queries}_g{heads_per_kv}{_registers(queries, head_dim, accumulators)}")


def segments_kernel(heads_per_kv: int, head_dim: int, accumulators: int = 24) -> Kernel:
    """Return the kernel that takes segments apart."""
    return _named(f"segments_g{heads_per_kv}{_registers(heads_per_kv, head_dim, accumulators)}")


def _registers(queries: int, head_dim: int, accumulators: int) -> str:
    """Return how many registers of keys and of values a kernel works on at a time, as part of its name."""
    fitting = [r for r in (4, 2, 1) if r * queries <= accumulators] or [1]
    values = next(r for r in (*fitting, 1) if head_dim % (LANES * r) == 0)
    return f"_k{min(2, fitting[0])}_v{values}"


def _named(name: str) -> Kernel:
    """Return the kernel whose name spells out its constants, registered when first asked for."""
    if name not in REGISTRY:
        kind, *parts = name.split("_")
        constants = {NAMES[part[0]]: int(part[1:]) for part in parts}
        if kind == "segments":
            variant(_segments, name, QUERIES=constants["HEADS_PER_KV"], **constants)
        else:
            variant(_attention, name, **constants)
    return REGISTRY[name]


NAMES = {"q": "QUERIES", "g": "HEADS_PER_KV", "k": "KEY_REGISTERS", "v": "VALUE_REGISTERS"}


def find(name: str) -> Kernel:
    """Return the kernel of this name, of any module; KeyError if there is none."""
    return _named(name) if name.startswith(("attention_", "segments_")) else REGISTRY[name]
