"""The tensor types of GGUF: how many bytes a block takes, and what numbers its bytes stand for.

Knows the block layouts and nothing else: no files, no names of tensors, no packing for kernels. Every known
type has its sizes here, so that any file can be bounds-checked; it can be dequantised once its row names a
decoder. To add one, write the function and name it in the row. Layouts: `ggml-common.h` of the ggml project
(`block_q4_0` and so on). Each decoder gives the bits of the `gguf` package's `quants.dequantize`, and
tests/unit/test_quants.py holds it to that. Next file: tensors.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ostinato.errors import UnsupportedModelError

Bytes: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TensorType:
    """A way to store numbers: blocks of `block_size` elements in `block_bytes` bytes, along a tensor's rows.

    `decode` maps the bytes of whole blocks (n * block_bytes,) to a new array of their elements in file order,
    (n, block_size) or flat. It is None where dequantising is not built.
    """

    name: str
    id: int
    block_size: int
    block_bytes: int
    decode: Callable[[Bytes], Floats] | None = None

    @property
    def is_supported(self) -> bool:
        """Whether tensors of this type can be dequantised."""
        return self.decode is not None

    def num_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of a tensor of this shape, whose last axis must hold whole blocks."""
        return math.prod(shape) // self.block_size * self.block_bytes

    def dequantize(self, data: Bytes, shape: tuple[int, ...]) -> Floats:
        """Return the numbers that `data` stands for.

        Non-finite scales give non-finite numbers, as IEEE 754 has it, without a warning.

        Args:
            data: (num_bytes(shape),) uint8, contiguous, of any byte alignment; not changed.
            shape: one axis or more, slowest first; the last one must hold whole blocks.

        Returns:
            (shape) float32, new and owned by the caller.

        Raises:
            UnsupportedModelError: no decoder is built for this type; the message lists those that are.
            ValueError: `data` and `shape` disagree.
        """
        if self.decode is None:
            raise UnsupportedModelError(
                f"type {self.name} is not supported; supported types: {_supported_types()}"
            )
        if shape[-1] % self.block_size or data.shape != (self.num_bytes(shape),):
            raise ValueError(f"data of shape {data.shape} cannot hold a {self.name} tensor of shape {shape}")
        with np.errstate(invalid="ignore"):
            return self.decode(data).reshape(shape)


def _blocks(data: Bytes, *fields: tuple[Any, ...]) -> npt.NDArray[np.void]:
    """View bytes as blocks: one record of the given fields each, in the order of the file."""
    blocks: npt.NDArray[np.void] = data.view(np.dtype(list(fields)))
    return blocks


def _column(factors: npt.NDArray[Any]) -> Floats:
    """Return one number per block (n,) as a float32 column (n, 1), to spread over the block's elements."""
    return factors.astype(np.float32)[:, np.newaxis]


def _nibbles(packed: Bytes) -> Bytes:
    """Unpack (n, b) bytes to (n, 2b) values below 16: all the low halves first, then all the high halves."""
    return np.concatenate((packed & 15, packed >> 4), axis=1)


def _f32(data: Bytes) -> Floats:
    return data.view("<f4").astype(np.float32)


def _f16(data: Bytes) -> Floats:
    return data.view("<f2").astype(np.float32)


def _bf16(data: Bytes) -> Floats:
    """The upper half of a float32."""
    return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q4_0(data: Bytes) -> Floats:
    block = _blocks(data, ("scale", "<f2"), ("quants", "u1", 16))
    return _column(block["scale"]) * (_nibbles(block["quants"]) - np.float32(8))


def _q4_1(data: Bytes) -> Floats:
    block = _blocks(data, ("scale", "<f2"), ("minimum", "<f2"), ("quants", "u1", 16))
    return _column(block["scale"]) * _nibbles(block["quants"]) + _column(block["minimum"])


def _q8_0(data: Bytes) -> Floats:
    block = _blocks(data, ("scale", "<f2"), ("quants", "i1", 32))
    quants: npt.NDArray[np.int8] = block["quants"]
    return _column(block["scale"]) * quants


TENSOR_TYPES: Mapping[int, TensorType] = MappingProxyType(
    {
        known.id: known
        for known in (
            TensorType("F32", 0, 1, 4, _f32),
            TensorType("F16", 1, 1, 2, _f16),
            TensorType("Q4_0", 2, 32, 18, _q4_0),
            TensorType("Q4_1", 3, 32, 20, _q4_1),
            TensorType("Q5_0", 6, 32, 22),
            TensorType("Q5_1", 7, 32, 24),
            TensorType("Q8_0", 8, 32, 34, _q8_0),
            TensorType("Q8_1", 9, 32, 40),
            TensorType("Q2_K", 10, 256, 84),
            TensorType("Q3_K", 11, 256, 110),
            TensorType("Q4_K", 12, 256, 144),
            TensorType("Q5_K", 13, 256, 176),
            TensorType("Q6_K", 14, 256, 210),
            TensorType("Q8_K", 15, 256, 292),
            TensorType("IQ2_XXS", 16, 256, 66),
            TensorType("IQ2_XS", 17, 256, 74),
            TensorType("IQ3_XXS", 18, 256, 98),
            TensorType("IQ1_S", 19, 256, 50),
            TensorType("IQ4_NL", 20, 32, 18),
            TensorType("IQ3_S", 21, 256, 110),
            TensorType("IQ2_S", 22, 256, 82),
            TensorType("IQ4_XS", 23, 256, 136),
            TensorType("I8", 24, 1, 1),
            TensorType("I16", 25, 1, 2),
            TensorType("I32", 26, 1, 4),
            TensorType("I64", 27, 1, 8),
            TensorType("F64", 28, 1, 8),
            TensorType("IQ1_M", 29, 256, 56),
            TensorType("BF16", 30, 1, 2, _bf16),
            TensorType("Q4_0_4_4", 31, 32, 18),
            TensorType("Q4_0_4_8", 32, 32, 18),
            TensorType("Q4_0_8_8", 33, 32, 18),
            TensorType("TQ1_0", 34, 256, 54),
            TensorType("TQ2_0", 35, 256, 66),
            TensorType("IQ4_NL_4_4", 36, 32, 18),
            TensorType("IQ4_NL_4_8", 37, 32, 18),
            TensorType("IQ4_NL_8_8", 38, 32, 18),
            TensorType("MXFP4", 39, 32, 17),
            TensorType("NVFP4", 40, 64, 36),
            TensorType("Q1_0", 41, 128, 18),
        )
    }
)
"""The known tensor types by GGUF id. A row: name, id, elements and bytes of a block, decoder where built."""


def _supported_types() -> str:
    return ", ".join(known.name for known in TENSOR_TYPES.values() if known.is_supported)
