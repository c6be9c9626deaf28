"""What a model file offers the rest of the package, whatever its format: metadata values and tensors.

Knows no format: gguf.py implements `ModelFile`, and another reader can. Must not know what a tensor is for.
The bytes of a tensor are a view of the file's memory map: read when first used, and shared between processes.
Next file: models/, which finds its configuration in `metadata` and its weights in `tensors`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy.typing as npt

from ostinato.errors import UnsupportedModelError
from ostinato.weights.quants import Bytes, Floats, TensorType

MetadataArray: TypeAlias = "npt.NDArray[Any] | list[str] | list[MetadataArray]"
MetadataValue: TypeAlias = "bool | int | float | str | MetadataArray"
"""Arrays of numbers are read-only NumPy arrays of the file's type; strings and nested arrays are in lists."""


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A named array in a model file.

    `shape` is in NumPy order, slowest axis first: a matrix is (rows N, columns K). `data` is what the file
    stores, uint8, a read-only view of the memory map, and `offset` is where it begins in its file, in bytes.
    `convert` makes the bytes of `type` where the file stores another one; None: it stores `type`.
    """

    name: str
    shape: tuple[int, ...]
    type: TensorType
    data: Bytes = field(repr=False)
    offset: int
    convert: Callable[[], Bytes] | None = field(default=None, repr=False)

    @property
    def num_elements(self) -> int:
        """The count of numbers in the tensor."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes the tensor takes in its type."""
        return self.type.num_bytes(self.shape)

    def load(self) -> Bytes:
        """Return the tensor in its type, (nbytes,) uint8: the file's bytes, or new ones that are made now.

        Raises:
            ModelFileError: its numbers cannot be converted.
        """
        return self.data if self.convert is None else self.convert()

    def dequantize(self) -> Floats:
        """Return the tensor's numbers, (shape) float32, new and owned by the caller.

        Raises:
            UnsupportedModelError: no decoder is built for the tensor's type.
        """
        try:
            return self.type.dequantize(self.load(), self.shape)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"tensor {self.name!r}: {error}") from None


class ModelFile(Protocol):
    """An open model file. `metadata` and `tensors` are in file order and read-only."""

    @property
    def path(self) -> Path:
        """Where the file is, for messages."""

    @property
    def metadata(self) -> Mapping[str, MetadataValue]:
        """The file's keys and values."""

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The file's tensors by name."""
