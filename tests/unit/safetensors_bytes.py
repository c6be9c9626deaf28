"""Build safetensors files for tests, sound or wrong on purpose."""

from __future__ import annotations

import json
import struct
from typing import Any

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I8": 1}
Header = dict[str, Any]


def entry(dtype: str, shape: list[int], begin: int) -> Header:
    """Return the description of a tensor whose data begins at this byte of the data."""
    num_bytes = SIZES[dtype]
    for size in shape:
        num_bytes *= size
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, begin + num_bytes]}


def sound_header() -> Header:
    """Return the header of three tensors, 40 bytes of data in all, not in the order of their places."""
    return {
        "__metadata__": {"format": "pt"},
        "b": entry("BF16", [2, 4], 12),
        "a": entry("F32", [3], 0),
        "c": entry("F16", [1, 2, 3], 28),
    }


def build(header: Header | str | bytes, data: bytes = bytes(range(40)), length: int | None = None) -> bytes:
    """Return a file of this header and data; `length`: what it says of the header's length."""
    text = (
        header if isinstance(header, bytes) else (header if isinstance(header, str) else json.dumps(header))
    )
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data
