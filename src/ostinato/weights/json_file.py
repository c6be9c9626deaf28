"""Read the small JSON files of model folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ostinato.errors import ModelFileError, ModelNotFoundError
from ostinato.weights.mapped import shown_path

MAX_BYTES = 2**28


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        ModelNotFoundError: there is no such file.
        ModelFileError: it cannot be read, is too large or is no JSON object.
    """
    shown = shown_path(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ModelFileError(f"{shown} has more than {MAX_BYTES} bytes; is it the file it is called?")
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise ModelNotFoundError(f"{shown} does not exist: fetch all of the model") from None
    except OSError as error:
        raise ModelFileError(f"{shown} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{shown} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ModelFileError(f"{shown} holds a JSON {type(found).__name__}; expected an object")
    return found
