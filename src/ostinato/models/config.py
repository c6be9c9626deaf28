"""TransformerConfig: what the metadata of a model file says about its shape, checked.

Metadata keys carry the architecture's name as a prefix (`llama.block_count`). Source: the key tables of the
GGUF specification.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ostinato.errors import ModelFileError, UnsupportedModelError
from ostinato.ops.program import KVShape, Op, Program
from ostinato.weights.tensors import ModelFile

MAX_DIMENSION = 2**24
"""No width, count or length of a model this runtime can hold comes near this; a larger number is damage."""


class _Keys:
    """Typed look-ups in the metadata of one file, under the prefix of its architecture."""

    def __init__(self, file: ModelFile, prefix: str) -> None:
        self.file, self.prefix = file, prefix

    def fault(self, key: str, problem: str) -> ModelFileError:
        return ModelFileError(f"{self.file.path}: metadata '{self.prefix}.{key}' {problem}")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.file.metadata.get(f"{self.prefix}.{key}", default)
        if value is None:
            raise self.fault(key, "is missing")
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_DIMENSION:
            raise self.fault(key, f"is {value!r}; expected a whole number from 1 to {MAX_DIMENSION}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.file.metadata.get(f"{self.prefix}.{key}", default)
        if value is None:
            raise self.fault(key, "is missing")
        if not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise self.fault(key, f"is {value!r}; expected a positive number")
        return float(value)

    def text(self, key: str, default: str) -> str:
        value = self.file.metadata.get(f"{self.prefix}.{key}", default)
        if not isinstance(value, str):
            raise self.fault(key, f"is {value!r}; expected a text")
        return value


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """The shape of a decoder-only transformer.

    Widths and lengths are counts; `norm_eps` and `rope_base` are pure numbers.
    """

    num_layers: int
    width: int
    hidden_width: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    norm_eps: float
    rope_base: float
    output_weight: str

    @staticmethod
    def from_file(file: ModelFile) -> TransformerConfig:
        """Read the configuration; raise ModelFileError where a key is missing, wrong or inconsistent."""
        keys = _Keys(file, architecture(file))
        _refuse_rope_scaling(keys)
        width, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
        head_dim = keys.integer("attention.key_length", width // heads or None)
        kv_heads = keys.integer("attention.head_count_kv", heads)
        if heads % kv_heads:
            raise keys.fault(
                "attention.head_count", f"is {heads}, not a multiple of the {kv_heads} key-value heads"
            )
        if head_dim % 2 or keys.integer("rope.dimension_count", head_dim) != head_dim:
            raise UnsupportedModelError(
                f"{file.path}: rotary embedding of only a part of a head of {head_dim} is not supported"
            )
        return TransformerConfig(
            num_layers=keys.integer("block_count"),
            width=width,
            hidden_width=keys.integer("feed_forward_length"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            vocab_size=_vocab_size(file),
            context_length=keys.integer("context_length"),
            norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
            rope_base=keys.number("rope.freq_base", 10000.0),
            output_weight="output.weight" if "output.weight" in file.tensors else "token_embd.weight",
        )

    def program(self, ops: list[Op]) -> Program:
        """Return the program of these ops over the buffers of this configuration."""
        heads_width, kv_width = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        widths = dict.fromkeys(("x", "normed", "last", "last_normed"), self.width)
        widths |= dict.fromkeys(("q", "attended"), heads_width) | dict.fromkeys(("k", "v"), kv_width)
        widths |= dict.fromkeys(("gate", "up", "hidden"), self.hidden_width)
        widths["logits"] = self.vocab_size
        kv = KVShape(self.num_layers, self.num_kv_heads, self.head_dim)
        return Program(tuple(ops), widths, kv, self.vocab_size, self.context_length)


def architecture(file: ModelFile) -> str:
    """Return the architecture's name; raise ModelFileError if the file names none."""
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or not name:
        raise ModelFileError(f"{file.path}: metadata 'general.architecture' is {name!r}; expected a name")
    return name


def _vocab_size(file: ModelFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelFileError(f"{file.path}: tensor 'token_embd.weight' is missing or not a matrix")
    return embedding.shape[0]


def _refuse_rope_scaling(keys: _Keys) -> None:
    kind = keys.text("rope.scaling.type", "none")
    factors = [keys.number(key, 1.0) for key in ("rope.scaling.factor", "rope.scale_linear")]
    if kind != "none" or factors != [1.0, 1.0]:
        raise UnsupportedModelError(
            f"{keys.file.path}: rope scaling ({kind}, {max(factors)}) is not supported"
        )


def check_tensors(file: ModelFile, names: Mapping[str, tuple[int, int] | int]) -> None:
    """Raise where a needed tensor is missing or misshapen, or where the file holds one without a use."""
    missing = [name for name in names if name not in file.tensors]
    if missing:
        raise ModelFileError(f"{file.path}: {len(missing)} tensors are missing: {_listed(missing)}")
    for name, expected in names.items():
        shape = file.tensors[name].shape
        if shape != (expected if isinstance(expected, tuple) else (expected,)):
            raise ModelFileError(f"{file.path}: tensor '{name}' has shape {shape}; expected {expected}")
    unused = [name for name in file.tensors if name not in names]
    if unused:
        raise UnsupportedModelError(
            f"{file.path}: {len(unused)} tensors have no use in this architecture: {_listed(unused)}"
        )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
