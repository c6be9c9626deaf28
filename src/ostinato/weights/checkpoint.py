"""Open a safetensors folder as a model file: GGUF's names, keys and meanings, so that models/ serves both.

Where the formats store a thing differently, it is here that it is made alike:

* names of tensors (hf_names.py) and metadata (hf_config.py) become GGUF's;
* rows of q and k are not in rotary pairs here: the key `rope.halves` says so;
* Gemma's norm weights lack the one that is added to them: they are read, added to and held in float32;
* the experts of a layer are a tensor each, as they once were in GGUF: models/ takes them so, or stacked;
* factors of LongRoPE are numbers in config.json: they become tensors.

Next file: tensors.py, for what an open file offers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final

import numpy as np

from ostinato.errors import ModelFileError
from ostinato.weights.folder_names import CONFIG
from ostinato.weights.hf_config import architecture_of, metadata_of, rope_factors
from ostinato.weights.hf_names import Architecture, gguf_name
from ostinato.weights.mapped import shown_path
from ostinato.weights.quants import TENSOR_TYPES, Floats
from ostinato.weights.safetensors import SafetensorsFiles, find_weights, open_safetensors
from ostinato.weights.small_files import read_json_object
from ostinato.weights.tensors import MetadataValue, Tensor

_F32: Final = TENSOR_TYPES[0]
_OUTPUT: Final = "output.weight"


class Checkpoint:
    """An open folder: a `ModelFile`, made by `open_checkpoint`. Closes at the end of a `with` block."""

    def __init__(
        self,
        path: Path,
        metadata: dict[str, MetadataValue],
        tensors: dict[str, Tensor],
        files: SafetensorsFiles,
    ) -> None:
        self.path: Final = path
        self.metadata: Final[Mapping[str, MetadataValue]] = MappingProxyType(metadata)
        self.size_bytes: Final = files.size_bytes
        self._tensors: Mapping[str, Tensor] | None = MappingProxyType(tensors)
        self._files = files

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors by GGUF's names.

        Raises:
            ValueError: the folder was closed.
        """
        if self._tensors is None:
            raise ValueError(f"{self.path} is closed")
        return self._tensors

    def close(self) -> None:
        """Let go of the tensors; `metadata` stays. Tensors held elsewhere keep the maps while they live."""
        self._tensors = None
        self._files.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a folder with config.json and safetensors, or one safetensors file or index in such a folder.

    Raises:
        ModelNotFoundError: a file is missing.
        ModelFileError: a file cannot be read or is damaged, or they do not fit together.
        UnsupportedModelError: the architecture, or a type of numbers, is not built.
    """
    is_folder = path.is_dir()
    folder = path if is_folder else path.parent
    written = read_json_object(folder / CONFIG)
    architecture = architecture_of(folder / CONFIG, written)
    config = {**architecture.defaults, **written}
    metadata = metadata_of(folder / CONFIG, config) | {"general.name": folder.resolve().name}
    factors = rope_factors(folder / CONFIG, config)
    files = open_safetensors(find_weights(folder) if is_folder else path)
    try:
        tensors = _renamed(path, architecture, files.tensors)
        _settle_output(path, tensors, bool(config.get("tie_word_embeddings")))
    except BaseException:
        files.close()
        raise
    for name, numbers in factors.items():
        tensors[name] = _held(name, np.array(numbers, np.float32))
    return Checkpoint(path, metadata, tensors, files)


def _renamed(path: Path, architecture: Architecture, files: Mapping[str, Tensor]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for own_name, tensor in files.items():
        name = gguf_name(architecture, own_name)
        if name is None:
            continue
        if name in tensors:
            raise ModelFileError(f"{shown_path(path)}: two tensors mean {name!r}, one of them {own_name!r}")
        if architecture.norms_from_one and name.endswith("norm.weight"):
            tensors[name] = _held(name, 1 + tensor.dequantize())
        else:
            tensors[name] = Tensor(name, tensor.shape, tensor.type, tensor.data, tensor.offset)
    return tensors


def _settle_output(path: Path, tensors: dict[str, Tensor], tied: bool) -> None:
    """GGUF says by the output matrix alone whether the embedding serves as one."""
    if tied:
        tensors.pop(_OUTPUT, None)
    elif _OUTPUT not in tensors:
        raise ModelFileError(
            f"{shown_path(path)}: tensor 'lm_head.weight' is missing, and config.json does not say that the "
            "embedding is the output matrix, too"
        )


def _held(name: str, numbers: Floats) -> Tensor:
    """Return a tensor of numbers in memory."""
    numbers.flags.writeable = False
    return Tensor(name, numbers.shape, _F32, numbers.view(np.uint8).reshape(-1), 0)
