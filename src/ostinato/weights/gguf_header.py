"""Check the header of a GGUF file: all the bytes before the tensor data.

Knows the layout of the container and what can be wrong with it. Must not know what a key or a tensor is for,
except `general.alignment`, which belongs to the container. Specification: `docs/gguf.md` of the ggml project.

The walk goes from field to field and keeps only keys, names and places, so a damaged file costs no memory.
Each count, length, type and offset is checked before it is used; the first wrong one ends the walk: one line
that names the file, the field, the byte, what was found and what was expected.
Next file: gguf.py, which called and now builds the values.
"""

from __future__ import annotations

import itertools
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np

from ostinato.errors import ModelFileError
from ostinato.weights.mapped import shown_path
from ostinato.weights.quants import TENSOR_TYPES, TensorType

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
MAX_DIMENSIONS: Final = 4
MAX_NAME_BYTES: Final = 65535
MAX_ARRAY_DEPTH: Final = 4
DEFAULT_ALIGNMENT: Final = 32
MIN_ALIGNMENT: Final = 8
MAX_ALIGNMENT: Final = 2**21  # a huge page

UINT32: Final = 4
BOOL: Final = 7
STRING: Final = 8
ARRAY: Final = 9
NUMBERS: Final[dict[int, np.dtype[Any]]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    BOOL: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}

U32: Final = struct.Struct("<I")
U64: Final = struct.Struct("<Q")
ARRAY_HEAD: Final = struct.Struct("<IQ")  # element type, element count

_MIN_BYTES: Final = {STRING: U64.size, ARRAY: ARRAY_HEAD.size} | {
    kind: dtype.itemsize for kind, dtype in NUMBERS.items()
}
"""The least that a value of each type takes."""
# Key length, key, value type, value.
_MIN_ENTRY_BYTES: Final = 8 + 1 + 4 + 1
# Name length, name, dimension count, one dimension, tensor type, offset.
_MIN_RECORD_BYTES: Final = 8 + 1 + 4 + 8 + 4 + 8

_SHORT: Final = " (the file is damaged or cut short)"


class _Walker:
    """An offset into the map that moves only over bytes that are there and mean what they should."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.end = len(data)
        self.offset = 0

    def fail(self, field: str, offset: int, found: object, expected: object) -> NoReturn:
        shown = shown_path(self.path)
        raise ModelFileError(f"{shown}: {field} at byte {offset}: found {found}, expected {expected}")

    def skip(self, field: str, num_bytes: int) -> int:
        """Move over bytes that must be there; return where they begin."""
        begin, left = self.offset, self.end - self.offset
        if num_bytes > left:
            self.fail(field, begin, f"{left} bytes before the end of the file", f"{num_bytes}{_SHORT}")
        self.offset += num_bytes
        return begin

    def u32(self, field: str) -> int:
        value: int = U32.unpack_from(self.data, self.skip(field, U32.size))[0]
        return value

    def u64(self, field: str) -> int:
        value: int = U64.unpack_from(self.data, self.skip(field, U64.size))[0]
        return value

    def count(self, field: str, min_bytes: int) -> int:
        """Read a count of things that take at least `min_bytes` each, all in the rest of the file."""
        begin = self.offset
        count = self.u64(field)
        left = self.end - self.offset
        if count > left // min_bytes:
            self.fail(field, begin, count, f"at most {left // min_bytes} in the {left} bytes left{_SHORT}")
        return count

    def name(self, field: str) -> str:
        """Read a metadata key or the name of a tensor."""
        begin = self.offset
        num_bytes = self.count(f"{field} length", 1)
        if not 1 <= num_bytes <= MAX_NAME_BYTES:
            self.fail(f"{field} length", begin, num_bytes, f"1 to {MAX_NAME_BYTES}")
        begin = self.skip(field, num_bytes)
        try:
            return self.data[begin : self.offset].decode()
        except UnicodeDecodeError as error:
            offset = begin + error.start
            self.fail(field, offset, f"byte 0x{self.data[offset]:02x} ({error.reason})", "UTF-8")

    def kind(self, field: str) -> int:
        """Read the type of a metadata value."""
        begin = self.offset
        kind = self.u32(field)
        if kind not in _MIN_BYTES:
            self.fail(field, begin, kind, f"a metadata value type, 0 to {max(_MIN_BYTES)}")
        return kind

    def value(self, field: str, kind: int) -> None:
        """Move over a metadata value."""
        if kind == STRING:
            self.string(field)
        elif kind == ARRAY:
            self.array(field, depth=1)
        else:
            self.numbers(field, kind, 1)

    def numbers(self, field: str, kind: int, count: int) -> None:
        begin = self.skip(field, count * NUMBERS[kind].itemsize)
        if kind == BOOL and count > 0:
            values = np.frombuffer(self.data, np.uint8, count, begin)
            largest = int(values.argmax())
            if values[largest] > 1:
                self.fail(field, begin + largest, f"the bool {values[largest]}", "0 or 1")

    def array(self, field: str, depth: int) -> None:
        if depth > MAX_ARRAY_DEPTH:
            self.fail(field, self.offset, f"arrays nested {depth} deep", f"at most {MAX_ARRAY_DEPTH}")
        kind = self.kind(f"{field} element type")
        count = self.count(f"{field} element count", _MIN_BYTES[kind])
        if kind == STRING:
            self.strings(field, count)
        elif kind == ARRAY:
            for index in range(count):
                self.array(f"{field} element {index}", depth + 1)
        else:
            self.numbers(field, kind, count)

    def string(self, field: str) -> None:
        self.skip(field, self.count(f"{field} length", 1))

    def strings(self, field: str, count: int) -> None:
        """Move over strings: `string` in a loop, in the few steps that a vocabulary of 300,000 can afford."""
        data, end, offset, read_u64 = self.data, self.end, self.offset, U64.unpack_from
        for index in range(count):
            following = offset + 8
            if following <= end:
                following += read_u64(data, offset)[0]
            if following > end:
                self.offset = offset
                self.string(f"{field} element {index}")  # fails, and says why
            offset = following
        self.offset = offset


class Entry(NamedTuple):
    """A metadata value that was walked over: its name in messages, its type and where it begins."""

    field: str
    kind: int
    offset: int


class Record(NamedTuple):
    """What the file says of a tensor; its `offset` counts from where the data begins, read at `offset_at`."""

    field: str
    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int
    offset_at: int

    @property
    def num_bytes(self) -> int:
        return self.type.num_bytes(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    """What was found before the tensor data, and the byte at which that data begins."""

    version: int
    alignment: int
    entries: Mapping[str, Entry]
    records: tuple[Record, ...]
    data_begin: int


def walk_header(path: Path, data: mmap.mmap) -> Header:
    """Check the header of the file mapped in `data`; `path` is for messages.

    Raises:
        ModelFileError: a field is wrong.
    """
    walker = _Walker(path, data)
    version, num_tensors, num_entries = _walk_start(walker)
    entries = _walk_metadata(walker, num_entries)
    alignment = _alignment(walker, entries)
    records = _walk_records(walker, num_tensors, alignment)
    data_begin = -(-walker.offset // alignment) * alignment
    _check_extents(walker, records, data_begin)
    return Header(version, alignment, entries, records, data_begin)


def _walk_start(walker: _Walker) -> tuple[int, int, int]:
    """Return the version and the counts of tensors and of metadata entries."""
    magic = walker.data[: len(MAGIC)]
    if magic != MAGIC:
        walker.fail("header magic", 0, magic, MAGIC)
    walker.skip("header magic", len(MAGIC))
    version = walker.u32("header version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        found = f"version {swapped} in big-endian order" if swapped in VERSIONS else version
        walker.fail("header version", len(MAGIC), found, "2 or 3 in little-endian order")
    num_tensors = walker.count("header tensor count", _MIN_RECORD_BYTES)
    num_entries = walker.count("header metadata count", _MIN_ENTRY_BYTES)
    return version, num_tensors, num_entries


def _walk_metadata(walker: _Walker, count: int) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for index in range(count):
        field, begin = f"metadata[{index}]", walker.offset
        key = walker.name(f"{field} key")
        field = f"{field} {_shown_name(key)}"
        if key in entries:
            walker.fail(field, begin, "the same key again", "each key once")
        kind = walker.kind(f"{field} type")
        entries[key] = Entry(field, kind, walker.offset)
        walker.value(field, kind)
    return entries


def _alignment(walker: _Walker, entries: Mapping[str, Entry]) -> int:
    """Return what the place of the data, and of each tensor in it, is a multiple of, in bytes."""
    entry = entries.get("general.alignment")
    if entry is None:
        return DEFAULT_ALIGNMENT
    if entry.kind != UINT32:
        walker.fail(f"{entry.field} type", entry.offset - U32.size, entry.kind, f"{UINT32} (uint32)")
    alignment: int = U32.unpack_from(walker.data, entry.offset)[0]
    if not MIN_ALIGNMENT <= alignment <= MAX_ALIGNMENT or alignment.bit_count() != 1:
        expected = f"a power of two, {MIN_ALIGNMENT} to {MAX_ALIGNMENT}"
        walker.fail(entry.field, entry.offset, alignment, expected)
    return alignment


def _walk_records(walker: _Walker, count: int, alignment: int) -> tuple[Record, ...]:
    records: dict[str, Record] = {}
    for index in range(count):
        begin = walker.offset
        record = _walk_record(walker, index)
        if record.name in records:
            walker.fail(record.field, begin, "the same name again", "each tensor once")
        if record.offset % alignment:
            expected = f"a multiple of {alignment}"
            walker.fail(f"{record.field} offset", record.offset_at, record.offset, expected)
        records[record.name] = record
    return tuple(records.values())


def _walk_record(walker: _Walker, index: int) -> Record:
    name = walker.name(f"tensor[{index}] name")
    field = f"tensor[{index}] {_shown_name(name)}"
    shape = _walk_shape(walker, field)
    type_at = walker.offset
    tensor_type = TENSOR_TYPES.get(type_id := walker.u32(f"{field} type"))
    if tensor_type is None:
        walker.fail(f"{field} type", type_at, type_id, f"a known tensor type id, {max(TENSOR_TYPES)} or less")
    if shape[-1] % tensor_type.block_size:
        row_at = type_at - U64.size * len(shape)
        expected = f"a multiple of {tensor_type.block_size}, the block of {tensor_type.name}"
        walker.fail(f"{field} row length", row_at, shape[-1], expected)
    offset_at = walker.offset
    return Record(field, name, shape, tensor_type, walker.u64(f"{field} offset"), offset_at)


def _walk_shape(walker: _Walker, field: str) -> tuple[int, ...]:
    """Return the shape with the slowest axis first; the file has the fastest first."""
    begin = walker.offset
    num_dimensions = walker.u32(f"{field} dimension count")
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        walker.fail(f"{field} dimension count", begin, num_dimensions, f"1 to {MAX_DIMENSIONS}")
    dimensions = []
    for axis in range(num_dimensions):
        begin = walker.offset
        dimensions.append(walker.u64(f"{field} dimension {axis}"))
        if dimensions[axis] == 0:
            walker.fail(f"{field} dimension {axis}", begin, 0, "1 or more")
    return tuple(reversed(dimensions))


def _check_extents(walker: _Walker, records: tuple[Record, ...], data_begin: int) -> None:
    """Check that the data of every tensor is in the file and that no two of them share a byte."""
    for record in records:
        begin = data_begin + record.offset
        if begin + record.num_bytes > walker.end:
            found = f"{max(0, walker.end - begin)} bytes before the end of the file"
            walker.fail(f"{record.field} data", begin, found, f"{record.num_bytes}{_SHORT}")
    for before, after in itertools.pairwise(sorted(records, key=lambda record: record.offset)):
        free = before.offset + before.num_bytes
        if after.offset < free:
            expected = f"{free} or more, after {_shown_name(before.name)}"
            walker.fail(f"{after.field} offset", after.offset_at, after.offset, expected)


def _shown_name(name: str) -> str:
    """Quote a name from the file, at a length and in characters that fit a line."""
    return repr(name if len(name) <= 80 else f"{name[:77]}...")
