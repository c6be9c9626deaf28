"""The op vocabulary: what a model is made of, and a Program: a flat tuple of ops over named buffers.

A Program is built once per model by `models/`, knows nothing of batches, processors or packed weights, and is
run by an executor (`reference.py`, `cpu/`). Every buffer holds one float32 row per token; `Program.widths`
gives its width. An op reads and writes whole buffers; `x` is overwritten in place only where an op says so.
Next on a request's path: `batch.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu"]
"""silu(x) = x / (1 + e^-x); gelu(x) = x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))."""


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of the model file, by its own name, or a part of one.

    `paired_heads`: in GGUF's llama layout the rows of each query and key head come as adjacent rotary pairs
    (0, 1), (2, 3), …; a value above zero is the number of such heads, and asks the executor to read each
    head's even rows first, then its odd rows, so that one rotary op (halves) serves every architecture.
    Source: the row order that GGUF converters give `attn_q`, `attn_k`.

    `rows`: the half-open interval of rows that is meant, of a matrix that holds several; of a tensor with
    three axes (experts, rows, columns) the rows of all experts are counted one after another. None: all.
    """

    name: str
    paired_heads: int = 0
    rows: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Embed:
    """out[t] = scale · weight[token_ids[t]]"""

    out: str
    weight: Weight
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """out = x / sqrt(mean(x²) + eps) · weight, or out += … with `accumulate`.

    With `heads` above 1 each of so many equal parts of a row is a vector of its own, all with the same
    weight of that part's width. `x` and `out` may be the same buffer.
    """

    x: str
    out: str
    weight: Weight
    eps: float
    heads: int = 1
    accumulate: bool = False


@dataclass(frozen=True, slots=True)
class MatMul:
    """out = scale · (x · weightᵀ + bias), or out += … with `accumulate`."""

    x: str
    out: str
    weight: Weight
    accumulate: bool = False
    bias: Weight | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotate x in place, head by head: (x[i], x[i + F]) turned by the angle position · frequencies[i], and
    both multiplied with `magnitude`.

    F frequencies rotate the first 2·F dimensions of a head and leave the others as they are. Scaling of the
    context is a matter of the frequencies (`models/rope.py`). Source: RoFormer, arXiv 2104.09864.
    """

    x: str
    heads: int
    head_dim: int
    frequencies: tuple[float, ...]
    magnitude: float = 1.0


@dataclass(frozen=True, slots=True)
class StoreKV:
    """Append the rows of k and v to the KV blocks of `layer` at the tokens' positions."""

    k: str
    v: str
    layer: int


@dataclass(frozen=True, slots=True)
class Attention:
    """out = softmax(soft(scale · q · Kᵀ)) · V over positions up to the token's own; heads share KV heads.

    `window`: a token at position p sees positions above p - window only; 0: all. `softcap`: soft(s) =
    softcap · tanh(s / softcap); 0: s itself.
    """

    q: str
    out: str
    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int = 0
    softcap: float = 0.0


@dataclass(frozen=True, slots=True)
class GatedUnit:
    """out = activation(gate) · up"""

    gate: str
    up: str
    out: str
    activation: Activation = "silu"


@dataclass(frozen=True, slots=True)
class Experts:
    """out += Σ share_e · down_e(activation(gate_e(x)) · up_e(x)) over the `chosen` experts e of a token with
    the highest `scores` (ties to the lowest number), in that order.

    Shares are softmax(scores) over all experts; with `normalized`, divided by their sum over the chosen.
    `gate`, `up` and `down` hold a matrix an expert.
    """

    x: str
    scores: str
    out: str
    gate: tuple[Weight, ...]
    up: tuple[Weight, ...]
    down: tuple[Weight, ...]
    chosen: int
    normalized: bool = True
    activation: Activation = "silu"


@dataclass(frozen=True, slots=True)
class Softcap:
    """x = cap · tanh(x / cap), in place."""

    x: str
    cap: float


@dataclass(frozen=True, slots=True)
class TakeRows:
    """out = the rows of x whose logits are wanted. Ops after it work on R rows instead of T tokens."""

    x: str
    out: str


Op = Embed | RmsNorm | MatMul | Rope | StoreKV | Attention | GatedUnit | Experts | Softcap | TakeRows

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
