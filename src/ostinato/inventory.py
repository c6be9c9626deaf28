"""What of Ostinato is on this machine: models and compiled kernels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ostinato.weights.catalogue import CATALOGUE
from ostinato.weights.sources import installed


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A built-in model, or one pulled from the hub. `path` is None where it is not on this machine."""

    name: str
    title: str
    licence: str | None
    size_bytes: int
    path: Path | None


def known_models() -> list[KnownModel]:
    """Return the built-in models, then those that were pulled from the hub."""
    here = {model.name: model for model in installed()}
    built_in = [
        KnownModel(m.name, m.title, m.licence, m.size_bytes, here[m.name].path if m.name in here else None)
        for m in CATALOGUE.values()
    ]
    from_hub = [
        KnownModel(m.name, m.path.name, None, m.size_bytes, m.path)
        for m in here.values()
        if m.name not in CATALOGUE
    ]
    return built_in + from_hub


@dataclass(frozen=True, slots=True)
class KernelCache:
    """The kernels compiled for this machine by this version."""

    folder: Path
    count: int
    size_bytes: int


def kernel_cache() -> KernelCache:
    """Return what is in the kernel cache of this process's SIMD path."""
    from ostinato.ops.cpu import host
    from ostinato.ops.cpu.library import cache_folder

    folder = cache_folder(host.target())
    files = list(folder.glob("*.o"))
    return KernelCache(folder, len(files), sum(file.stat().st_size for file in files))
