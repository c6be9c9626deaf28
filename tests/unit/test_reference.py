"""The oracle's ops: each attribute does what its formula says, computed here number by number."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny import TYPES, TinyFile, random_tensor

from ostinato.ops.batch import ForwardBatch
from ostinato.ops.program import (
    LOGITS,
    Activation,
    Attention,
    Embed,
    Experts,
    GatedUnit,
    KVShape,
    MatMul,
    Op,
    Program,
    RmsNorm,
    Rope,
    Softcap,
    StoreKV,
    Weight,
)
from ostinato.ops.reference import ReferenceExecutor, choose_experts, gelu, silu
from ostinato.weights.quantize import format_named, quantized
from ostinato.weights.tensors import Tensor

RNG = np.random.default_rng(3)
TOKENS, WIDTH, HEADS, HEAD_DIM = 6, 32, 4, 8
X = RNG.standard_normal((TOKENS, WIDTH)).astype(np.float32)
IDS = list(range(TOKENS))


def tensor(name: str, values: NDArray[np.float32]) -> Tensor:
    return Tensor(
        name, values.shape, TYPES["F32"], np.ascontiguousarray(values).view(np.uint8).reshape(-1), 0
    )


def draw(*shape: int) -> NDArray[np.float32]:
    return RNG.standard_normal(shape).astype(np.float32)


def run(ops: Sequence[Op], start: int = 0, **tensors: NDArray[np.float32] | Tensor) -> NDArray[np.float32]:
    """Run ops on the buffer `logits`, which begins as the rows of X, and return it."""
    named = {k: t if isinstance(t, Tensor) else tensor(k, t) for k, t in tensors.items()}
    program = Program((Embed(LOGITS, Weight("x")), *ops), {}, KVShape(1, 2, HEAD_DIM), WIDTH, 64)
    executor = ReferenceExecutor(program, {"x": tensor("x", X), **named}, num_blocks=2)
    return executor.forward(ForwardBatch.single(IDS, start, [1, 0]))


def near(got: NDArray[np.float32], expected: object) -> None:
    np.testing.assert_allclose(got, np.asarray(expected), rtol=2e-5, atol=2e-6)


def test_embed_scales() -> None:
    near(run([Embed(LOGITS, Weight("x"), 3.5)]), 3.5 * X)


def test_rms_norm_of_heads() -> None:
    weight = draw(HEAD_DIM)
    parts = X.astype(np.float64).reshape(TOKENS, HEADS, HEAD_DIM)
    expected = parts / np.sqrt((parts**2).mean(-1, keepdims=True) + 0.1) * weight
    op = RmsNorm(LOGITS, LOGITS, Weight("w"), 0.1, heads=HEADS)
    near(run([op], w=weight), expected.reshape(TOKENS, WIDTH))


def test_rms_norm_accumulates() -> None:
    weight = draw(WIDTH)
    normed = X / np.sqrt((X.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-3) * weight
    near(run([RmsNorm(LOGITS, LOGITS, Weight("w"), 1e-3, accumulate=True)], w=weight), X + normed)


@pytest.mark.parametrize("accumulate", [False, True])
def test_matmul_adds_the_bias_then_scales(accumulate: bool) -> None:
    weight, bias = draw(WIDTH, WIDTH), draw(WIDTH)
    op = MatMul(LOGITS, LOGITS, Weight("w"), accumulate, Weight("b"), scale=0.25)
    expected = 0.25 * (X.astype(np.float64) @ weight.T + bias) + (X if accumulate else 0)
    near(run([op], w=weight, b=bias), expected)


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_rows_of_a_matrix_and_of_stacked_experts(kind: str) -> None:
    matrix, stacked = (random_tensor("w", kind, shape, RNG) for shape in ((70, WIDTH), (5, 14, WIDTH)))
    for held in (matrix, stacked):
        rows = held.dequantize().reshape(70, WIDTH)[28:42]
        near(run([MatMul(LOGITS, LOGITS, Weight("w", rows=(28, 42)))], w=held), X @ rows.T)


def test_rows_of_a_tensor_that_is_quantised_while_loading() -> None:
    held = random_tensor("w", "F16", (70, WIDTH), RNG)
    file = quantized(TinyFile({}, {"w": held}), format_named("q8_0"))
    rows = file.tensors["w"].dequantize()[28:42]
    assert not np.array_equal(rows, held.dequantize()[28:42])
    near(run([MatMul(LOGITS, LOGITS, Weight("w", rows=(28, 42)))], w=file.tensors["w"]), X @ rows.T)


def test_paired_heads_reorder_rows_and_bias_alike() -> None:
    weight, bias = draw(WIDTH, WIDTH), draw(WIDTH)
    order = [h * 8 + i for h in range(HEADS) for i in (0, 2, 4, 6, 1, 3, 5, 7)]
    op = MatMul(LOGITS, LOGITS, Weight("w", HEADS), bias=Weight("b", HEADS))
    near(run([op], w=weight, b=bias), (X @ weight.T + bias)[:, order])


def test_partial_rotation_with_magnitude() -> None:
    frequencies, magnitude, start = (0.7, 0.02, 0.3), 1.25, 9
    got = run([Rope(LOGITS, HEADS, HEAD_DIM, frequencies, magnitude)], start)
    expected = X.astype(np.float64).reshape(TOKENS, HEADS, HEAD_DIM).copy()
    for t in range(TOKENS):
        for h in range(HEADS):
            for i, frequency in enumerate(frequencies):
                a, b, angle = expected[t, h, i], expected[t, h, i + 3], (start + t) * frequency
                expected[t, h, i] = magnitude * (a * math.cos(angle) - b * math.sin(angle))
                expected[t, h, i + 3] = magnitude * (a * math.sin(angle) + b * math.cos(angle))
    near(got, expected.reshape(TOKENS, WIDTH))


@pytest.mark.parametrize(("window", "cap"), [(0, 0.0), (1, 0.0), (3, 0.0), (0, 2.0), (3, 0.5), (99, 0.0)])
def test_attention_with_window_and_cap(window: int, cap: float) -> None:
    weights = {"wk": draw(16, WIDTH), "wv": draw(16, WIDTH)}
    ops: list[Op] = [
        MatMul(LOGITS, "k", Weight("wk")),
        MatMul(LOGITS, "v", Weight("wv")),
        StoreKV("k", "v", 0),
    ]
    ops.append(Attention(LOGITS, LOGITS, 0, HEADS, 2, HEAD_DIM, 0.6, window, cap))
    expected = np.empty((TOKENS, HEADS, HEAD_DIM))
    x = X.astype(np.float64)
    q, k, v = (m.reshape(TOKENS, -1, HEAD_DIM) for m in (x, x @ weights["wk"].T, x @ weights["wv"].T))
    for t in range(TOKENS):
        seen = range(max(0, t - window + 1) if window else 0, t + 1)
        for h in range(HEADS):
            scores = [0.6 * float(q[t, h] @ k[s, h // 2]) for s in seen]
            powers = [math.exp(cap * math.tanh(s / cap) if cap else s) for s in scores]
            parts = [p * v[s, h // 2] for p, s in zip(powers, seen, strict=True)]
            expected[t, h] = np.sum(parts, axis=0) / sum(powers)
    near(run(ops, **weights), expected.reshape(TOKENS, WIDTH))


@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_gated_unit(activation: Activation) -> None:
    up = draw(WIDTH, WIDTH)
    ops = [MatMul(LOGITS, "up", Weight("w")), GatedUnit(LOGITS, "up", LOGITS, activation)]
    function = {"silu": silu_of, "gelu": gelu_of}[activation]
    near(run(ops, w=up), np.vectorize(function)(X.astype(np.float64)) * (X @ up.T))


def silu_of(x: float) -> float:
    return x / (1 + math.exp(-x))


def gelu_of(x: float) -> float:
    return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def test_activations_of_huge_numbers_are_finite() -> None:
    x = np.array([-1e4, -90, 0, 90, 1e4], np.float32)
    near(silu(x), [0, 0, 0, 90, 1e4])
    near(gelu(x), [0, 0, 0, 90, 1e4])


def test_softcap() -> None:
    near(run([Softcap(LOGITS, 1.5)]), 1.5 * np.tanh(X.astype(np.float64) / 1.5))


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("stacked", [True, False])
def test_experts(normalized: bool, stacked: bool) -> None:
    count, hidden, chosen = 5, 24, 2
    router = draw(count, WIDTH)
    gate, up, down = draw(count, hidden, WIDTH), draw(count, hidden, WIDTH), draw(count, WIDTH, hidden)
    held = {"gate": gate, "up": up, "down": down}
    tensors = held if stacked else {f"{k}{e}": m[e] for k, m in held.items() for e in range(count)}

    def matrices(name: str) -> tuple[Weight, ...]:
        rows = held[name].shape[1]
        return tuple(
            Weight(name, rows=(e * rows, (e + 1) * rows)) if stacked else Weight(f"{name}{e}")
            for e in range(count)
        )

    op = Experts(
        LOGITS,
        "scores",
        LOGITS,
        matrices("gate"),
        matrices("up"),
        matrices("down"),
        chosen,
        normalized,
        "gelu",
    )
    expected = X.astype(np.float64).copy()
    for t in range(TOKENS):
        powers = np.exp(router.astype(np.float64) @ X[t])
        best = sorted(range(count), key=lambda e: -powers[e])[:chosen]
        whole = powers[best].sum() if normalized else powers.sum()
        for e in best:
            inner = np.vectorize(gelu_of)(gate[e] @ X[t].astype(np.float64)) * (up[e] @ X[t])
            expected[t] += powers[e] / whole * (down[e] @ inner)
    got = run([MatMul(LOGITS, "scores", Weight("router")), op], router=router, **tensors)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_only_chosen_experts_are_read() -> None:
    """The weights of an expert that no token chose need not even exist."""
    router = np.zeros((3, WIDTH), np.float32)
    one = {"g1": draw(8, WIDTH), "u1": draw(8, WIDTH), "d1": draw(WIDTH, 8)}
    gate, up, down = (tuple(Weight(f"{k}{e}") for e in range(3)) for k in "gud")
    ops = [
        MatMul(LOGITS, "scores", Weight("router"), bias=Weight("b")),
        Experts(LOGITS, "scores", LOGITS, gate, up, down, 1),
    ]
    assert np.isfinite(run(ops, router=router, b=np.array([0, 1, 0], np.float32), **one)).all()


def test_ties_go_to_the_lowest_expert() -> None:
    chosen, shares = choose_experts(np.array([[1, 2, 2, 1]], np.float32), 3, True)
    assert chosen.tolist() == [[1, 2, 0]]
    assert float(shares.sum()) == pytest.approx(1)
