"""ModelCard: what a model file says about itself, without loading its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ostinato.chat.vocabulary import read_chat_template
from ostinato.models.keys import architecture
from ostinato.weights.opened import open_model
from ostinato.weights.quantize import format_named, quantized
from ostinato.weights.sources import Progress, resolve
from ostinato.weights.tensors import ModelFile


@dataclass(frozen=True, slots=True)
class TensorTypeShare:
    """How much of a model is stored in one tensor type."""

    tensors: int
    parameters: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model file at a glance. What the file does not say is None."""

    path: Path
    size_bytes: int
    title: str | None
    architecture: str
    parameters: int
    context_length: int | None
    vocab_size: int | None
    tensor_types: dict[str, TensorTypeShare]
    has_template: bool
    licence: str | None


def describe(
    name: str, *, pull: bool = False, quantize: str | None = None, progress: Progress | None = None
) -> ModelCard:
    """Return the card of a model, by built-in name, `hf:` name or path; fetch it first only with `pull`.

    With `quantize`, q8_0 or q4_1, the tensor types are those that it is loaded to.

    Raises:
        ModelNotFoundError, DownloadError: the name leads nowhere, or cannot be fetched.
        ModelFileError: the file is damaged.
        InvalidRequestError: `quantize` is not known, or the file has nothing to quantise.
    """
    target = None if quantize is None else format_named(quantize)
    with open_model(resolve(name, pull=pull, progress=progress)) as file:
        loaded = file if target is None else quantized(file, target)
        return ModelCard(
            path=file.path,
            size_bytes=file.size_bytes,
            title=_text(file, "general.name"),
            architecture=architecture(file),
            parameters=sum(tensor.num_elements for tensor in file.tensors.values()),
            context_length=_number(file, f"{architecture(file)}.context_length"),
            vocab_size=_length(file, "tokenizer.ggml.tokens"),
            tensor_types=_tensor_types(loaded),
            has_template=read_chat_template(file.metadata) is not None,
            licence=_text(file, "general.license"),
        )


def _tensor_types(file: ModelFile) -> dict[str, TensorTypeShare]:
    """Return each tensor type's share, the largest first."""
    shares: dict[str, TensorTypeShare] = {}
    for tensor in file.tensors.values():
        old = shares.get(tensor.type.name, TensorTypeShare(0, 0, 0))
        shares[tensor.type.name] = TensorTypeShare(
            old.tensors + 1, old.parameters + tensor.num_elements, old.size_bytes + tensor.nbytes
        )
    return dict(sorted(shares.items(), key=lambda item: -item[1].size_bytes))


def _text(file: ModelFile, key: str) -> str | None:
    value = file.metadata.get(key)
    return value if isinstance(value, str) and value else None


def _number(file: ModelFile, key: str) -> int | None:
    value = file.metadata.get(key)
    return value if isinstance(value, int) else None


def _length(file: ModelFile, key: str) -> int | None:
    value = file.metadata.get(key)
    return len(value) if isinstance(value, list) else None
