"""Open a model, whatever its format."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

from ostinato.weights.checkpoint import Checkpoint, open_checkpoint
from ostinato.weights.folder_names import folder_of
from ostinato.weights.gguf import GGUFFile, open_gguf

OpenModel: TypeAlias = GGUFFile | Checkpoint


def open_model(path: str | os.PathLike[str]) -> OpenModel:
    """Open a GGUF file, a folder of safetensors, or a file of such a folder.

    Raises:
        ModelNotFoundError: there is no such file.
        ModelFileError: it cannot be read, is damaged, or is neither.
        UnsupportedModelError: a folder of an architecture that is not built.
    """
    path = Path(path)
    return open_gguf(path) if folder_of(path) is None else open_checkpoint(path)
