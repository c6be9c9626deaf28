"""What the bytes of each tensor type stand for: one function a type, whose body reads like the block.

Knows the block layouts of `ggml-common.h` in the ggml project (`block_q4_0` and so on). Must not know what a
tensor or a file is. Each function takes the bytes of whole blocks, (n * block_bytes,) uint8, and returns
their elements in file order, rounded step by step as the `gguf` package's `quants.dequantize` does, to the
same bits; tests/unit/test_quants.py holds it to that. Next file: quants.py, which names them in its table.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float32]
Numbers: TypeAlias = npt.NDArray[Any]

_IQ4_VALUES: Final = np.array(
    (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.float32
)
"""What the 4 bits of IQ4_NL and IQ4_XS stand for: `kvalues_iq4nl`."""
_MXFP4_VALUES: Final = np.array((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), np.float32)
"""What the 4 bits of MXFP4 stand for: `kvalues_mxfp4`, twice the numbers of the OCP format E2M1."""


def f32(data: Bytes) -> Numbers:
    return data.view("<f4")


def f16(data: Bytes) -> Numbers:
    return data.view("<f2")


def bf16(data: Bytes) -> Floats:
    """The upper half of a float32."""
    return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)


def q4_0(data: Bytes) -> Floats:
    block = _blocks(data, ("scale", "<f2"), ("quants", "u1", 16))
    return _scaled(_column(block["scale"]), _fields(block["quants"], 4, 16) - np.float32(8))


def q4_1(data: Bytes) -> Floats:
    block = _blocks(data, ("scale", "<f2"), ("minimum", "<f2"), ("quants", "u1", 16))
    numbers = _scaled(_column(block["scale"]), _fields(block["quants"], 4, 16))
    numbers += _column(block["minimum"])[:, np.newaxis]
    return numbers


def q5_0(data: Bytes) -> Floats:
    block = _blocks(data, ("scale", "<f2"), ("high", "u1", 4), ("low", "u1", 16))
    quants = _fields(block["low"], 4, 16) | _fields(block["high"], 1, 1) << 4
    return _scaled(_column(block["scale"]), quants - np.float32(16))


def q5_1(data: Bytes) -> Floats:
    block = _blocks(data, ("scale", "<f2"), ("minimum", "<f2"), ("high", "u1", 4), ("low", "u1", 16))
    quants = _fields(block["low"], 4, 16) | _fields(block["high"], 1, 1) << 4
    numbers = _scaled(_column(block["scale"]), quants)
    numbers += _column(block["minimum"])[:, np.newaxis]
    return numbers


def q8_0(data: Bytes) -> Floats:
    block = _blocks(data, ("scale", "<f2"), ("quants", "i1", 32))
    return _scaled(_column(block["scale"]), block["quants"])


def q2_k(data: Bytes) -> Floats:
    """16 scales and 16 minima of 4 bits, one of each a byte."""
    block = _blocks(data, ("factors", "u1", 16), ("quants", "u1", 64), ("scale", "<f2"), ("minimum", "<f2"))
    numbers = _scaled(_column(block["scale"]) * (block["factors"] & 15), _fields(block["quants"], 2, 32))
    numbers -= (_column(block["minimum"]) * (block["factors"] >> 4))[:, :, np.newaxis]
    return numbers


def q3_k(data: Bytes) -> Floats:
    """16 scales of 6 bits: the low four in 8 bytes, the high two in the next 4."""
    block = _blocks(data, ("high", "u1", 32), ("low", "u1", 64), ("factors", "u1", 12), ("scale", "<f2"))
    factors = _fields(block["factors"][:, :8], 4, 8) | _fields(block["factors"][:, 8:], 2, 4) << 4
    quants = _fields(block["low"], 2, 32) | _fields(block["high"], 1, 32) << 2
    return _scaled(_column(block["scale"]) * (factors - np.float32(32)), quants - np.float32(4))


def q4_k(data: Bytes) -> Floats:
    block = _blocks(data, ("scale", "<f2"), ("minimum", "<f2"), ("factors", "u1", 12), ("quants", "u1", 128))
    return _with_minima(block, _fields(block["quants"], 4, 32))


def q5_k(data: Bytes) -> Floats:
    fields = (
        ("scale", "<f2"),
        ("minimum", "<f2"),
        ("factors", "u1", 12),
        ("high", "u1", 32),
        ("low", "u1", 128),
    )
    block = _blocks(data, *fields)
    return _with_minima(block, _fields(block["low"], 4, 32) | _fields(block["high"], 1, 32) << 4)


def q6_k(data: Bytes) -> Floats:
    block = _blocks(data, ("low", "u1", 128), ("high", "u1", 64), ("factors", "i1", 16), ("scale", "<f2"))
    quants = _fields(block["low"], 4, 64) | _fields(block["high"], 2, 32) << 4
    return _scaled(_column(block["scale"]) * block["factors"], quants - np.float32(32))


def iq4_nl(data: Bytes) -> Floats:
    block = _blocks(data, ("scale", "<f2"), ("quants", "u1", 16))
    return _scaled(_column(block["scale"]), _IQ4_VALUES[_fields(block["quants"], 4, 16)])


def iq4_xs(data: Bytes) -> Floats:
    """8 scales of 6 bits: the high two together, then the low four."""
    block = _blocks(data, ("scale", "<f2"), ("high", "u1", 2), ("low", "u1", 4), ("quants", "u1", 128))
    factors = _fields(block["low"], 4, 1) | _fields(block["high"], 2, 1) << 4
    scales = _column(block["scale"]) * (factors - np.float32(32))
    return _scaled(scales, _IQ4_VALUES[_fields(block["quants"], 4, 16)])


def mxfp4(data: Bytes) -> Floats:
    """The scale is a power of two, half of the OCP format's E8M0 since the values are doubled."""
    block = _blocks(data, ("exponent", "u1"), ("quants", "u1", 16))
    exponents = block["exponent"].astype(np.int32) - 128
    scales: Floats = np.ldexp(np.float32(1), exponents)[:, np.newaxis]
    return _scaled(scales, _MXFP4_VALUES[_fields(block["quants"], 4, 16)])


def _blocks(data: Bytes, *fields: tuple[Any, ...]) -> npt.NDArray[np.void]:
    """View bytes as blocks: one record of the given fields each, in the order of the file."""
    blocks: npt.NDArray[np.void] = data.view(np.dtype(list(fields)))
    return blocks


def _column(factors: Numbers) -> Floats:
    """Return one number per block (n,) as a float32 column (n, 1)."""
    return factors.astype(np.float32)[:, np.newaxis]


def _fields(packed: Bytes, width: int, run: int) -> Bytes:
    """Unpack bit fields: (n, b) bytes to (n, b * 8 // width) values below 2**width.

    Of every `run` bytes the lowest fields come first, then all the next ones, up to the highest.
    """
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, np.newaxis]
    fields = packed.reshape(len(packed), -1, 1, run) >> shifts
    fields &= np.uint8(2**width - 1)
    return fields.reshape(len(packed), -1)


def _scaled(scales: Floats, quants: Numbers) -> Floats:
    """Multiply the m-th part of a block's values (n, e) by the m-th of its scales (n, m): (n, m, e // m)."""
    numbers: Floats = scales[:, :, np.newaxis] * quants.reshape(*scales.shape, -1)
    return numbers


def _with_minima(block: npt.NDArray[np.void], quants: Numbers) -> Floats:
    """Finish Q4_K and Q5_K: 8 scales and 8 minima of 6 bits in 12 bytes.

    The first four of each have a byte, whose two high bits are those of the last four; the low bits of these
    share the last four bytes.
    """
    low, middle, high = np.split(block["factors"], 3, axis=1)
    scales = np.concatenate((low & 63, (high & 15) | (low >> 6 << 4)), axis=1)
    minima = np.concatenate((middle & 63, (high >> 4) | (middle >> 6 << 4)), axis=1)
    numbers = _scaled(_column(block["scale"]) * scales, quants)
    numbers -= (_column(block["minimum"]) * minima)[:, :, np.newaxis]
    return numbers
