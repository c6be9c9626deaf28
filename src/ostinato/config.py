"""Where Ostinato keeps its files and what the environment says. Standard library only; anyone may import this
module.

Variables: `OSTINATO_HOME` (folder for models and kernels), `OSTINATO_SIMD` (avx512, avx2 or generic),
`OSTINATO_THREADS`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

DEFAULT_MODEL = "smollm2"


def home() -> Path:
    """Return the folder that holds models and compiled kernels; it may not exist yet.

    `OSTINATO_HOME` if set, else the platform's cache folder: `$XDG_CACHE_HOME/ostinato` or
    `~/.cache/ostinato`, `~/Library/Caches/ostinato` on macOS, `%LOCALAPPDATA%\\ostinato\\Cache` on Windows.
    """
    chosen = os.environ.get("OSTINATO_HOME")
    if chosen:
        return Path(chosen).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "ostinato"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "ostinato" / "Cache"
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg and os.path.isabs(xdg) else Path.home() / ".cache") / "ostinato"


def models_folder() -> Path:
    """Return the folder of pulled models."""
    return home() / "models"


def kernels_folder() -> Path:
    """Return the folder of compiled kernels."""
    return home() / "kernels"
