"""A package index that is a folder of tiny wheels, with a catalogue entry for what they carry.

Knows the layout of a wheel. The same arguments always give the same bytes, so that a child process can open
an index that its parent made.
"""

from __future__ import annotations

import base64
import hashlib
import os
import random
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ostinato.weights.catalogue import CatalogueModel, Part

CHUNK_BYTES = 1 << 20  # what the joiner appends at once
PART_BYTES = CHUNK_BYTES + 70_001
LAST_BYTES = 40_001


SIZES = (PART_BYTES, PART_BYTES, LAST_BYTES)

_LOW_BITS = bytes(value & 15 for value in range(256))


def contents(sizes: tuple[int, ...] = SIZES) -> list[bytes]:
    """Return the bytes of the parts: no two alike, and compressible, so that a wheel is smaller."""
    rng = random.Random(20)
    return [rng.randbytes(size).translate(_LOW_BITS) for size in sizes]


def tiny_model(parts: list[bytes], name: str = "tiny") -> CatalogueModel:
    """Return the catalogue entry whose parts are these bytes."""
    whole = b"".join(parts)
    return CatalogueModel(
        name=name,
        title="Tiny",
        licence="CC0-1.0",
        file_name=f"{name}.gguf",
        size_bytes=len(whole),
        sha256=hashlib.sha256(whole).hexdigest(),
        parts=tuple(
            Part(
                distribution=f"{name}-model-part{number}",
                version="1.0.2",
                member=f"{name}_model_part{number}/data/part{number}.bin",
                size_bytes=len(data),
                sha256=hashlib.sha256(data).hexdigest(),
            )
            for number, data in enumerate(parts, start=1)
        ),
    )


def write_wheel(folder: Path, part: Part, data: bytes) -> Path:
    """Write the wheel that carries `data` as the part's member."""
    stem = f"{part.distribution.replace('-', '_')}-{part.version}"
    info = f"{stem}.dist-info"
    files = {
        part.member: data,
        f"{info}/METADATA": _metadata(part),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{_record(name, files[name])}\n" for name in files).encode()
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as wheel:
        for name, content in files.items():
            wheel.writestr(zipfile.ZipInfo(name, (2024, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
    return path


def _metadata(part: Part) -> bytes:
    return f"Metadata-Version: 2.1\nName: {part.distribution}\nVersion: {part.version}\n".encode()


def _record(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return f"{name},sha256={digest},{len(data)}"


@dataclass
class TinyIndex:
    """The folder, the model that it carries, and which parts were fetched from it by `fetch`."""

    folder: Path
    model: CatalogueModel
    whole: bytes
    fetched: list[str] = field(default_factory=list)

    def wheel(self, number: int) -> Path:
        """Return the wheel of the part with this number, counted from 1."""
        part = self.model.parts[number - 1]
        return self.folder / f"{part.distribution.replace('-', '_')}-{part.version}-py3-none-any.whl"

    def fetch(self, part: Part, folder: Path, arrived: Callable[[int], None]) -> Path:
        """Copy the wheel as `fetch_package` would leave it, and note that it was asked for."""
        number = self.model.parts.index(part) + 1
        self.fetched.append(part.distribution)
        arrived(self.wheel(number).stat().st_size // 2)
        return Path(shutil.copyfile(self.wheel(number), folder / f"{part.distribution}.whl"))

    def numbers_fetched(self) -> list[int]:
        """Return the numbers of the parts fetched since the last call, in order."""
        numbers = [int(name.rpartition("part")[2]) for name in self.fetched]
        self.fetched.clear()
        return numbers

    def environment(self) -> dict[str, str]:
        """Return an environment in which pip knows this index and nothing else."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
        own = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.folder), "PIP_CONFIG_FILE": os.devnull}
        return {**kept, **own}


def build_index(folder: Path, sizes: tuple[int, ...] = SIZES) -> TinyIndex:
    """Make the folder and its wheels."""
    folder.mkdir()
    index = open_index(folder, sizes)
    for part, data in zip(index.model.parts, contents(sizes), strict=True):
        write_wheel(folder, part, data)
    return index


def open_index(folder: Path, sizes: tuple[int, ...] = SIZES) -> TinyIndex:
    """Return an index that `build_index` made."""
    parts = contents(sizes)
    return TinyIndex(folder, tiny_model(parts), b"".join(parts))
