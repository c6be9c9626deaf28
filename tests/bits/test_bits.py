"""The promise: the bits of a request's logits depend on its tokens alone, not on batches or threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny import TinyFile, TinyShape, tiny_llama

from ostinato.models import build_program
from ostinato.ops.batch import BLOCK_TOKENS, Executor, ForwardBatch
from ostinato.ops.cpu import host
from ostinato.ops.cpu.executor import CpuExecutor
from ostinato.ops.reference import ReferenceExecutor
from ostinato.weights.tensors import Tensor

Floats = NDArray[np.float32]

NUM_BLOCKS, MAX_BATCH_TOKENS = 40, 160
LENGTHS = (1, 2, 31, 33, 64, 100, 300)
"""Tokens of the sequences: within a block, across blocks, across two segments of attention."""

SCHEDULES = 60
"""Random ways to batch the sequences, for each model and number of threads."""

KL_BOUND = 0.02
"""Mean divergence from the reference in nats, where activations are int8; real models are much closer."""

FLOAT_BOUND = 1e-3
"""Of logits relative to the largest, where weights and activations are floats and the KV cache is float16."""

SHAPES = {
    "4-bit": TinyShape(),
    "many types": TinyShape(
        heads=3,
        kv_heads=1,
        head_dim=64,
        type="Q4_1",
        types={"attn_v": "Q8_0", "ffn_down": "F16", "ffn_gate": "BF16", "output.weight": "Q8_0"},
        norm_type="F16",
    ),
    "floats": TinyShape(
        width=48,
        hidden=40,
        heads=2,
        kv_heads=2,
        head_dim=80,
        vocab=33,
        type="F32",
        types={"attn": "F16"},
        tied=True,
    ),
}


@cache
def model(name: str) -> TinyFile:
    return tiny_llama(SHAPES[name], seed=len(name))


@cache
def sequences(name: str) -> list[list[int]]:
    rng = np.random.default_rng(len(name))
    return [rng.integers(0, SHAPES[name].vocab, length).tolist() for length in LENGTHS]


def cpu(name: str, threads: int = 1, simd: str | None = None) -> CpuExecutor:
    file = model(name)
    return CpuExecutor(
        build_program(file),
        file.tensors,
        num_blocks=NUM_BLOCKS,
        threads=threads,
        max_batch_tokens=MAX_BATCH_TOKENS,
        simd=simd,
    )


@pytest.fixture(scope="module", params=[(name, threads) for name in SHAPES for threads in (1, 2, 3)], ids=str)
def subject(request: pytest.FixtureRequest) -> Iterator[tuple[str, CpuExecutor]]:
    """A model by name, and an executor of it."""
    name, threads = request.param
    made = cpu(name, threads)
    yield name, made
    made.close()


class Run:
    """Sequences on their way through an executor: how far each is, in which blocks, its logits so far."""

    def __init__(self, executor: Executor, tokens: Sequence[Sequence[int]], seed: int) -> None:
        self.executor, self.rng = executor, np.random.default_rng(seed)
        self.tokens = [np.array(ids, np.int32) for ids in tokens]
        self.done = [0] * len(tokens)
        self.logits = [np.zeros((len(ids), executor.vocab_size), np.float32) for ids in tokens]
        self.asked = [np.zeros(len(ids), bool) for ids in tokens]
        needed = [-(-len(ids) // BLOCK_TOKENS) for ids in tokens]
        free = self.rng.permutation(executor.num_blocks).astype(np.int32).tolist()
        shape = len(tokens), max(needed) + int(self.rng.integers(0, 3))
        self.tables = self.rng.integers(0, executor.num_blocks, shape, np.int32)
        for table, count in zip(self.tables, needed, strict=True):
            table[:count] = [free.pop() for _ in range(count)]

    def step(self, sizes: Sequence[tuple[int, int]], all_rows: bool = True) -> None:
        """Run a batch of the next tokens of some sequences: (sequence, count) each, in this order."""
        slots = np.concatenate([np.full(n, slot, np.int32) for slot, n in sizes])
        positions = np.concatenate(
            [np.arange(self.done[slot], self.done[slot] + n, dtype=np.int32) for slot, n in sizes]
        )
        for slot, n in sizes:
            self.done[slot] += n
        rows = np.arange(len(slots), dtype=np.int32)
        if not all_rows:
            rows = self.rng.permutation(rows[self.rng.random(len(rows)) < 0.4])
        out = self.executor.forward(
            ForwardBatch(
                token_ids=np.array([self.tokens[s][p] for s, p in zip(slots, positions, strict=True)]),
                positions=positions,
                slot_of_token=slots,
                block_tables=self.tables,
                context_lens=np.array(self.done, np.int32),
                logits_rows=rows,
            )
        )
        assert out.shape == (len(rows), self.executor.vocab_size)
        for logits, row in zip(out, rows, strict=True):
            self.logits[slots[row]][positions[row]] = logits
            self.asked[slots[row]][positions[row]] = True

    def same_as(self, want: Sequence[Floats]) -> bool:
        """Whether all logits that were asked for have these bits; there must be some."""
        compared = zip(self.logits, want, self.asked, strict=True)
        assert sum(a.sum() for a in self.asked) > 0.3 * sum(self.done)
        return all(got[asked].tobytes() == exact[asked].tobytes() for got, exact, asked in compared)

    def in_chunks(self, chunk: int) -> Run:
        """Run one sequence after the other, so many tokens at a time."""
        for slot, ids in enumerate(self.tokens):
            while left := len(ids) - self.done[slot]:
                self.step([(slot, min(chunk, left))])
        return self

    def at_random(self) -> Run:
        """Run all sequences in random company and chunks, with logits of some tokens."""
        while any(left := [len(ids) - n for ids, n in zip(self.tokens, self.done, strict=True)]):
            sizes, room = [], self.executor.max_batch_tokens
            for slot in self.rng.permutation(len(left)).tolist():
                wanted = int(self.rng.choice([0, 0, 1, 1, 1, 2, 3, 7, 8, 30, 150]))
                if size := min(left[slot], wanted, room):
                    sizes.append((slot, size))
                    room -= size
            if sizes:
                self.step(sizes, all_rows=False)
        return self


@cache
def alone(name: str) -> list[Floats]:
    """The logits of each sequence of a model, run alone on one thread in chunks of the largest batch."""
    executor = cpu(name)
    run = Run(executor, sequences(name), 0).in_chunks(MAX_BATCH_TOKENS)
    executor.close()
    assert all(np.isfinite(logits).all() for logits in run.logits)
    return run.logits


@pytest.mark.parametrize("chunk", [1, 7, 64, MAX_BATCH_TOKENS])
def test_chunks(subject: tuple[str, CpuExecutor], chunk: int) -> None:
    name, executor = subject
    assert Run(executor, sequences(name), chunk).in_chunks(chunk).same_as(alone(name))


def test_company(subject: tuple[str, CpuExecutor]) -> None:
    """Prefill and decoding mixed, sequences in any order, blocks anywhere, logits of any rows or of none."""
    name, executor = subject
    for seed in range(SCHEDULES):
        assert Run(executor, sequences(name), seed).at_random().same_as(alone(name)), seed


def test_decoding_together(subject: tuple[str, CpuExecutor]) -> None:
    """As many sequences as there are blocks, a token of each at a time; every third is the same."""
    name, executor = subject
    ids = sequences(name)[-1]
    strangers = [ids[:20] if i % 3 == 0 else ids[i : i + 20] for i in range(NUM_BLOCKS)]
    run = Run(executor, strangers, 1)
    for _ in range(20):
        run.step([(slot, 1) for slot in range(NUM_BLOCKS)])
    assert run.same_as([alone(name)[-1][:20] if i % 3 == 0 else run.logits[i] for i in range(NUM_BLOCKS)])


def with_bad_token(file: TinyFile, bad: int) -> TinyFile:
    """Return the model with an embedding of NaN for a token."""
    old = file.tensors["token_embd.weight"]
    raw = old.data.copy().reshape(old.shape[0], -1)
    raw[bad] = 0xFF
    new = Tensor(old.name, old.shape, old.type, raw.reshape(-1), old.offset)
    return TinyFile(file.metadata, {**file.tensors, old.name: new})


def assert_only_itself_is_spoilt(file: TinyFile) -> None:
    bad = 5
    file = with_bad_token(file, bad)
    good = [[1, 2, 3, 4, 6, 7, 8, 9] * 2, [9, 8, 7, 6, 4, 3, 2, 1, 0, 4, 6] * 2]
    executor = CpuExecutor(build_program(file), file.tensors, num_blocks=8, threads=2, max_batch_tokens=32)
    clean = Run(executor, good, 2).in_chunks(32).logits
    run = Run(executor, [good[0], [1, bad, 2, 3, 4, 6, 7, 8], good[1]], 3)
    run.step([(0, 3), (1, 4), (2, 11)])
    run.step([(2, 11), (1, 4), (0, 13)])
    assert np.isnan(run.logits[1][1:]).all()
    assert run.same_as([clean[0], run.logits[1], clean[1]])
    assert Run(executor, good, 4).in_chunks(7).same_as(clean)
    executor.close()


@pytest.mark.parametrize("name", SHAPES)
def test_a_request_that_breaks_down_spoils_no_other(name: str) -> None:
    """Neither those beside it nor those that use the same memory later."""
    assert_only_itself_is_spoilt(model(name))


def test_a_request_that_breaks_down_leaves_nothing_in_odd_widths() -> None:
    assert_only_itself_is_spoilt(tiny_llama(TinyShape(width=40, hidden=40, vocab=10, type="F32")))


@pytest.mark.parametrize("name", SHAPES)
def test_paths(name: str) -> None:
    """All paths with a fused multiply-add give the same bits, the others nearly the same numbers."""
    for simd in host.available():
        executor = cpu(name, 2, simd)
        run = Run(executor, sequences(name), 5).in_chunks(MAX_BATCH_TOKENS)
        executor.close()
        if host.target(simd).fma == host.target().fma:
            assert run.same_as(alone(name)), simd
        else:
            assert max(map(divergence, run.logits, alone(name))) <= KL_BOUND


@pytest.mark.parametrize("name", SHAPES)
def test_reference(name: str) -> None:
    """The fast executor computes what the slow one does."""
    file = model(name)
    program = build_program(file)
    reference = ReferenceExecutor(program, file.tensors, num_blocks=NUM_BLOCKS)
    exact = Run(reference, sequences(name), 6).in_chunks(MAX_BATCH_TOKENS).logits
    chunked = Run(reference, sequences(name), 7).in_chunks(23).logits
    for got, want, other in zip(alone(name), exact, chunked, strict=True):
        assert divergence(got, want) <= KL_BOUND
        assert np.abs(other - want).max() <= 1e-5 * np.abs(want).max()
        if name == "floats":
            assert np.abs(got - want).max() <= FLOAT_BOUND * np.abs(want).max()


def divergence(got: Floats, exact: Floats) -> float:
    """Return the mean Kullback-Leibler divergence of rows of logits, in nats."""
    p, q = (log_softmax(x.astype(np.float64)) for x in (exact, got))
    return float(np.mean(np.sum(np.exp(p) * (p - q), axis=-1)))


def log_softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    x = x - x.max(axis=-1, keepdims=True)
    shifted: NDArray[np.float64] = x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return shifted
