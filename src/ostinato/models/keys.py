"""Keys: typed, checked look-ups in the metadata of a model file.

Metadata keys carry the architecture's name as a prefix (`llama.block_count`). Source: the key tables of the
GGUF specification. Next file: config.py.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ostinato.errors import ModelFileError
from ostinato.weights.tensors import ModelFile

MAX_DIMENSION = 2**24
"""No width, count or length of a model this runtime can hold comes near this; a larger number is damage."""
MAX_LAYERS = 4096
"""Of layers, and of experts in one; more than any model has, few enough to list."""


class Keys:
    """Look-ups under the prefix of a file's architecture. A key that is missing and has no default raises."""

    def __init__(self, file: ModelFile) -> None:
        self.file, self.prefix = file, architecture(file)

    def fault(self, key: str, problem: str) -> ModelFileError:
        """Return the error that says what is wrong with a key."""
        return ModelFileError(f"{self.file.path}: metadata '{self.prefix}.{key}' {problem}")

    def integer(
        self, key: str, default: int | None = None, *, least: int = 1, most: int = MAX_DIMENSION
    ) -> int:
        """Return a whole number from `least` to `most`."""
        value = self._value(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.fault(key, f"is {value!r:.80}; expected a whole number from {least} to {most}")
        return value

    def number(self, key: str, default: float | None = None, *, or_zero: bool = False) -> float:
        """Return a positive number, with `or_zero` perhaps zero, or the default, which may be anything."""
        if default is not None and f"{self.prefix}.{key}" not in self.file.metadata:
            return default
        value = self._value(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
            raise self.fault(key, f"is {value!r:.80}; expected a positive number")
        if value == 0 and not or_zero:
            raise self.fault(key, "is 0; expected a positive number")
        return float(value)

    def text(self, key: str, default: str) -> str:
        """Return a text."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.fault(key, f"is {value!r:.80}; expected a text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Return a truth value."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.fault(key, f"is {value!r:.80}; expected true or false")
        return value

    def flags(self, key: str, count: int) -> tuple[bool, ...] | None:
        """Return `count` truth values, or None where the key is missing or no array."""
        value = self.file.metadata.get(f"{self.prefix}.{key}")
        if not isinstance(value, np.ndarray):
            return None
        if value.dtype != np.bool_ or value.shape != (count,):
            raise self.fault(key, f"is an array of {len(value)} {value.dtype}; expected {count} bool")
        return tuple(value.tolist())

    def _value(self, key: str, default: object) -> Any:
        value = self.file.metadata.get(f"{self.prefix}.{key}", default)
        if value is None:
            raise self.fault(key, "is missing")
        return value


def architecture(file: ModelFile) -> str:
    """Return the architecture's name; raise ModelFileError if the file names none."""
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or not name:
        raise ModelFileError(f"{file.path}: metadata 'general.architecture' is {name!r}; expected a name")
    return name
