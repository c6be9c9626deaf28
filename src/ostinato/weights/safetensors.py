"""Open safetensors: one file, or the shards that an index names.

Knows the container and its index. Must not know what a tensor is for. Tensor data is never read; files must
not be changed or cut while they are open. Next file: checkpoint.py, for what a folder means.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from ostinato.errors import ModelFileError
from ostinato.weights.folder_names import INDEX, SUFFIX, WHOLE
from ostinato.weights.mapped import map_file, shown_path, unmap
from ostinato.weights.safetensors_header import walk_header
from ostinato.weights.small_files import read_json_object
from ostinato.weights.tensors import Tensor

MAX_LISTED: Final = 5


class SafetensorsFiles:
    """Open safetensors files: `tensors` by the names they have there. Made by `open_safetensors`."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._maps: list[mmap.mmap] = []

    @property
    def size_bytes(self) -> int:
        """The bytes of all files."""
        return sum(map(len, self._maps))

    def add(self, path: Path) -> None:
        """Open one more file, none of whose tensors is in another."""
        data = map_file(path, "a safetensors file")
        self._maps.append(data)
        file_bytes = np.frombuffer(data, np.uint8)  # read-only, as the map is
        for name, shape, kind, begin, end in walk_header(path, data):
            if name in self.tensors:
                raise ModelFileError(f"{shown_path(path)}: tensor {name!r} is in another shard, too")
            self.tensors[name] = Tensor(name, shape, kind, file_bytes[begin:end], begin)

    def close(self) -> None:
        """Let go of the tensors; those held elsewhere keep the maps while they live."""
        self.tensors = {}
        for data in self._maps:
            unmap(data)


def open_safetensors(path: Path) -> SafetensorsFiles:
    """Map a .safetensors file, or all shards of an index, and check their headers.

    Raises:
        ModelNotFoundError: there is no such file.
        ModelFileError: a file cannot be read or is damaged; shards and index disagree.
        UnsupportedModelError: a type of numbers that no executor takes.
    """
    files = SafetensorsFiles()
    try:
        if path.suffix == SUFFIX:
            files.add(path)
        else:
            _add_shards(files, path)
    except BaseException:
        files.close()
        raise
    return files


def find_weights(folder: Path) -> Path:
    """Return what holds the weights of a folder: one file, or an index.

    Raises:
        ModelFileError: there is none, or several without an index.
    """
    for name in (WHOLE, INDEX):
        if (folder / name).is_file():
            return folder / name
    found = sorted(path for path in folder.iterdir() if path.suffix == SUFFIX)
    if len(found) == 1:
        return found[0]
    what = f"{len(found)} safetensors files but no {INDEX}" if found else "no safetensors file"
    raise ModelFileError(f"{shown_path(folder)} has {what}: fetch all of the model, or name one file")


def _add_shards(files: SafetensorsFiles, index: Path) -> None:
    shards = _weight_map(index)
    for name in sorted(set(shards.values())):
        files.add(index.parent / name)
    for problem, names in (
        ("names tensors that no shard has", shards.keys() - files.tensors.keys()),
        ("does not name tensors that its shards have", files.tensors.keys() - shards.keys()),
    ):
        if names:
            listed = ", ".join(sorted(names)[:MAX_LISTED]) + (", …" if len(names) > MAX_LISTED else "")
            raise ModelFileError(f"{shown_path(index)} {problem}: {listed}")


def _weight_map(index: Path) -> Mapping[str, str]:
    """Return the file of each tensor, each a plain name beside the index."""
    shards = read_json_object(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise ModelFileError(
            f"{shown_path(index)}: 'weight_map' is missing; expected tensors and their files"
        )
    for tensor, name in shards.items():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(SUFFIX):
            expected = f"the name of a {SUFFIX} file beside it"
            raise ModelFileError(f"{shown_path(index)}: {tensor!r} is in {name!r}; expected {expected}")
    return shards
