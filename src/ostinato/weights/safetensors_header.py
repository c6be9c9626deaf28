"""Check the header of a safetensors file: a length, and that many bytes of JSON which say where tensors lie.

Knows the layout of the container and what can be wrong with it. Must not know what a tensor is for. Source:
the format section of the safetensors project's README. Each number is checked before it is used; the first
wrong one ends the walk: one line that names the file, the tensor, what was found and what was expected.
Next file: safetensors.py, which called.
"""

from __future__ import annotations

import json
import mmap
import struct
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from ostinato.errors import ModelFileError, UnsupportedModelError
from ostinato.weights.mapped import shown_path
from ostinato.weights.quants import TENSOR_TYPES, TensorType

LENGTH: Final = struct.Struct("<Q")
MAX_HEADER_BYTES: Final = 2**23
"""Some 80,000 tensors; what is parsed of it must fit in memory, too."""
MAX_TENSORS: Final = 2**17
MAX_DIMENSIONS: Final = 8
MAX_DIMENSION: Final = 2**48
METADATA: Final = "__metadata__"
FIELDS: Final = {"dtype", "shape", "data_offsets"}

TYPES: Final[dict[str, TensorType]] = {
    kind.name: kind
    for kind in TENSOR_TYPES.values()
    if kind.name in {"F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8"}
}
"""safetensors' names of types, which are GGUF's, too."""


class Record(NamedTuple):
    """What the file says of a tensor: its bytes are [begin, end) of the file."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    begin: int
    end: int


def walk_header(path: Path, data: mmap.mmap) -> list[Record]:
    """Check the header of the file mapped in `data`, and return its tensors by their place.

    Raises:
        ModelFileError: a field is wrong, tensors overlap, leave gaps, or do not end where the file does.
        UnsupportedModelError: a type of numbers that no executor takes.
    """
    header, data_begin = _header(path, data)
    header.pop(METADATA, None)
    records = [_record(path, name, entry, data_begin) for name, entry in header.items()]
    records.sort(key=lambda record: (record.begin, record.end))
    free = data_begin
    for record in records:
        if record.begin != free:
            _fail(
                path, record.name, f"begins at byte {record.begin}", f"{free}, where the one before it ends"
            )
        free = record.end
    if free != len(data):
        _fail(path, None, f"tensors end at byte {free}", f"the file's end, {len(data)} (is it cut short?)")
    return records


def _header(path: Path, data: mmap.mmap) -> tuple[dict[str, Any], int]:
    """Return the header and the byte at which the data begins."""
    if len(data) < LENGTH.size:
        _fail(path, None, f"the file has {len(data)} bytes", f"{LENGTH.size} or more")
    num_bytes: int = LENGTH.unpack_from(data)[0]
    most = min(MAX_HEADER_BYTES, len(data) - LENGTH.size)
    if not 2 <= num_bytes <= most:
        _fail(path, None, f"a header of {num_bytes} bytes", f"2 to {most} (is this a safetensors file?)")
    text = data[LENGTH.size : LENGTH.size + num_bytes]
    if text.count(b"{") > MAX_TENSORS or text.count(b"[") > 2 * MAX_TENSORS:
        _fail(path, None, "the header describes too many tensors", f"fewer than {MAX_TENSORS}")
    try:
        header = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        _fail(path, None, f"the header is no JSON ({error})", "a JSON object")
    if not isinstance(header, dict):
        _fail(path, None, f"the header is a JSON {type(header).__name__}", "an object")
    return header, LENGTH.size + num_bytes


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {_shown(twice)} comes twice")
    return found


def _record(path: Path, name: str, entry: Any, data_begin: int) -> Record:
    if not isinstance(entry, dict) or entry.keys() != FIELDS:
        _fail(path, name, f"is described by {_shown(entry)}", f"an object of {', '.join(sorted(FIELDS))}")
    shape = _shape(path, name, entry["shape"])
    kind = _type(path, name, entry["dtype"])
    offsets = entry["data_offsets"]
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
        _fail(path, name, f"has the data offsets {_shown(offsets)}", "two whole numbers, 0 or more")
    begin, end = offsets
    if end - begin != kind.num_bytes(shape):
        found = f"has {end - begin} bytes of data"
        _fail(path, name, found, f"{kind.num_bytes(shape)} for {kind.name} of shape {shape}")
    return Record(name, shape, kind, data_begin + begin, data_begin + end)


def _shape(path: Path, name: str, shape: Any) -> tuple[int, ...]:
    if (
        not isinstance(shape, list)
        or not 1 <= len(shape) <= MAX_DIMENSIONS
        or not all(_is_count(size) and 1 <= size <= MAX_DIMENSION for size in shape)
    ):
        expected = f"1 to {MAX_DIMENSIONS} whole numbers from 1 to {MAX_DIMENSION}"
        _fail(path, name, f"has the shape {_shown(shape)}", expected)
    return tuple(shape)


def _type(path: Path, name: str, dtype: Any) -> TensorType:
    if not isinstance(dtype, str) or dtype not in TYPES:
        raise UnsupportedModelError(
            f"{shown_path(path)}: tensor {_shown(name)} has the dtype {_shown(dtype)}; supported are "
            f"{', '.join(sorted(TYPES))}"
        )
    return TYPES[dtype]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _fail(path: Path, name: str | None, found: str, expected: str) -> NoReturn:
    tensor = "" if name is None else f"tensor {_shown(name)} "
    raise ModelFileError(f"{shown_path(path)}: {tensor}{found}; expected {expected}")


def _shown(value: object) -> str:
    """Quote something from the file, at a length and in characters that fit a line."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
