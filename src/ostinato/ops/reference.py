"""The oracle: runs a Program in NumPy float32 on dequantised weights, op by op, as the formulas say. Slow and
obvious.

Its KV cache is a float32 array per layer over the same blocks that the fast executors use, so that it takes
the same batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ostinato.ops.batch import BLOCK_TOKENS, Float32, ForwardBatch, Int32
from ostinato.ops.program import (
    LOGITS,
    Activation,
    Attention,
    Embed,
    Experts,
    GatedUnit,
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
from ostinato.weights.tensors import Tensor


class ReferenceExecutor:
    """Runs a program in float32; see `ops.batch.Executor`. Weights are dequantised once and kept."""

    def __init__(
        self,
        program: Program,
        tensors: Mapping[str, Tensor],
        *,
        num_blocks: int,
        max_batch_tokens: int = 4096,
    ) -> None:
        self.program = program
        self.vocab_size = program.vocab_size
        self.max_batch_tokens = max_batch_tokens
        self.num_blocks = num_blocks
        self._tensors = tensors
        self._weights: dict[Weight, Float32] = {}
        shape = (program.kv.num_layers, num_blocks * BLOCK_TOKENS, program.kv.heads, program.kv.head_dim)
        self._keys, self._values = np.zeros(shape, np.float32), np.zeros(shape, np.float32)

    def forward(self, batch: ForwardBatch) -> Float32:
        """Run the batch and return its logits (R, vocab_size), an array of the caller's."""
        buffers: dict[str, Float32] = {}
        for op in self.program.ops:
            self._run(op, buffers, batch)
        return buffers[LOGITS]

    def close(self) -> None:
        """There is nothing to release."""

    def _run(self, op: Op, buffers: dict[str, Float32], batch: ForwardBatch) -> None:
        match op:
            case Embed(out, weight, scale):
                buffers[out] = self._weight(weight)[batch.token_ids] * np.float32(scale)
            case RmsNorm():
                y = rms_norm(_split(buffers[op.x], op.heads), self._weight(op.weight), op.eps)
                _put(buffers, op.out, y.reshape(len(y), -1), op.accumulate)
            case MatMul(x, out, weight, accumulate, bias, scale):
                y = buffers[x] @ self._weight(weight).T
                y = y if bias is None else y + self._weight(bias)
                _put(buffers, out, y * np.float32(scale), accumulate)
            case Rope(x, heads, _, frequencies, magnitude):
                buffers[x] = rope(_split(buffers[x], heads), batch.positions, frequencies, magnitude)
            case StoreKV(k, v, layer):
                self._store(layer, buffers[k], buffers[v], batch)
            case Attention():
                buffers[op.out] = self._attention(op, buffers[op.q], batch)
            case GatedUnit(gate, up, out, activation):
                buffers[out] = ACTIVATIONS[activation](buffers[gate]) * buffers[up]
            case Experts():
                _put(buffers, op.out, self._experts(op, buffers[op.x], buffers[op.scores]), True)
            case Softcap(x, cap):
                buffers[x] = softcap(buffers[x], cap)
            case TakeRows(x, out):
                buffers[out] = buffers[x][batch.logits_rows]

    def _weight(self, weight: Weight) -> Float32:
        if weight not in self._weights:
            values = _rows(self._tensors[weight.name], weight.rows)
            self._weights[weight] = (
                pairs_to_halves(values, weight.paired_heads) if weight.paired_heads else values
            )
        return self._weights[weight]

    def _experts(self, op: Experts, x: Float32, scores: Float32) -> Float32:
        chosen, shares = choose_experts(scores, op.chosen, op.normalized)
        total = np.zeros_like(x)
        for rank in range(op.chosen):
            for expert in np.unique(chosen[:, rank]):
                tokens = np.flatnonzero(chosen[:, rank] == expert)
                gate, up, down = (self._weight(matrices[expert]) for matrices in (op.gate, op.up, op.down))
                hidden = ACTIVATIONS[op.activation](x[tokens] @ gate.T) * (x[tokens] @ up.T)
                total[tokens] += shares[tokens, rank, None] * (hidden @ down.T)
        return total

    def _store(self, layer: int, k: Float32, v: Float32, batch: ForwardBatch) -> None:
        kv = self.program.kv
        tables = batch.block_tables[batch.slot_of_token]
        blocks = np.take_along_axis(tables, (batch.positions // BLOCK_TOKENS)[:, None], axis=1)[:, 0]
        cells = blocks * BLOCK_TOKENS + batch.positions % BLOCK_TOKENS
        self._keys[layer, cells] = k.reshape(-1, kv.heads, kv.head_dim)
        self._values[layer, cells] = v.reshape(-1, kv.heads, kv.head_dim)

    def _attention(self, op: Attention, q: Float32, batch: ForwardBatch) -> Float32:
        out = np.empty_like(q)
        for slot in np.unique(batch.slot_of_token):
            tokens = np.flatnonzero(batch.slot_of_token == slot)
            cells = _cells(batch.block_tables[slot], int(batch.context_lens[slot]))
            keys, values = self._keys[op.layer, cells], self._values[op.layer, cells]
            heads = q[tokens].reshape(-1, op.heads, op.head_dim)
            positions = batch.positions[tokens]
            out[tokens] = attention(heads, keys, values, positions, op.scale, op.window, op.softcap)
        return out


def rms_norm(x: Float32, weight: Float32, eps: float) -> Float32:
    """Return x (…, M) over the root of its mean square, times weight (M,)."""
    mean_square = np.mean(np.square(x), axis=-1, keepdims=True, dtype=np.float32)
    inverse = (1 / np.sqrt(mean_square + np.float32(eps))).astype(np.float32)
    return x * inverse * weight


def silu(x: Float32) -> Float32:
    """Return x / (1 + e^-x)."""
    with np.errstate(over="ignore"):
        y: Float32 = x / (1 + np.exp(-x))
    return y


def gelu(x: Float32) -> Float32:
    """Return x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))). Source: arXiv 1606.08415, the tanh form."""
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3)
    y: Float32 = np.float32(0.5) * x * (1 + np.tanh(inner))
    return y


ACTIVATIONS: Mapping[Activation, Callable[[Float32], Float32]] = {"silu": silu, "gelu": gelu}


def softcap(x: Float32, cap: float) -> Float32:
    """Return cap · tanh(x / cap)."""
    y: Float32 = np.float32(cap) * np.tanh(x / np.float32(cap))
    return y


def choose_experts(scores: Float32, chosen: int, normalized: bool) -> tuple[Int32, Float32]:
    """Return the `chosen` experts of each token, highest score first, and their shares: both (T, C)."""
    order = np.argsort(-scores, axis=-1, kind="stable")[:, :chosen].astype(np.int32)
    shares = np.take_along_axis(softmax(scores), order, axis=-1)
    return order, shares / shares.sum(axis=-1, keepdims=True) if normalized else shares


def rope(x: Float32, positions: Int32, frequencies: Sequence[float], magnitude: float = 1.0) -> Float32:
    """Return x (T, H, D), pairs (i, i + F) turned by position · frequencies[i], as (T, H·D).

    Dimensions from 2·F on stay as they are.
    """
    count = len(frequencies)
    angles = positions[:, None, None] * np.array(frequencies, np.float64)
    cosine, sine = ((magnitude * f(angles)).astype(np.float32) for f in (np.cos, np.sin))
    a, b, rest = np.split(x, [count, 2 * count], axis=-1)
    return np.concatenate([a * cosine - b * sine, a * sine + b * cosine, rest], axis=-1).reshape(len(x), -1)


def attention(
    q: Float32,
    keys: Float32,
    values: Float32,
    positions: Int32,
    scale: float,
    window: int = 0,
    cap: float = 0.0,
) -> Float32:
    """Return causal attention of q (T, H, D) over keys and values (C, K, D), as (T, H·D).

    With a window, position p sees positions above p - window only; with a cap, scores go through `softcap`.
    """
    num_tokens, heads, _ = q.shape
    keys, values = (np.repeat(x, heads // keys.shape[1], axis=1) for x in (keys, values))
    scores = np.einsum("thd,chd->htc", q, keys, optimize=True) * np.float32(scale)
    scores = softcap(scores, cap) if cap else scores
    distance = positions[:, None] - np.arange(len(keys))[None, :]
    hidden = (distance < 0) | (distance >= window) if window else distance < 0
    weights = softmax(np.where(hidden, np.float32(-np.inf), scores))
    out: Float32 = np.einsum("htc,chd->thd", weights, values, optimize=True)
    return out.reshape(num_tokens, -1)


def softmax(x: Float32) -> Float32:
    """Return e^x over its sum along the last axis."""
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    total: Float32 = powers / powers.sum(axis=-1, keepdims=True)
    return total


def pairs_to_halves(rows: Float32, heads: int) -> Float32:
    """Return (H·D, …) with the even rows of each head first, then its odd ones."""
    per_head = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return np.concatenate([per_head[:, :, 0], per_head[:, :, 1]], axis=1).reshape(rows.shape)


def _rows(tensor: Tensor, rows: tuple[int, int] | None) -> Float32:
    """Return the numbers of these rows of a tensor, or of all; only they are read."""
    if rows is None:
        return tensor.dequantize()
    columns = tensor.shape[-1]
    begin, end = (row * tensor.type.num_bytes((columns,)) for row in rows)
    return tensor.type.dequantize(tensor.load()[begin:end], (rows[1] - rows[0], columns))


def _split(x: Float32, heads: int) -> Float32:
    """Return (T, W) as (T, heads, W / heads)."""
    return x.reshape(len(x), heads, -1)


def _put(buffers: dict[str, Float32], out: str, y: Float32, accumulate: bool) -> None:
    buffers[out] = buffers[out] + y if accumulate else y


def _cells(table: Int32, length: int) -> Int32:
    """Return where the first `length` positions of a sequence lie in the cache."""
    positions = np.arange(length, dtype=np.int32)
    return table[positions // BLOCK_TOKENS] * np.int32(BLOCK_TOKENS) + positions % np.int32(BLOCK_TOKENS)
