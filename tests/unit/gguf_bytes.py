"""Build GGUF files byte by byte for tests, sound or wrong on purpose, and remember where each field lies."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)
F32, F16, Q4_0, Q8_0, Q4_K = 0, 1, 2, 8, 12

_FORMATS = {
    UINT8: "<B",
    INT8: "<b",
    UINT16: "<H",
    INT16: "<h",
    UINT32: "<I",
    INT32: "<i",
    FLOAT32: "<f",
    BOOL: "<B",
    UINT64: "<Q",
    INT64: "<q",
    FLOAT64: "<d",
}

Typed = tuple[int, Any]
"""A metadata value: (type, number or text), or (ARRAY, (element type, [elements])), nested likewise."""


class Field(NamedTuple):
    """A field of a built file: what it is, where it begins, how many bytes it takes."""

    label: str
    offset: int
    num_bytes: int


@dataclass(frozen=True)
class TensorSpec:
    """A tensor record to write: dimensions in the order of the file, offset from the begin of the data."""

    name: str | bytes
    dims: Sequence[int]
    type: int = F32
    offset: int = 0


class GGUFBytes:
    """A file in the making: its bytes and its fields."""

    def __init__(self) -> None:
        self.raw = bytearray()
        self.fields: list[Field] = []

    def put(self, label: str, raw: bytes) -> None:
        self.fields.append(Field(label, len(self.raw), len(raw)))
        self.raw += raw

    def number(self, label: str, kind: int, value: float) -> None:
        self.put(label, struct.pack(_FORMATS[kind], value))

    def text(self, label: str, text: str | bytes) -> None:
        raw = text if isinstance(text, bytes) else text.encode()
        self.number(f"{label} length", UINT64, len(raw))
        self.put(label, raw)

    def value(self, label: str, kind: int, value: Any) -> None:
        if kind == STRING:
            self.text(label, value)
        elif kind == ARRAY:
            element_kind, elements = value
            self.number(f"{label} element type", UINT32, element_kind)
            self.number(f"{label} element count", UINT64, len(elements))
            for index, element in enumerate(elements):
                self.value(f"{label} element {index}", element_kind, element)
        else:
            self.number(label, kind, value)

    def field(self, label: str) -> Field:
        """Return the one field of that name."""
        (found,) = (field for field in self.fields if field.label == label)
        return found

    def patched(self, label: str, raw: bytes) -> bytes:
        """Return the file with one field overwritten."""
        field = self.field(label)
        return bytes(self.raw[: field.offset]) + raw + bytes(self.raw[field.offset + field.num_bytes :])


def build(
    metadata: Sequence[tuple[str | bytes, Typed]] = (),
    tensors: Sequence[TensorSpec] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    alignment: int = 32,
) -> GGUFBytes:
    """Write a file: header, metadata, tensor records, padding, data. Nothing is checked."""
    out = GGUFBytes()
    out.put("header magic", b"GGUF")
    out.number("header version", UINT32, version)
    out.number("header tensor count", UINT64, len(tensors))
    out.number("header metadata count", UINT64, len(metadata))
    for index, (key, (kind, value)) in enumerate(metadata):
        out.text(f"metadata[{index}] key", key)
        label = f"metadata[{index}] {key!r}"
        out.number(f"{label} type", UINT32, kind)
        out.value(label, kind, value)
    for index, tensor in enumerate(tensors):
        out.text(f"tensor[{index}] name", tensor.name)
        label = f"tensor[{index}] {tensor.name!r}"
        out.number(f"{label} dimension count", UINT32, len(tensor.dims))
        for axis, dim in enumerate(tensor.dims):
            out.number(f"{label} dimension {axis}", UINT64, dim)
        out.number(f"{label} type", UINT32, tensor.type)
        out.number(f"{label} offset", UINT64, tensor.offset)
    if tensors:
        out.put("padding", bytes(-len(out.raw) % alignment))
        out.put("data", data)
    return out
