"""Random tensors of every type, and tiny llama models made of them: model files that exist in memory only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ostinato.weights.quants import TENSOR_TYPES, Bytes, TensorType
from ostinato.weights.tensors import MetadataValue, Tensor

TYPES: Mapping[str, TensorType] = {t.name: t for t in TENSOR_TYPES.values() if t.is_supported}


class Factors(NamedTuple):
    """A block's float16 factors: where they begin, how many, the mean of what the first one scales (what the
    second must make up for) and the standard deviation of a block's numbers whose first factor is 1.
    """

    begin: int
    count: int
    centre: float
    spread: float


FACTORS: Mapping[str, Factors] = {
    "Q4_0": Factors(0, 1, 0, 8),
    "Q4_1": Factors(0, 2, -7.5, 8),
    "Q5_0": Factors(0, 1, 0, 9),
    "Q5_1": Factors(0, 2, -15.5, 9),
    "Q8_0": Factors(0, 1, 0, 74),
    "Q2_K": Factors(80, 2, 1.5, 17),
    "Q3_K": Factors(108, 1, 0, 43),
    "Q4_K": Factors(0, 2, 7.5, 260),
    "Q5_K": Factors(0, 2, 15.5, 530),
    "Q6_K": Factors(208, 1, 0, 1380),
    "IQ4_NL": Factors(0, 1, 0, 67),
    "IQ4_XS": Factors(0, 1, 0, 1260),
}


def random_bytes(type_name: str, count: int, rng: np.random.Generator, scale: float = 1.0) -> Bytes:
    """Return the file's bytes of `count` random numbers of standard deviation `scale`, some of them zero.

    Quantised types get every pattern of value bits, and block factors of both signs, zero and subnormal.
    """
    kind = TYPES[type_name]
    if type_name in FACTORS:
        return _random_blocks(kind, FACTORS[type_name], count // kind.block_size, rng, scale)
    if type_name == "MXFP4":
        return _random_mxfp4(kind, count // kind.block_size, rng, scale)
    numbers = (rng.standard_normal(count) * scale).astype(np.float32)
    numbers[rng.random(count) < 0.03] = 0
    if type_name == "BF16":
        return (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return numbers.astype(np.float16 if type_name == "F16" else np.float32).view(np.uint8)


def _random_blocks(
    kind: TensorType, factors: Factors, blocks: int, rng: np.random.Generator, scale: float
) -> Bytes:
    raw = rng.integers(0, 256, (blocks, kind.block_bytes), np.uint8)
    numbers = rng.standard_normal((blocks, factors.count)) * (scale / factors.spread)
    special = rng.random(blocks)
    numbers[special < 0.02] = 0
    numbers[special > 0.98] = 3e-7
    numbers[:, 1:] += numbers[:, :1] * factors.centre
    raw[:, factors.begin : factors.begin + 2 * factors.count] = numbers.astype("<f2").view(np.uint8)
    return raw.reshape(-1)


def _random_mxfp4(kind: TensorType, blocks: int, rng: np.random.Generator, scale: float) -> Bytes:
    raw = rng.integers(0, 256, (blocks, kind.block_bytes), np.uint8)
    raw[:, 0] = 126 + round(math.log2(scale)) + rng.integers(-2, 2, blocks)  # of a power of two times 2**-128
    raw[rng.random(blocks) < 0.02, 0] = 0
    return raw.reshape(-1)


def random_tensor(
    name: str, type_name: str, shape: tuple[int, ...], rng: np.random.Generator, scale: float = 1.0
) -> Tensor:
    """Return a random tensor as a reader of model files gives it."""
    data = random_bytes(type_name, int(np.prod(shape)), rng, scale)
    data.flags.writeable = False
    return Tensor(name, shape, TYPES[type_name], data, 0)


@dataclass(frozen=True, slots=True)
class TinyShape:
    """The shape of a tiny llama; `types` overrides `type` by a part of a tensor's name."""

    layers: int = 2
    width: int = 64
    hidden: int = 96
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    vocab: int = 50
    type: str = "Q4_0"
    types: Mapping[str, str] = field(default_factory=dict)
    tied: bool = False
    norm_type: str = "F32"

    def type_of(self, name: str) -> str:
        """Return the tensor type of a matrix."""
        return next((kind for part, kind in self.types.items() if part in name), self.type)


@dataclass(frozen=True, slots=True)
class TinyFile:
    """A ModelFile without a file."""

    metadata: Mapping[str, MetadataValue]
    tensors: Mapping[str, Tensor]
    path: Path = Path("tiny.gguf")


def tiny_llama(shape: TinyShape | None = None, seed: int = 0) -> TinyFile:
    """Return a random llama of this shape, its activations of ordinary size."""
    shape, rng = shape or TinyShape(), np.random.default_rng(seed)
    tensors: dict[str, Tensor] = {}

    def matrix(name: str, rows: int, columns: int, scale: float | None = None) -> None:
        scale = columns**-0.5 if scale is None else scale
        tensors[name] = random_tensor(name, shape.type_of(name), (rows, columns), rng, scale)

    def norm(name: str) -> None:
        data = (1 + rng.standard_normal(shape.width) / 8).astype(np.float32)
        if shape.norm_type == "F16":
            data = data.astype(np.float16)
        tensors[name] = Tensor(name, (shape.width,), TYPES[shape.norm_type], data.view(np.uint8), 0)

    heads_width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    matrix("token_embd.weight", shape.vocab, shape.width, 1.0)
    for layer in range(shape.layers):
        norm(f"blk.{layer}.attn_norm.weight")
        matrix(f"blk.{layer}.attn_q.weight", heads_width, shape.width, 2 * shape.width**-0.5)
        matrix(f"blk.{layer}.attn_k.weight", kv_width, shape.width, 2 * shape.width**-0.5)
        matrix(f"blk.{layer}.attn_v.weight", kv_width, shape.width)
        matrix(f"blk.{layer}.attn_output.weight", shape.width, heads_width)
        norm(f"blk.{layer}.ffn_norm.weight")
        matrix(f"blk.{layer}.ffn_gate.weight", shape.hidden, shape.width)
        matrix(f"blk.{layer}.ffn_up.weight", shape.hidden, shape.width)
        matrix(f"blk.{layer}.ffn_down.weight", shape.width, shape.hidden)
    norm("output_norm.weight")
    if not shape.tied:
        matrix("output.weight", shape.vocab, shape.width)
    return TinyFile(_metadata(shape), tensors)


def _metadata(shape: TinyShape) -> dict[str, Any]:
    return {
        "general.architecture": "llama",
        "llama.block_count": shape.layers,
        "llama.context_length": 4096,
        "llama.embedding_length": shape.width,
        "llama.feed_forward_length": shape.hidden,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.kv_heads,
        "llama.attention.key_length": shape.head_dim,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
    }
