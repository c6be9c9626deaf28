"""Open GGUF model files, versions 2 and 3, little-endian.

Knows how a checked header becomes values and views of tensors. Must not know what a key or a tensor is for.

A model split into several files is opened by any of them, as one. A file is read in two passes over a memory
map. `walk_header` checks all of the header and keeps nothing but keys, names and places; only then are the
values built here, with nothing left to check. Tensor data is never read. The file must not be changed or cut
while it is open.

Keys and names are UTF-8. String values may hold any bytes, since vocabularies do: they are decoded with the
`surrogateescape` handler, so `value.encode("utf-8", "surrogateescape")` gives the bytes of the file back.
Next file: tensors.py, for what an open file offers.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final

import numpy as np

from ostinato.errors import ModelFileError
from ostinato.weights.gguf_header import (
    ARRAY,
    ARRAY_HEAD,
    NUMBERS,
    STRING,
    U64,
    Header,
    walk_header,
)
from ostinato.weights.gguf_split import merge, part_paths
from ostinato.weights.mapped import map_file, shown_path, unmap
from ostinato.weights.tensors import MetadataArray, MetadataValue, Tensor

_FOREIGN_FILES: Final = (
    (
        rb"(\xef\xbb\xbf)?\s*<(!doctype|html|head|\?xml)",
        "a web page",
        "check the address and whether it needs a login",
    ),
    (rb"version https://git-lfs", "a Git LFS pointer", "fetch the model itself with `git lfs pull`"),
    (rb"\s*\{", "a JSON text", "look inside, it may say why the download failed"),
    (rb".{8}\{\"", "a safetensors file", "give the GGUF version of the model"),
    (rb"PK\x03\x04", "a zip archive or a PyTorch checkpoint", "unpack it or convert it to GGUF"),
    (rb"lmgg|fmgg|tjgg", "a file of the GGML formats before GGUF", "convert it to GGUF"),
)
"""What gets named .gguf by accident: pattern of its first bytes, what it is, what to do."""


class GGUFFile:
    """An open model: a `ModelFile`, made by `open_gguf`. Closes at the end of a `with` block.

    Of a model in several parts, `path`, `version` and `alignment` are the first one's, `size_bytes` is all.
    """

    def __init__(
        self,
        path: Path,
        version: int,
        alignment: int,
        metadata: dict[str, MetadataValue],
        tensors: dict[str, Tensor],
        maps: Sequence[mmap.mmap],
    ) -> None:
        self.path: Final = path
        self.version: Final = version
        self.alignment: Final = alignment
        self.metadata: Final[Mapping[str, MetadataValue]] = MappingProxyType(metadata)
        self._tensors: Mapping[str, Tensor] | None = MappingProxyType(tensors)
        self.size_bytes: Final = sum(map(len, maps))
        self._maps = tuple(maps)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The file's tensors by name, in file order.

        Raises:
            ValueError: the file was closed.
        """
        if self._tensors is None:
            raise ValueError(f"{self.path} is closed")
        return self._tensors

    def close(self) -> None:
        """Let go of the tensors; `metadata` stays. Tensors held elsewhere keep the map while they live."""
        self._tensors = None
        for data in self._maps:
            unmap(data)

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def open_gguf(path: str | os.PathLike[str]) -> GGUFFile:
    """Map a GGUF file, and the other parts if it is one of several, check all of each header and return
    metadata and tensors.

    Raises:
        ModelNotFoundError: there is no such file.
        ModelFileError: it cannot be read, is not GGUF, or is damaged (the message says where); parts are
        missing or do not belong together.
    """
    path = Path(path)
    with contextlib.ExitStack() as opened:
        file = opened.enter_context(_open_part(path))
        paths = part_paths(file)
        if len(paths) > 1:
            others = {other: opened.enter_context(_open_part(other)) for other in paths if other != path}
            file = _merged([file if part == path else others[part] for part in paths])
        opened.pop_all()
        return file


def _merged(parts: Sequence[GGUFFile]) -> GGUFFile:
    metadata, tensors = merge(parts)
    maps = [data for part in parts for data in part._maps]
    return GGUFFile(parts[0].path, parts[0].version, parts[0].alignment, metadata, tensors, maps)


def _open_part(path: Path) -> GGUFFile:
    data = map_file(path, "a GGUF file")
    try:
        return _read(path, data)
    except BaseException:
        unmap(data)
        raise


def _read(path: Path, data: mmap.mmap) -> GGUFFile:
    _refuse_foreign(path, data)
    header = walk_header(path, data)
    metadata = {key: _load(data, entry.kind, entry.offset) for key, entry in header.entries.items()}
    return GGUFFile(path, header.version, header.alignment, metadata, _tensors(data, header), [data])


def _refuse_foreign(path: Path, data: mmap.mmap) -> None:
    head = data[:64]
    for pattern, what, advice in _FOREIGN_FILES:
        if re.match(pattern, head, re.IGNORECASE | re.DOTALL):
            raise ModelFileError(f"{shown_path(path)} is {what}, not a GGUF file: {advice}")


def _load(data: mmap.mmap, kind: int, offset: int) -> MetadataValue:
    """Return a metadata value that was walked over."""
    if kind == STRING:
        return _load_strings(data, offset, 1)[0][0]
    if kind == ARRAY:
        return _load_array(data, offset)[0]
    number: bool | int | float = np.frombuffer(data, NUMBERS[kind], 1, offset)[0].item()
    return number


def _load_array(data: mmap.mmap, offset: int) -> tuple[MetadataArray, int]:
    """Return an array and the offset after it."""
    kind, count = ARRAY_HEAD.unpack_from(data, offset)
    offset += ARRAY_HEAD.size
    if kind == STRING:
        return _load_strings(data, offset, count)
    if kind == ARRAY:
        arrays: list[MetadataArray] = []
        for _ in range(count):
            array, offset = _load_array(data, offset)
            arrays.append(array)
        return arrays, offset
    numbers = np.frombuffer(data, NUMBERS[kind], count, offset).copy()
    numbers.flags.writeable = False
    return numbers, offset + numbers.nbytes


def _load_strings(data: mmap.mmap, offset: int, count: int) -> tuple[list[str], int]:
    """Return `count` strings and the offset after them; like the walk, a loop of few steps."""
    strings: list[str] = []
    append, read_u64 = strings.append, U64.unpack_from
    for _ in range(count):
        begin = offset + 8
        offset = begin + read_u64(data, offset)[0]
        append(data[begin:offset].decode("utf-8", "surrogateescape"))
    return strings, offset


def _tensors(data: mmap.mmap, header: Header) -> dict[str, Tensor]:
    file_bytes = np.frombuffer(data, np.uint8)  # read-only, as the map is
    tensors: dict[str, Tensor] = {}
    for record in header.records:
        begin = header.data_begin + record.offset
        view = file_bytes[begin : begin + record.num_bytes]
        tensors[record.name] = Tensor(record.name, record.shape, record.type, view, begin)
    return tensors
