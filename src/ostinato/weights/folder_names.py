"""Names of the files in a folder of safetensors.

Knows names only. What is in the files is for safetensors.py and checkpoint.py.
"""

from __future__ import annotations

import os
from typing import Final

CONFIG: Final = "config.json"
SUFFIX: Final = ".safetensors"
WHOLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"


def is_checkpoint(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder has the files of a model in safetensors."""
    try:
        files = os.listdir(folder)
    except (OSError, ValueError):  # ValueError: a path with a NUL
        return False
    return CONFIG in files and any(file.endswith(SUFFIX) for file in files)
