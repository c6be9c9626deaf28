"""The op vocabulary: what a model is made of, and a Program: a flat tuple of ops over named buffers.

A Program is built once per model by `models/`, knows nothing of batches, processors or packed weights, and is
run by an executor (`reference.py`, `cpu/`). Every buffer holds one float32 row per token; `Program.widths`
gives its width. An op reads and writes whole buffers; `x` is overwritten in place only where an op says so.
Next on a request's path: `batch.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu"]


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of the model file, by its own name.

    `paired_heads`: in GGUF's llama layout the rows of each query and key head come as adjacent rotary pairs
    (0, 1), (2, 3), …; a value above zero is the number of such heads, and asks the executor to read each
    head's even rows first, then its odd rows, so that one rotary op (halves) serves every architecture.
    Source: the row order that GGUF converters give `attn_q`, `attn_k`.
    """

    name: str
    paired_heads: int = 0


@dataclass(frozen=True, slots=True)
class Embed:
    """out[t] = weight[token_ids[t]]"""

    out: str
    weight: Weight


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """out = x / sqrt(mean(x²) + eps) · weight"""

    x: str
    out: str
    weight: Weight
    eps: float


@dataclass(frozen=True, slots=True)
class MatMul:
    """out = x · weightᵀ, or out += x · weightᵀ with `accumulate`."""

    x: str
    out: str
    weight: Weight
    accumulate: bool = False


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotate x in place, head by head: (x[i], x[i + D/2]) turned by position · base^(-2i/D).

    Source: RoFormer, arXiv 2104.09864.
    """

    x: str
    heads: int
    head_dim: int
    base: float


@dataclass(frozen=True, slots=True)
class StoreKV:
    """Append the rows of k and v to the KV blocks of `layer` at the tokens' positions."""

    k: str
    v: str
    layer: int


@dataclass(frozen=True, slots=True)
class Attention:
    """out = softmax(scale · q · Kᵀ) · V over positions up to the token's own; heads share KV heads."""

    q: str
    out: str
    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float


@dataclass(frozen=True, slots=True)
class GatedUnit:
    """out = activation(gate) · up"""

    gate: str
    up: str
    out: str
    activation: Activation = "silu"


@dataclass(frozen=True, slots=True)
class TakeRows:
    """out = the rows of x whose logits are wanted. Ops after it work on R rows instead of T tokens."""

    x: str
    out: str


Op = Embed | RmsNorm | MatMul | Rope | StoreKV | Attention | GatedUnit | TakeRows

LOGITS = "logits"


@dataclass(frozen=True, slots=True)
class KVShape:
    """What a token leaves in the cache: for K and for V, `heads` vectors of `head_dim` a layer."""

    num_layers: int
    heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Program:
    """The ops of a model, the widths of its buffers, and what a caller must know to run it.

    The last op writes the buffer `LOGITS` (R, vocab_size). `context_length`: the positions the model was
    trained for, in tokens.
    """

    ops: tuple[Op, ...]
    widths: dict[str, int]
    kv: KVShape
    vocab_size: int
    context_length: int
