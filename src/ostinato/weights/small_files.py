"""Read the small files of model folders, JSON and text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ostinato.errors import ModelFileError, ModelNotFoundError
from ostinato.weights.mapped import shown_path

MAX_BYTES = 2**28


def read_json_object(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """Return the object in a JSON file; where there is no such file and it is optional, an empty one.

    Raises:
        ModelNotFoundError: there is no such file.
        ModelFileError: it cannot be read, is too large or is no JSON object.
    """
    if optional and not path.exists():
        return {}
    shown = shown_path(path)
    content = _content(path)
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{shown} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ModelFileError(f"{shown} holds a JSON {type(found).__name__}; expected an object")
    return found


def read_text(path: Path) -> str:
    """Return the text in a file of UTF-8.

    Raises:
        ModelNotFoundError: there is no such file.
        ModelFileError: it cannot be read, is too large or is no UTF-8.
    """
    try:
        return _content(path).decode()
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{shown_path(path)} is no text in UTF-8: {error}") from None


def _content(path: Path) -> bytes:
    shown = shown_path(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ModelFileError(f"{shown} has more than {MAX_BYTES} bytes; is it the file it is called?")
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise ModelNotFoundError(f"{shown} does not exist: fetch all of the model") from None
    except OSError as error:
        raise ModelFileError(f"{shown} cannot be read: {error.strerror}") from None
