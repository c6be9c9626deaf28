"""Where the tests find real models, if they are there: nothing is fetched for a test."""

from __future__ import annotations

import os
from pathlib import Path

from ostinato import config

FILES = {
    "smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma3-270m": "gemma3-270m.gguf",
    "qwen2.5-coder-1.5b": "qwen2.5-coder-1.5b.gguf",
}


def model_path(name: str) -> Path | None:
    """Return the file of a built-in model, or None if it is not on this machine.

    Looked for in the folder that `OSTINATO_TEST_MODELS` names, then among the pulled models: `<name>/*.gguf`,
    or the file under its published name.
    """
    chosen = os.environ.get("OSTINATO_TEST_MODELS")
    for folder in ([Path(chosen)] if chosen else []) + [config.models_folder()]:
        found = sorted((folder / name).glob("*.gguf")) or sorted(folder.glob(FILES[name]))
        if found:
            return found[0]
    return None
