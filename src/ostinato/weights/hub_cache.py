"""The models of the Hugging Face hub that are on this disk.

Knows the layout of the hub library's cache, which the library documents, so that a model already here is
found, listed and removed without importing the library. Must not know the network: `hub.py` fetches.

    hub/models--<owner>--<repo>/refs/main                  the commit that was last seen
    hub/models--<owner>--<repo>/snapshots/<commit>/<file>  a link to a blob, or the file itself
    hub/models--<owner>--<repo>/blobs/<etag>               the bytes
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from ostinato import config
from ostinato.errors import ModelNotFoundError
from ostinato.weights.hub_names import HubName, choose
from ostinato.weights.part_names import part_names

_FOLDER_PREFIX = "models--"


@dataclass(frozen=True)
class HubFile:
    """One GGUF of a repository, on this disk, all its parts; a split one has the name of the first."""

    repo: str
    file: str
    path: Path
    size_bytes: int


def hub_folder() -> Path:
    """Return the folder that the hub library is told to use as its cache."""
    return config.home() / "hub"


def repo_folder(repo: str) -> Path:
    """Return the folder of a repository, `owner/repo`, whether or not it exists."""
    return hub_folder() / (_FOLDER_PREFIX + repo.replace("/", "--"))


def cached_files(repo: str) -> list[HubFile]:
    """Return the GGUF files of the repository that are here, one for each name, ordered by name.

    Where several commits hold a file, the one last seen on the hub counts, then the newest.
    """
    found: dict[str, HubFile] = {}
    for snapshot in _snapshots(repo_folder(repo)):
        paths = {path.relative_to(snapshot).as_posix(): path for path in snapshot.rglob("*")}
        here = {
            name: path for name, path in paths.items() if path.suffix.lower() == ".gguf" and path.is_file()
        }
        for name, path in here.items():
            parts = part_names(name)
            if name == parts[0] and here.keys() >= set(parts):
                size_bytes = sum(here[part].stat().st_size for part in parts)
                found.setdefault(name, HubFile(repo, name, path, size_bytes))
    return [found[name] for name in sorted(found)]


def find_cached(name: HubName) -> Path | None:
    """Return the file that the name leads to among those already here, if it does; the hub is not asked."""
    here = {file.file: file.path for file in cached_files(name.repo)}
    if name.file is not None:
        return here.get(part_names(name.file)[0])
    with contextlib.suppress(ModelNotFoundError):
        return here[choose(name.repo, [part for file in here for part in part_names(file)])]
    return None


def all_cached_files() -> list[HubFile]:
    """Return the GGUF files of every repository that are here, ordered by repository and name."""
    folders = sorted(hub_folder().glob(f"{_FOLDER_PREFIX}*--*"))
    repos = [folder.name.removeprefix(_FOLDER_PREFIX).replace("--", "/", 1) for folder in folders]
    return [file for repo in repos for file in cached_files(repo)]


def _snapshots(folder: Path) -> list[Path]:
    """Return the commits' folders: the one last seen on the hub first, then from the newest to the oldest."""
    snapshots = [path for path in (folder / "snapshots").glob("*") if path.is_dir()]
    try:
        current = (folder / "refs" / "main").read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        current = ""
    return sorted(snapshots, key=lambda path: (path.name != current, -path.stat().st_mtime, path.name))


def remove_files(repo: str, file: str | None) -> int:
    """Remove one file of the repository, or all of it, and return the number of bytes that came free.

    With a part of a split file go the others.
    """
    folder = repo_folder(repo)
    before = _disk_bytes(folder)
    if file is not None:
        for path in _copies(repo, file):
            path.unlink()
    if file is None or not cached_files(repo):
        shutil.rmtree(folder)
        shutil.rmtree(hub_folder() / ".locks" / folder.name, ignore_errors=True)
        return before
    _remove_unreferenced_blobs(folder)
    return before - _disk_bytes(folder)


def holds(repo: str, file: str) -> bool:
    """Return whether the file, or a part of a split one, is here."""
    return bool(_copies(repo, file))


def _copies(repo: str, file: str) -> list[Path]:
    """Return where the file, with all its parts, lies in the folders of all commits."""
    paths = [path / part for path in _snapshots(repo_folder(repo)) for part in part_names(file)]
    return [path for path in paths if path.is_file() or path.is_symlink()]


def _remove_unreferenced_blobs(folder: Path) -> None:
    used = {os.path.realpath(path) for path in (folder / "snapshots").rglob("*") if path.is_symlink()}
    for blob in (folder / "blobs").glob("*"):
        if os.path.realpath(blob) not in used:
            blob.unlink()


def _disk_bytes(folder: Path) -> int:
    files = (path.lstat() for path in folder.rglob("*") if not path.is_dir())
    return sum(status.st_size for status in files if stat.S_ISREG(status.st_mode))
