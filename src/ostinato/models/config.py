"""TransformerConfig: what the metadata of a model file says about its shape, checked.

Holds what all architectures share; what only one has (a soft cap, a residual scale) that architecture's file
reads by itself. Next file: blocks.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.errors import ModelFileError, UnsupportedModelError
from ostinato.models.keys import MAX_LAYERS, Keys
from ostinato.weights.tensors import ModelFile


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """The shape of a decoder-only transformer.

    Widths and lengths are counts; `norm_eps` is a pure number. `halves`: whether query and key rows hold the
    two halves of each rotary pair apart, for architectures that GGUF stores pair by pair.
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
    output_weight: str
    halves: bool

    @staticmethod
    def from_file(file: ModelFile) -> TransformerConfig:
        """Read the configuration; raise ModelFileError where a key is missing, wrong or inconsistent."""
        keys = Keys(file)
        width, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
        return TransformerConfig(
            num_layers=keys.integer("block_count", most=MAX_LAYERS),
            width=width,
            hidden_width=keys.integer("feed_forward_length"),
            num_heads=heads,
            num_kv_heads=_kv_heads(keys, heads),
            head_dim=_head_dim(keys, width // heads),
            vocab_size=_vocab_size(file),
            context_length=keys.integer("context_length"),
            norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
            output_weight="output.weight" if "output.weight" in file.tensors else "token_embd.weight",
            halves=keys.flag("rope.halves", False),
        )

    @property
    def heads_width(self) -> int:
        """The numbers in the queries of a token."""
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """The numbers in the keys, or the values, of a token."""
        return self.num_kv_heads * self.head_dim


def _kv_heads(keys: Keys, heads: int) -> int:
    kv_heads = keys.integer("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise keys.fault(
            "attention.head_count", f"is {heads}, not a multiple of the {kv_heads} key-value heads"
        )
    return kv_heads


def _head_dim(keys: Keys, default: int) -> int:
    head_dim = keys.integer("attention.key_length", default or None)
    value_dim = keys.integer("attention.value_length", head_dim)
    if value_dim != head_dim:
        raise UnsupportedModelError(
            f"{keys.file.path}: heads with keys of {head_dim} and values of {value_dim} are not supported"
        )
    return head_dim


def _vocab_size(file: ModelFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelFileError(f"{file.path}: tensor 'token_embd.weight' is missing or not a matrix")
    return embedding.shape[0]
