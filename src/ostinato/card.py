"""ModelCard: what a model file says about itself, without loading its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ostinato.chat.end_tokens import end_ids
from ostinato.chat.sources import defaults_of, vocabulary_of
from ostinato.chat.vocabulary import Vocabulary, read_chat_template
from ostinato.errors import ModelFileError, ModelNotFoundError
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
    """A model file at a glance. What the file does not say is None.

    end_tokens: the texts of the tokens that end an answer, None where the tokenizer cannot be read. sampling:
    what the makers say of it, None where they say nothing; ignored_sampling: what of that is ignored and why.
    """

    path: Path
    size_bytes: int
    title: str | None
    architecture: str
    parameters: int
    context_length: int | None
    vocab_size: int | None
    tensor_types: dict[str, TensorTypeShare]
    has_template: bool
    end_tokens: tuple[str, ...] | None
    sampling: dict[str, float] | None
    ignored_sampling: tuple[str, ...]
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
        vocabulary, defaults = _vocabulary(file), defaults_of(file.path, file.metadata)
        return ModelCard(
            path=file.path,
            size_bytes=file.size_bytes,
            title=_text(file, "general.name"),
            architecture=architecture(file),
            parameters=sum(tensor.num_elements for tensor in file.tensors.values()),
            context_length=_number(file, f"{architecture(file)}.context_length"),
            vocab_size=None if vocabulary is None else len(vocabulary.tokens),
            tensor_types=_tensor_types(loaded),
            has_template=_template(file, vocabulary) is not None,
            end_tokens=None if vocabulary is None else _end_tokens(vocabulary),
            sampling=None if defaults.sampling is None else defaults.sampling.changed(),
            ignored_sampling=defaults.ignored,
            licence=_text(file, "general.license"),
        )


def _vocabulary(file: ModelFile) -> Vocabulary | None:
    try:
        return vocabulary_of(file.path, file.metadata)
    except (ModelFileError, ModelNotFoundError):  # which loading will say; the rest of the card is still true
        return None


def _template(file: ModelFile, vocabulary: Vocabulary | None) -> str | None:
    return read_chat_template(file.metadata) if vocabulary is None else vocabulary.chat_template


def _end_tokens(vocabulary: Vocabulary) -> tuple[str, ...]:
    return tuple(vocabulary.tokens[token_id] for token_id in sorted(end_ids(vocabulary)))


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
