"""Names of the files in a folder of safetensors.

Knows names only. What is in the files is for safetensors.py and checkpoint.py.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

CONFIG: Final = "config.json"
SUFFIX: Final = ".safetensors"
WHOLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"


def folder_of(path: Path) -> Path | None:
    """Return the folder of safetensors that a path means, itself or by a file in it; None for a GGUF file."""
    if path.is_dir():
        return path
    return path.parent if path.name.endswith((SUFFIX, f"{SUFFIX}.index.json")) else None


def is_checkpoint(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder has the files of a model in safetensors."""
    try:
        files = os.listdir(folder)
    except (OSError, ValueError):  # ValueError: a path with a NUL
        return False
    return CONFIG in files and any(file.endswith(SUFFIX) for file in files)
