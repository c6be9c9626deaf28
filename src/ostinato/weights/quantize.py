"""Quantise a model file's float matrices while it is loaded.

Knows the formats that are worth making and which tensors they suit: matrices of whole blocks in F32, F16 or
BF16; vectors and quantised tensors stay as they are. Must not know what a tensor is for. `quantized` reads
nothing: a tensor's bytes are made by `Tensor.load`, a few rows at a time, so that no more than the one tensor
that is being packed takes memory. Each format gives the bits of the `gguf` package's `quants.quantize`, and
tests/unit/test_quantize.py holds it to that. Next file: tensors.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from ostinato.errors import InvalidRequestError, ModelFileError
from ostinato.weights.quants import TENSOR_TYPES, Bytes, Floats, TensorType
from ostinato.weights.tensors import MetadataValue, ModelFile, Tensor

_FLOAT_TYPES: Final = ("F32", "F16", "BF16")
_PIECE_ELEMENTS: Final = 2**16
"""How many elements are quantised at once: what the processor's cache holds; whole blocks of every format."""


@dataclass(frozen=True, slots=True)
class Format:
    """A format to quantise to. `encode` maps numbers (n, block_size) to n blocks as the file would have them:
    float16 factors, and integers named `quants`.
    """

    name: str
    type: TensorType
    encode: Callable[[Floats], npt.NDArray[np.void]]


@dataclass(frozen=True, slots=True)
class QuantizedFile:
    """A `ModelFile` whose float matrices are quantised when they are read."""

    path: Path
    metadata: Mapping[str, MetadataValue]
    tensors: Mapping[str, Tensor]


def format_named(name: str) -> Format:
    """Return a format by its name.

    Raises:
        InvalidRequestError: there is none of that name.
    """
    if name not in FORMATS:
        raise InvalidRequestError(f"quantize is {name!r}; allowed: {', '.join(FORMATS)}", "quantize")
    return FORMATS[name]


def quantized(file: ModelFile, target: Format) -> QuantizedFile:
    """Return the file with its float matrices in another format.

    Raises:
        InvalidRequestError: it has none, so that there is nothing to quantise.
    """
    suitable = {name for name, tensor in file.tensors.items() if _is_suitable(tensor, target)}
    if not suitable:
        types = ", ".join(sorted({tensor.type.name for tensor in file.tensors.values()}))
        raise InvalidRequestError(
            f"quantize is {target.name}, but {file.path} has no matrices of floats: its tensors are {types}; "
            "leave it out",
            "quantize",
        )
    tensors = {
        name: _quantized(tensor, target) if name in suitable else tensor
        for name, tensor in file.tensors.items()
    }
    return QuantizedFile(file.path, file.metadata, MappingProxyType(tensors))


def _is_suitable(tensor: Tensor, target: Format) -> bool:
    is_matrix = len(tensor.shape) >= 2 and tensor.shape[-1] % target.type.block_size == 0
    return is_matrix and tensor.type.name in _FLOAT_TYPES


def _quantized(tensor: Tensor, target: Format) -> Tensor:
    return replace(tensor, type=target.type, convert=partial(_convert, tensor, target))


def _convert(tensor: Tensor, target: Format) -> Bytes:
    """Return the tensor's numbers in the target format, new and owned by the caller."""
    block_size, block_bytes = target.type.block_size, target.type.block_bytes
    element_bytes, num_elements = tensor.type.block_bytes, tensor.num_elements
    quantized = np.empty((num_elements // block_size, block_bytes), np.uint8)
    for begin in range(0, num_elements, _PIECE_ELEMENTS):
        end = min(begin + _PIECE_ELEMENTS, num_elements)
        piece = tensor.data[begin * element_bytes : end * element_bytes]
        with np.errstate(all="ignore"):
            blocks = target.encode(tensor.type.dequantize(piece, (end - begin,)).reshape(-1, block_size))
        _check_factors(blocks, tensor, target)
        quantized[begin // block_size : end // block_size] = blocks.view(np.uint8).reshape(-1, block_bytes)
    return quantized.reshape(-1)


def _check_factors(blocks: npt.NDArray[np.void], tensor: Tensor, target: Format) -> None:
    factors = [name for name in blocks.dtype.names or () if name != "quants"]
    if not all(np.isfinite(blocks[name]).all() for name in factors):
        raise ModelFileError(
            f"tensor {tensor.name!r} cannot be quantised to {target.name}: it has numbers that are infinite, "
            "NaN or too large; load the model without quantize"
        )


def _q8_0(numbers: Floats) -> npt.NDArray[np.void]:
    blocks = np.empty(len(numbers), np.dtype([("scale", "<f2"), ("quants", "i1", 32)]))
    scale = np.abs(numbers).max(axis=1, keepdims=True) / np.float32(127)
    scaled = numbers * _reciprocal(scale)
    whole = np.trunc(scaled)
    scaled -= whole
    whole += np.trunc(2 * scaled)  # halves away from zero
    blocks["scale"], blocks["quants"] = scale[:, 0], whole
    return blocks


def _q4_1(numbers: Floats) -> npt.NDArray[np.void]:
    blocks = np.empty(len(numbers), np.dtype([("scale", "<f2"), ("minimum", "<f2"), ("quants", "u1", 16)]))
    minimum = numbers.min(axis=1, keepdims=True)
    scale = (numbers.max(axis=1, keepdims=True) - minimum) / np.float32(15)
    scaled = (numbers - minimum) * _reciprocal(scale)
    scaled += np.float32(0.5)
    values = np.minimum(scaled.astype(np.uint8), 15)
    blocks["scale"], blocks["minimum"] = scale[:, 0], minimum[:, 0]
    blocks["quants"] = values[:, :16] | values[:, 16:] << 4
    return blocks


def _reciprocal(scale: Floats) -> Floats:
    """Return 1 / scale, and 0 for 0."""
    return np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)


FORMATS: Final[Mapping[str, Format]] = MappingProxyType(
    {
        "q8_0": Format("q8_0", TENSOR_TYPES[8], _q8_0),
        "q4_1": Format("q4_1", TENSOR_TYPES[3], _q4_1),
    }
)
"""The formats by name."""
