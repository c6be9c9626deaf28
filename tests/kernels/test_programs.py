"""Small programs of whatever ops can say, run by the CPU executor and by the reference: the same numbers, and
the same bits in chunks.

Matrices are float32, keys and values numbers that float16 holds, so that nothing is rounded but sums.
"""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
from harness import Floats, same_bits
from tiny import TYPES, random_tensor

from ostinato.models.rope import rope_frequencies
from ostinato.ops.batch import BLOCK_TOKENS, Executor, ForwardBatch
from ostinato.ops.cpu.executor import CpuExecutor
from ostinato.ops.program import (
    LOGITS,
    Attention,
    Embed,
    GatedUnit,
    KVShape,
    MatMul,
    Op,
    Program,
    RmsNorm,
    Rope,
    Softcap,
    StoreKV,
    TakeRows,
    Weight,
)
from ostinato.ops.reference import ReferenceExecutor
from ostinato.weights.tensors import Tensor

BOUND = 1e-5
"""Of logits, relative to the largest."""

ROTATED_BOUND = 1e-3
"""The same where keys are rotated, and rounded to float16 then."""

WIDTH, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 64, 4, 2, 16, 24
IDS = np.random.default_rng(0).integers(0, VOCAB, 40).tolist()
BLOCKS = [1, 2, 0]
SCALE, EPS = HEAD_DIM**-0.5, 1e-5

SHAPES = {
    "embd": (VOCAB, WIDTH),
    "keys": (VOCAB, KV_HEADS * HEAD_DIM),
    "values": (VOCAB, KV_HEADS * HEAD_DIM),
    "a": (WIDTH, WIDTH),
    "b": (WIDTH, WIDTH),
    "wide": (33, WIDTH),
    "back": (WIDTH, 33),
    "fused": (5 * WIDTH, WIDTH),
    "stacked": (3, WIDTH, WIDTH),
    "out": (VOCAB, WIDTH),
}
VECTORS = {"bias": WIDTH, "wide_bias": 33, "norm": WIDTH, "head_norm": HEAD_DIM}


def tensors(matrix_type: str = "F32") -> dict[str, Tensor]:
    """Return random weights; those that keys and values come from in float16."""
    rng, made = np.random.default_rng(1), dict[str, Tensor]()
    for name, shape in SHAPES.items():
        kind = "F16" if name in ("keys", "values") else matrix_type
        if TYPES[kind].block_size > 1 and shape[-1] % TYPES[kind].block_size:
            kind = "F32"
        scale = 1.0 if shape[0] == VOCAB and name != "out" else shape[-1] ** -0.5
        made[name] = random_tensor(name, kind, shape, rng, scale)
    for name, length in VECTORS.items():
        numbers = (1 + rng.standard_normal(length) / 2).astype(np.float32)
        made[name] = Tensor(name, (length,), TYPES["F32"], numbers.view(np.uint8), 0)
    return made


def product(x: str, out: str, weight: str, rows: tuple[int, int] | None = None, **options: object) -> MatMul:
    return MatMul(x, out, Weight(weight, rows=rows), **options)  # type: ignore[arg-type]


def attention(q: str = "q", window: int = 0, softcap: float = 0.0) -> Attention:
    return Attention(q, "y", 0, HEADS, KV_HEADS, HEAD_DIM, SCALE, window, softcap)


HEAD_NORM = RmsNorm("q", "q", Weight("head_norm"), EPS, heads=HEADS)
POST_NORM = RmsNorm("y", "x", Weight("norm"), EPS, accumulate=True)
FREQUENCIES, PARTIAL = rope_frequencies(1e4, HEAD_DIM), rope_frequencies(1e4, 12)

CASES: dict[str, list[Op]] = {
    "bias": [product("x", "y", "a", bias=Weight("bias")), product("y", "x", "b", accumulate=True)],
    "bias of an odd width": [
        product("x", "wide", "wide", bias=Weight("wide_bias")),
        product("wide", "x", "back", accumulate=True),
    ],
    "scale": [product("x", "y", "a", scale=0.3), product("y", "x", "b", accumulate=True, scale=-1.7)],
    "bias, scale and sum": [
        product("x", "y", "a"),
        product("y", "x", "b", accumulate=True, bias=Weight("bias"), scale=0.3),
    ],
    "rows of a matrix": [
        product("x", "y", "fused", (WIDTH, 2 * WIDTH), bias=Weight("bias")),
        product("y", "wide", "fused", (7, 40), bias=Weight("wide_bias")),
        product("wide", "x", "back", accumulate=True),
    ],
    "rows of several matrices": [
        product("x", "y", "stacked", (WIDTH, 2 * WIDTH)),
        product("y", "x", "stacked", (2 * WIDTH, 3 * WIDTH), accumulate=True),
        product("x", "y", "stacked", (0, WIDTH)),
        product("y", "x", "stacked", (100, 164), accumulate=True),
    ],
    "rotary pairs of rows": [
        MatMul("x", "q", Weight("fused", HEADS, (2 * WIDTH, 3 * WIDTH)), bias=Weight("bias", HEADS)),
        attention(),
        product("y", "x", "b", accumulate=True),
    ],
    "norm of heads": [
        product("x", "q", "a"),
        HEAD_NORM,
        attention(),
        product("y", "x", "b", accumulate=True),
    ],
    "norm in place": [RmsNorm("x", "x", Weight("norm"), EPS)],
    "norm after": [product("x", "y", "a"), POST_NORM, product("x", "y", "b"), POST_NORM],
    "no rotation": [product("x", "q", "a"), attention(), product("y", "x", "b", accumulate=True)],
    "window": [product("x", "q", "a"), attention(window=9), product("y", "x", "b", accumulate=True)],
    "window and cap": [
        product("x", "q", "a"),
        attention(window=33, softcap=2.0),
        product("y", "x", "b", accumulate=True),
    ],
    "gelu": [
        product("x", "q", "a"),
        product("x", "y", "b"),
        GatedUnit("q", "y", "y", "gelu"),
        product("y", "x", "b", accumulate=True),
    ],
    "cap in between": [product("x", "y", "a"), Softcap("y", 0.7), product("y", "x", "b", accumulate=True)],
    "rotation of queries": [
        product("x", "q", "a"),
        Rope("q", HEADS, HEAD_DIM, PARTIAL, 1.3),
        attention(),
        product("y", "x", "b", accumulate=True),
    ],
}


def program(ops: list[Op], end: list[Op] | None = None, begin: list[Op] | None = None) -> Program:
    """Return a program that embeds x, stores keys and values, does the ops, and attends at least once."""
    start = [Embed("x", Weight("embd"), 0.5), Embed("k", Weight("keys")), Embed("v", Weight("values"))]
    store = begin if begin is not None else [StoreKV("k", "v", 0)]
    last = end if end is not None else [product("last", LOGITS, "out")]
    attends = any(isinstance(op, Attention) for op in ops)
    middle = ops if attends else [attention("x"), product("y", "x", "a", accumulate=True), *ops]
    widths = dict.fromkeys(("x", "y", "q", "last"), WIDTH) | {"wide": 33, LOGITS: VOCAB}
    widths |= dict.fromkeys(("k", "v"), KV_HEADS * HEAD_DIM)
    everything = (*start, *store, *middle, TakeRows("x", "last"), *last)
    return Program(everything, widths, KVShape(1, KV_HEADS, HEAD_DIM), VOCAB, 128)


def logits_of(executor: Executor, chunk: int = len(IDS)) -> Floats:
    """Return the logits of all tokens."""
    found = []
    for start in range(0, len(IDS), chunk):
        part = IDS[start : start + chunk]
        found.append(
            executor.forward(ForwardBatch.single(part, start, BLOCKS, list(range(len(part))))).copy()
        )
    return np.concatenate(found)


def on_cpu(made: Program, weights: dict[str, Tensor], chunk: int = len(IDS), threads: int = 2) -> Floats:
    with closing(CpuExecutor(made, weights, num_blocks=len(BLOCKS), threads=threads)) as executor:
        return logits_of(executor, chunk)


def check(made: Program, bound: float = BOUND) -> None:
    """The reference's numbers; and equal bits in chunks."""
    weights = tensors()
    want = logits_of(ReferenceExecutor(made, weights, num_blocks=len(BLOCKS)))
    got = on_cpu(made, weights)
    assert np.ptp(want) > 0.1
    assert np.abs(got - want).max() <= bound * np.abs(want).max()
    for chunk, threads in ((1, 1), (7, 2)):
        assert same_bits(on_cpu(made, weights, chunk, threads), got), chunk


@pytest.mark.parametrize("case", CASES)
def test_ops(case: str) -> None:
    check(program(CASES[case]))


def test_logits_capped_and_scaled() -> None:
    check(program([], end=[product("last", LOGITS, "out", scale=3.0), Softcap(LOGITS, 5.0)]))


def test_a_norm_of_the_rows_that_are_wanted() -> None:
    end: list[Op] = [RmsNorm("last", "last", Weight("norm"), EPS), product("last", LOGITS, "out")]
    check(program([], end=end))


@pytest.mark.parametrize("frequencies", [FREQUENCIES, PARTIAL], ids=["whole", "part"])
def test_keys_rotated_while_stored(frequencies: tuple[float, ...]) -> None:
    begin: list[Op] = [Rope("k", KV_HEADS, HEAD_DIM, frequencies), StoreKV("k", "v", 0)]
    check(program(CASES["no rotation"], begin=begin), ROTATED_BOUND)


def test_positions_lie_in_several_blocks() -> None:
    assert BLOCK_TOKENS < len(IDS) <= BLOCK_TOKENS * len(BLOCKS)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_1", "IQ4_NL", "F16", "BF16"])
@pytest.mark.parametrize("case", ["rows of a matrix", "rows of several matrices", "rotary pairs of rows"])
def test_rows_have_the_bits_of_a_matrix_of_their_own(case: str, kind: str) -> None:
    weights, apart = tensors(kind), tensors(kind)
    ops = [op if not isinstance(op, MatMul) else alone(op, apart) for op in CASES[case]]
    assert len(apart) > len(weights)
    assert same_bits(on_cpu(program(CASES[case]), weights), on_cpu(program(ops), apart))


def alone(op: MatMul, held: dict[str, Tensor]) -> MatMul:
    """Return the same product with a tensor that holds the rows it wants and no others."""
    if op.weight.rows is None:
        return op
    tensor, (first, last) = held[op.weight.name], op.weight.rows
    name, columns = f"{tensor.name} {first}", tensor.shape[-1]
    begin, end = (tensor.type.num_bytes((row, columns)) for row in (first, last))
    held[name] = Tensor(name, (last - first, columns), tensor.type, tensor.load()[begin:end], 0)
    return MatMul(op.x, op.out, Weight(name, op.weight.paired_heads), op.accumulate, op.bias, op.scale)
