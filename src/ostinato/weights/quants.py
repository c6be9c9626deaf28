"""The tensor types of GGUF: how many bytes a block takes, and what numbers its bytes stand for.

Knows the block layouts and nothing else: no files, no names of tensors, no packing for kernels. Every known
type has its sizes here, so that any file can be bounds-checked; it can be dequantised once its row names a
decoder: to add one, write the function in decoders.py and name it in the row. Next file: tensors.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ostinato.errors import UnsupportedModelError
from ostinato.weights import decoders
from ostinato.weights.decoders import Bytes, Floats, Numbers

__all__ = ["TENSOR_TYPES", "Bytes", "Floats", "TensorType"]

_PIECE_ELEMENTS = 2**16
"""How many elements are decoded at once: what the processor's cache holds."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """A way to store numbers: blocks of `block_size` elements in `block_bytes` bytes, along a tensor's rows.

    `decode` maps the bytes of whole blocks (n * block_bytes,) to an array of their elements in file order, of
    any shape. It is None where dequantising is not built.
    """

    name: str
    id: int
    block_size: int
    block_bytes: int
    decode: Callable[[Bytes], Numbers] | None = None

    @property
    def is_supported(self) -> bool:
        """Whether tensors of this type can be dequantised."""
        return self.decode is not None

    def num_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of a tensor of this shape, whose last axis must hold whole blocks."""
        return math.prod(shape) // self.block_size * self.block_bytes

    def dequantize(self, data: Bytes, shape: tuple[int, ...]) -> Floats:
        """Return the numbers that `data` stands for.

        Non-finite scales and products too large for float32 give what IEEE 754 says, without a warning.

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
        blocks = data.reshape(-1, self.block_bytes)
        numbers = np.empty((len(blocks), self.block_size), np.float32)
        step = max(1, _PIECE_ELEMENTS // self.block_size)
        with np.errstate(invalid="ignore", over="ignore"):
            for begin in range(0, len(blocks), step):
                piece = self.decode(blocks[begin : begin + step].reshape(-1))
                numbers[begin : begin + step] = piece.reshape(-1, self.block_size)
        return numbers.reshape(shape)


TENSOR_TYPES: Mapping[int, TensorType] = MappingProxyType(
    {
        known.id: known
        for known in (
            TensorType("F32", 0, 1, 4, decoders.f32),
            TensorType("F16", 1, 1, 2, decoders.f16),
            TensorType("Q4_0", 2, 32, 18, decoders.q4_0),
            TensorType("Q4_1", 3, 32, 20, decoders.q4_1),
            TensorType("Q5_0", 6, 32, 22, decoders.q5_0),
            TensorType("Q5_1", 7, 32, 24, decoders.q5_1),
            TensorType("Q8_0", 8, 32, 34, decoders.q8_0),
            TensorType("Q8_1", 9, 32, 40),
            TensorType("Q2_K", 10, 256, 84, decoders.q2_k),
            TensorType("Q3_K", 11, 256, 110, decoders.q3_k),
            TensorType("Q4_K", 12, 256, 144, decoders.q4_k),
            TensorType("Q5_K", 13, 256, 176, decoders.q5_k),
            TensorType("Q6_K", 14, 256, 210, decoders.q6_k),
            TensorType("Q8_K", 15, 256, 292),
            TensorType("IQ2_XXS", 16, 256, 66),
            TensorType("IQ2_XS", 17, 256, 74),
            TensorType("IQ3_XXS", 18, 256, 98),
            TensorType("IQ1_S", 19, 256, 50),
            TensorType("IQ4_NL", 20, 32, 18, decoders.iq4_nl),
            TensorType("IQ3_S", 21, 256, 110),
            TensorType("IQ2_S", 22, 256, 82),
            TensorType("IQ4_XS", 23, 256, 136, decoders.iq4_xs),
            TensorType("I8", 24, 1, 1),
            TensorType("I16", 25, 1, 2),
            TensorType("I32", 26, 1, 4),
            TensorType("I64", 27, 1, 8),
            TensorType("F64", 28, 1, 8),
            TensorType("IQ1_M", 29, 256, 56),
            TensorType("BF16", 30, 1, 2, decoders.bf16),
            TensorType("Q4_0_4_4", 31, 32, 18),
            TensorType("Q4_0_4_8", 32, 32, 18),
            TensorType("Q4_0_8_8", 33, 32, 18),
            TensorType("TQ1_0", 34, 256, 54),
            TensorType("TQ2_0", 35, 256, 66),
            TensorType("IQ4_NL_4_4", 36, 32, 18),
            TensorType("IQ4_NL_4_8", 37, 32, 18),
            TensorType("IQ4_NL_8_8", 38, 32, 18),
            TensorType("MXFP4", 39, 32, 17, decoders.mxfp4),
            TensorType("NVFP4", 40, 64, 36),
            TensorType("Q1_0", 41, 128, 18),
        )
    }
)
"""The known tensor types by GGUF id. A row: name, id, elements and bytes of a block, decoder where built."""


def _supported_types() -> str:
    return ", ".join(known.name for known in TENSOR_TYPES.values() if known.is_supported)
