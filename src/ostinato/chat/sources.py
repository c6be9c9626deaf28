"""Where a model's tokenizer, chat template and sampling defaults are: in a GGUF file, or beside safetensors.

Knows which route a path takes. Must not know tensors, nor how either route reads. Next on the request's path:
`vocabulary.py` or `folder.py`, then `tokenizer.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ostinato.chat.folder import read_folder
from ostinato.chat.tokenizer import Tokenizer
from ostinato.chat.vocabulary import Vocabulary, read_vocabulary
from ostinato.sampling.defaults import ModelDefaults, config_defaults, gguf_defaults
from ostinato.weights.folder_names import folder_of
from ostinato.weights.small_files import read_json_object


def tokenizer_of(
    path: Path, metadata: Mapping[str, Any], *, vocab_size: int, pre_tokenizer: str | None = None
) -> Tokenizer:
    """Build the tokenizer of the model at a path; see `Tokenizer.from_metadata` and `from_folder`."""
    folder = folder_of(path)
    if folder is None:
        return Tokenizer.from_metadata(metadata, pre_tokenizer)
    return Tokenizer.from_folder(folder, vocab_size=vocab_size, pre_tokenizer=pre_tokenizer)


def vocabulary_of(path: Path, metadata: Mapping[str, Any]) -> Vocabulary:
    """Read the vocabulary of the model at a path, its template and end tokens with it; makes no encoder.

    Raises:
        UnsupportedModelError, ModelFileError: as for the tokenizer.
    """
    folder = folder_of(path)
    return read_vocabulary(metadata) if folder is None else read_folder(folder)[0]


def defaults_of(path: Path, metadata: Mapping[str, Any]) -> ModelDefaults:
    """Return what the makers of the model at a path say about sampling.

    Raises:
        ModelFileError: generation_config.json is damaged.
    """
    folder = folder_of(path)
    if folder is None:
        return gguf_defaults(metadata)
    return config_defaults(read_json_object(folder / "generation_config.json", optional=True))
