"""Rotary positions, KV blocks and attention: against the reference, and equal bits in any batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from harness import FUSED_PATHS, PATHS, Array, Floats, Guarded, Runner, batch_fields, runner, same_bits

from ostinato.models.rope import rope_frequencies
from ostinato.ops import reference
from ostinato.ops.batch import BLOCK_TOKENS, ForwardBatch
from ostinato.ops.cpu.kernel import Kernel
from ostinato.ops.cpu.kernels import kv
from ostinato.ops.cpu.kernels.attention import (
    SEGMENT,
    accumulators,
    attention_kernel,
    merge_segments,
    queries,
    scratch_bytes,
    segments_kernel,
    states_bytes,
)

ATTENTION_BOUND = 1e-5
"""Of attention, relative to the largest value: scores of ordinary size are sums of up to 256 products."""

ROPE_BOUND = 2.0**-22
"""Of a rotation, relative to the length of the pair: two products and a sum."""

HEADS = [(64, 1), (32, 1), (80, 1), (96, 2), (16, 2), (64, 3), (128, 4), (128, 6), (256, 8)]
"""Head dimension and query heads per KV head, on the best path: each way of splitting registers."""

FEWER = [(80, 1), (16, 2), (64, 3)]
"""The same on the other paths, for the sake of time: each takes seconds to compile."""

CASES = [(simd, *heads) for simd in PATHS for heads in (HEADS if simd == PATHS[0] else FEWER)]
CONTEXTS = (1, 31, 32, 33, 255, 256, 257, 600)
WINDOWS = (0, 1, 7, 100, 256, 300, 5000)
SPLIT = 0
"""As the tokens of a tile: segments are taken apart, and merged."""

NOT_A_NUMBER = np.array([0xFFFF], np.uint16).view(np.float16)[0]


def tile_tokens(heads_per_kv: int) -> int:
    """The tokens of a large tile, as the executor chooses it."""
    return max(1, queries("avx512") // heads_per_kv)


def tile_kernel(simd: str, tokens: int, heads_per_kv: int, head_dim: int) -> Kernel:
    """The kernel for tiles of so many tokens."""
    return attention_kernel(tokens * heads_per_kv, heads_per_kv, head_dim, accumulators(simd))


@cache
def compiled(simd: str) -> Runner:
    """Return the path's kernels, all that these tests need compiled at once."""
    made = runner(simd)
    needed = [kv.rope, kv.store_kv, merge_segments]
    for _, head_dim, heads_per_kv in (case for case in CASES if case[0] == simd):
        needed.append(segments_kernel(heads_per_kv, head_dim, accumulators(simd)))
        for tokens in (1, tile_tokens(heads_per_kv)):
            needed.append(tile_kernel(simd, tokens, heads_per_kv, head_dim))
    made.load(needed)
    return made


@dataclass(frozen=True)
class Rows:
    """Queries (T, heads · D), keys and values (T, kv_heads · D) of tokens, or of a whole sequence."""

    q: Floats
    k: Floats
    v: Floats

    def __getitem__(self, which: slice) -> Rows:
        return Rows(self.q[which], self.k[which], self.v[which])

    @staticmethod
    def joined(parts: Sequence[Rows]) -> Rows:
        return Rows(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("q", "k", "v")))


class Layer:
    """A layer of KV blocks, full of NaN at first, and the kernels that work on it."""

    KV_HEADS, LAYERS, LAYER = 2, 3, 1

    def __init__(
        self, simd: str, head_dim: int, heads_per_kv: int, num_blocks: int, window: int = 0, cap: float = 0.0
    ) -> None:
        self.simd, self.window, self.cap = simd, window, cap
        self.run, self.head_dim, self.heads_per_kv = compiled(simd), head_dim, heads_per_kv
        self.guarded = Guarded()
        shape = (num_blocks, self.LAYERS, self.KV_HEADS, 2, BLOCK_TOKENS * head_dim)
        self.pool = self.guarded.copy(np.full(shape, NOT_A_NUMBER))
        self.scratch_bytes = scratch_bytes(max(heads_per_kv, queries("avx512")), head_dim)
        self.scratch = self.guarded.copy(np.full(2 * self.scratch_bytes, 0xFF, np.uint8))
        self.scale = head_dim**-0.5

    @property
    def heads(self) -> int:
        return self.KV_HEADS * self.heads_per_kv

    def random(self, tokens: int, seed: int) -> Rows:
        """Return random rows of a sequence; scores have a standard deviation of about 3."""
        rng = np.random.default_rng([seed, self.head_dim, self.heads_per_kv])

        def rows(heads: int, size: float) -> Floats:
            return (size * rng.standard_normal((tokens, heads * self.head_dim))).astype(np.float32)

        return Rows(rows(self.heads, 3.0), rows(self.KV_HEADS, 1.0), rows(self.KV_HEADS, 1.0))

    def _fields(self) -> dict[str, int | Array]:
        return {
            "pool": self.pool,
            "layers": self.LAYERS,
            "layer": self.LAYER,
            "kv_heads": self.KV_HEADS,
            "head_dim": self.head_dim,
            "scratch": self.scratch,
            "scratch_bytes": self.scratch_bytes,
        }

    def store(self, batch: ForwardBatch, rows: Rows, table: Array | int = 0, rotated: int = 0) -> None:
        """Write keys and values to the blocks of a batch."""
        self.run(
            kv.store_kv,
            len(batch.token_ids) * self.KV_HEADS,
            batch=batch_fields(batch),
            k=rows.k,
            v=rows.v,
            stride=rows.k.shape[1],
            table=table,
            rotated=rotated,
            **self._fields(),
        )
        self.guarded.check()

    def attend(self, batch: ForwardBatch, q: Floats, tile: int, worker: int = 0) -> Floats:
        """Return attention of a batch in tiles of so many tokens."""
        tokens, guarded = len(batch.token_ids), Guarded()
        y = guarded.empty(q.shape)
        if tile == SPLIT:
            self._attend_split(batch, q, y, guarded)
        else:
            self.attend_items(batch, q, y, tile, 0, -(-tokens // tile) * self.KV_HEADS, worker)
        guarded.check()
        self.guarded.check()
        return y

    def attend_items(
        self, batch: ForwardBatch, q: Floats, y: Floats, tile: int, first: int, last: int, worker: int
    ) -> None:
        """Attend to some items: KV heads of tiles."""
        kernel = tile_kernel(self.simd, tile, self.heads_per_kv, self.head_dim)
        values = {"q": q, "y": y, "stride": q.shape[1], **self._score_fields(), **self._fields()}
        self.run.part(kernel, first, last, worker=worker, batch=batch_fields(batch), **values)

    def _score_fields(self) -> dict[str, int | float]:
        return {"scale": self.scale, "window": self.window, "softcap": self.cap}

    def _attend_split(self, batch: ForwardBatch, q: Floats, y: Floats, guarded: Guarded) -> None:
        """Segments one by one in any order, by any worker."""
        tokens, segments = len(batch.token_ids), int(batch.positions.max()) // SEGMENT + 1
        size = states_bytes(tokens, segments, self.heads, self.head_dim)
        states = guarded.copy(np.full(size, 0xFF, np.uint8))
        fields = batch_fields(batch) | {"num_segments": segments}
        kernel = segments_kernel(self.heads_per_kv, self.head_dim, accumulators(self.simd))
        values = {"q": q, "stride": q.shape[1], "states": states, **self._score_fields(), **self._fields()}
        for item in np.random.default_rng(segments).permutation(tokens * segments * self.KV_HEADS):
            self.run.part(kernel, int(item), int(item) + 1, worker=int(item) % 2, batch=fields, **values)
        values = {"kv_heads": self.KV_HEADS, "heads_per_kv": self.heads_per_kv, "head_dim": self.head_dim}
        values |= {"y": y, "stride": y.shape[1], "window": self.window, "states": states}
        for first, last in self._halves(tokens * self.heads):
            self.run.part(merge_segments, first, last, batch=fields, **values)

    @staticmethod
    def _halves(count: int) -> list[tuple[int, int]]:
        """The later half of the items, then the earlier."""
        return [(count // 2, count), (0, count // 2)]

    def step(self, batch: ForwardBatch, rows: Rows, tile: int) -> Floats:
        """Store a batch's keys and values, then attend to all so far."""
        self.store(batch, rows)
        return self.attend(batch, rows.q, tile)

    def expected(self, rows: Rows, positions: Array | None = None) -> Array:
        """Return attention of a whole sequence in float64, over keys and values rounded to float16; or of
        the tokens at some positions.
        """
        positions = np.arange(len(rows.q), dtype=np.int32) if positions is None else positions
        split = [
            x.reshape(len(x), -1, self.head_dim).astype(np.float64)
            for x in (rows.q[positions], half(rows.k), half(rows.v))
        ]
        return reference.attention(*split, positions, self.scale, self.window, self.cap)


def half(x: Floats) -> Floats:
    """Round to float16 as the cache does."""
    return np.clip(x, -65504, 65504).astype(np.float16).astype(np.float32)


def whole(tokens: int, blocks: list[int] | None = None) -> ForwardBatch:
    """Return the batch of a whole sequence."""
    return ForwardBatch.single([0] * tokens, 0, blocks or list(range(-(-tokens // BLOCK_TOKENS))))


@pytest.mark.parametrize(("simd", "head_dim", "heads_per_kv"), CASES)
def test_attention(simd: str, head_dim: int, heads_per_kv: int) -> None:
    for i, tokens in enumerate(CONTEXTS):
        for window, cap in ((0, 0.0), (WINDOWS[i % len(WINDOWS)], 20.0), (WINDOWS[-i % len(WINDOWS)], 0.0)):
            check_attention(simd, head_dim, heads_per_kv, tokens, window, cap)


def check_attention(
    simd: str, head_dim: int, heads_per_kv: int, tokens: int, window: int, cap: float
) -> None:
    """Every seventh token, so that each place in a tile gets its turn, and the last ones."""
    layer = Layer(simd, head_dim, heads_per_kv, -(-tokens // BLOCK_TOKENS), window, cap)
    rows = layer.random(tokens, tokens)
    y = layer.step(whole(tokens), rows, tile_tokens(heads_per_kv))
    chosen = np.unique(np.r_[0:tokens:7, max(0, tokens - 40) : tokens]).astype(np.int32)
    error = np.abs(y[chosen] - layer.expected(rows, chosen)).max()
    assert error <= ATTENTION_BOUND * np.abs(rows.v).max(), (tokens, window, cap)


@pytest.mark.parametrize(("window", "cap"), [(0, 0.0), (40, 5.0), (270, 0.0)])
@pytest.mark.parametrize(("simd", "head_dim", "heads_per_kv"), CASES)
def test_bits_depend_on_the_sequence_alone(
    simd: str, head_dim: int, heads_per_kv: int, window: int, cap: float
) -> None:
    """Sequences advance together in chunks of all sizes, over scrambled blocks, in tiles of any size, or with
    their segments apart.
    """
    rng = np.random.default_rng([head_dim, heads_per_kv])
    lengths = (1, 33, 70, 256, 300, 560)
    blocks = sum(-(-n // BLOCK_TOKENS) for n in lengths) + 3
    layer = Layer(simd, head_dim, heads_per_kv, blocks, window, cap)
    sequences = [layer.random(length, seed) for seed, length in enumerate(lengths)]
    alone = []
    for rows in sequences:
        fresh = Layer(simd, head_dim, heads_per_kv, -(-len(rows.q) // BLOCK_TOKENS), window, cap)
        alone.append(fresh.step(whole(len(rows.q)), rows, tile_tokens(heads_per_kv)))
    free = list(rng.permutation(len(layer.pool)))
    tables = np.full((len(lengths), 18), -77, np.int32)
    for table, length in zip(tables, lengths, strict=True):
        for i in range(-(-length // BLOCK_TOKENS)):
            table[i] = free.pop()
    done = [0] * len(lengths)
    while any(a < b for a, b in zip(done, lengths, strict=True)):
        chunks = []
        single = rng.random() < 0.3
        for slot in rng.permutation(len(lengths)):
            left = lengths[slot] - done[slot]
            size = min(left, 1 if single else int(rng.choice([0, 1, 2, 5, 9, 32, 64, 150])))
            if size:
                chunks.append((int(slot), done[slot], size))
                done[slot] += size
        if chunks:
            batch = mixed(chunks, tables, done)
            rows = Rows.joined([sequences[slot][start : start + size] for slot, start, size in chunks])
            tiles = [1, SPLIT] if single else [1, tile_tokens(heads_per_kv)]
            y = layer.step(batch, rows, int(rng.choice(tiles)))
            want = np.concatenate([alone[slot][start : start + size] for slot, start, size in chunks])
            assert same_bits(y, want), chunks


def mixed(chunks: Sequence[tuple[int, int, int]], tables: Array, lengths: Sequence[int]) -> ForwardBatch:
    """Return the batch of chunks of several sequences: (slot, first position, tokens) each."""
    positions = [np.arange(start, start + size) for _, start, size in chunks]
    slots = [np.full(size, slot) for slot, _, size in chunks]
    count = sum(size for _, _, size in chunks)
    return ForwardBatch(
        token_ids=np.zeros(count, np.int32),
        positions=np.concatenate(positions).astype(np.int32),
        slot_of_token=np.concatenate(slots).astype(np.int32),
        block_tables=tables,
        context_lens=np.array(lengths, np.int32),
        logits_rows=np.array([count - 1], np.int32),
    )


@pytest.mark.parametrize(("simd", "head_dim", "heads_per_kv"), CASES)
def test_items_can_be_dealt_out(simd: str, head_dim: int, heads_per_kv: int) -> None:
    """A tile and KV head at a time, in any order, by any worker, gives the same bits."""
    layer = Layer(simd, head_dim, heads_per_kv, 2)
    rows, tile = layer.random(50, 1), tile_tokens(heads_per_kv)
    want = layer.step(whole(50), rows, tile)
    y = np.zeros_like(want)
    for item in np.random.default_rng(2).permutation(-(-50 // tile) * Layer.KV_HEADS):
        layer.attend_items(whole(50), rows.q, y, tile, int(item), int(item) + 1, int(item) % 2)
    layer.guarded.check()
    assert same_bits(y, want)


def test_more_heads_per_kv_head_than_a_tile_has_queries() -> None:
    layer = Layer(PATHS[0], 16, 16, 2)
    rows = layer.random(40, 7)
    error = np.abs(layer.step(whole(40), rows, 1) - layer.expected(rows)).max()
    assert error <= ATTENTION_BOUND * np.abs(rows.v).max()


@pytest.mark.parametrize(("window", "cap"), [(0, 0.0), (40, 5.0)])
def test_bits_are_the_same_on_all_paths_that_fuse(window: int, cap: float) -> None:
    """Of tiles, and of the last token with its segments apart."""
    for head_dim, heads_per_kv in FEWER:
        results = []
        for simd in FUSED_PATHS or PATHS[:1]:
            layer = Layer(simd, head_dim, heads_per_kv, 10, window, cap)
            rows = layer.random(300, 3)
            y = layer.step(whole(300), rows, tile_tokens(heads_per_kv))
            last = layer.attend(ForwardBatch.single([0], 299, list(range(10))), rows.q[299:], SPLIT)
            results.append(np.concatenate([y, last]))
        assert all(same_bits(results[0], other) for other in results[1:])


@pytest.mark.parametrize("simd", PATHS)
@pytest.mark.parametrize("window", [1, 5, 31, 40])
def test_what_lies_before_the_window_plays_no_part(simd: str, window: int) -> None:
    """Not even where it is no number: its keys are left out, in tiles and in segments apart."""
    layer = Layer(simd, 64, 3, 10, window)
    rows = layer.random(300, 9)
    clean = layer.step(whole(300), rows, 2)
    rows.k[250, :] = rows.v[250, :] = np.nan
    y = layer.step(whole(300), rows, 2)
    seen = slice(250, 250 + window)
    assert np.isnan(y[seen]).all()
    assert same_bits(np.delete(y, seen, axis=0), np.delete(clean, seen, axis=0))
    for position in (249 + window, 250 + window, 299):
        one = ForwardBatch.single([0], position, list(range(10)))
        assert same_bits(layer.attend(one, rows.q[position : position + 1], SPLIT)[0], y[position])


@pytest.mark.parametrize("simd", PATHS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_number_that_is_none_spoils_only_its_sequence(simd: str, bad: float) -> None:
    """A NaN shows in all later tokens of its sequence and in no other; infinities become finite."""
    layer = Layer(simd, 64, 3, 8)
    rows = Rows.joined([layer.random(20, seed) for seed in range(3)])
    tables = np.arange(3, dtype=np.int32)[:, None]
    batch = mixed([(slot, 0, 20) for slot in range(3)], tables, [20] * 3)
    clean = layer.step(batch, rows, 2)
    rows.k[28, 5] = rows.v[28, 70] = bad
    y = layer.step(batch, rows, 2)
    assert same_bits(y[:20], clean[:20]) and same_bits(y[40:], clean[40:])
    if bad == np.inf:
        assert np.isfinite(y).all()
    else:
        assert np.isnan(y[28:40, : 3 * 64]).all()


def test_a_number_that_is_none_does_not_spoil_earlier_tokens() -> None:
    """Not those of its own tile either: they must not depend on what comes later."""
    layer = Layer(PATHS[0], 64, 3, 1)
    rows = layer.random(20, 8)
    clean = layer.step(whole(20), rows, 2)
    rows.v[11, 5] = np.nan
    assert same_bits(layer.step(whole(20), rows, 2)[:11], clean[:11])


@pytest.mark.parametrize("simd", PATHS)
def test_large_scores_do_not_overflow(simd: str) -> None:
    layer = Layer(simd, 64, 3, 10)
    rows = layer.random(300, 4)
    rows = Rows(rows.q * np.float32(1e3), rows.k * np.float32(1e2), rows.v)
    y = layer.step(whole(300), rows, 2)
    assert np.abs(y - layer.expected(rows)).max() <= 0.2  # scores of a million have steps of 1/16
    assert np.isfinite(y).all()


@pytest.mark.parametrize("simd", PATHS)
def test_equal_scores_give_the_mean(simd: str) -> None:
    layer = Layer(simd, 16, 2, 20)
    rows = layer.random(600, 5)
    rows = Rows(np.zeros_like(rows.q), rows.k, rows.v)
    y = layer.step(whole(600), rows, 4).reshape(600, 2, 2, 16)
    means = np.cumsum(half(rows.v).astype(np.float64), axis=0) / np.arange(1, 601)[:, None]
    np.testing.assert_allclose(y, means.reshape(600, 2, 1, 16).repeat(2, axis=2), atol=2e-6)


# -- positions and blocks ------------------------------------------------------------------------------------


def rope_table(head_dim: int, positions: int, base: float = 10000.0) -> Floats:
    turns = base ** (-np.arange(0, head_dim, 2) / head_dim)
    angles = np.arange(positions)[:, None] * turns
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


PART = [(16, 12), (64, 32), (64, 34), (80, 2), (96, 72), (128, 64)]
"""Dimensions of heads, and how many of them are rotated."""


@pytest.mark.parametrize("simd", PATHS)
@pytest.mark.parametrize(("head_dim", "rotated"), [*((n, n) for n in (16, 32, 64, 80, 96, 128, 256)), *PART])
def test_rope(simd: str, head_dim: int, rotated: int) -> None:
    heads, positions = 3, np.array([0, 1, 5, 4000, 17, 17, 255], np.int32)
    x = np.random.default_rng(head_dim).standard_normal((len(positions), heads, head_dim)).astype(np.float32)
    guarded = Guarded()
    turned = guarded.copy(x.reshape(len(positions), -1))
    compiled(simd)(
        kv.rope,
        len(positions) * heads,
        batch={"positions": positions},
        x=turned,
        stride=heads * head_dim,
        heads=heads,
        head_dim=head_dim,
        table=guarded.copy(rope_table(rotated, 4001)),
        rotated=rotated,
    )
    guarded.check()
    want = reference.rope(x, positions, rope_frequencies(1e4, rotated)).reshape(x.shape)
    got = turned.reshape(x.shape)
    lengths = np.concatenate([np.hypot(*np.split(x[..., :rotated], 2, axis=-1))] * 2, axis=-1)
    assert (np.abs(got - want)[..., :rotated] <= ROPE_BOUND * lengths).all()
    assert same_bits(got[0], x[0])
    assert same_bits(got[..., rotated:].copy(), x[..., rotated:].copy())


@pytest.mark.parametrize("simd", PATHS)
@pytest.mark.parametrize(
    ("head_dim", "rotated"), [(16, 16), (64, 64), (80, 80), (256, 256), (64, 0), (16, 12), (96, 72)]
)
def test_keys_and_values_lie_where_they_should(simd: str, head_dim: int, rotated: int) -> None:
    """And nothing else of the blocks changes. With a table the keys, or parts of them, are rotated first."""
    layer = Layer(simd, head_dim, 1, 5)
    rows = layer.random(40, 6)
    rows.v[3, 2], rows.v[4, 2] = 1e6, -np.inf
    blocks = [4, 1]
    batch = ForwardBatch.single([0] * 40, 20, blocks)
    keys = rows.k.reshape(40, 2, head_dim).copy()
    frequencies = rope_frequencies(1e4, rotated) if rotated else ()
    layer.store(batch, rows, rope_table(rotated, 60) if rotated else 0, rotated)
    assert np.abs(rows.k - reference.rope(keys, batch.positions, frequencies)).max() <= 1e-5
    got = layer.pool.copy()
    columns = got[blocks, Layer.LAYER]
    keys = columns[:, :, 0].reshape(2, 2, head_dim, BLOCK_TOKENS).transpose(0, 3, 1, 2).reshape(64, -1)
    values = columns[:, :, 1].reshape(2, 2, BLOCK_TOKENS, head_dim).transpose(0, 2, 1, 3).reshape(64, -1)
    assert same_bits(keys[20:60], half(rows.k).astype(np.float16))
    assert same_bits(values[20:60], half(rows.v).astype(np.float16))
    assert np.isnan(keys[:20]).all() and np.isnan(values[60:]).all()
    got[blocks, Layer.LAYER] = NOT_A_NUMBER
    assert np.isnan(got).all()


def test_a_segment_is_a_whole_number_of_blocks() -> None:
    assert SEGMENT % BLOCK_TOKENS == 0
