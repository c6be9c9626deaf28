"""Where a model name leads: a built-in model, the hub, or a file; what is installed; how it is removed.

Knows the three kinds of names. Must not know how anything is fetched (`pull.py`, `hub.py`) or what a model
file holds: the path found here goes to `gguf.py`. Importing this module loads nothing outside the standard
library, and what fetches is imported only when something must be fetched.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ostinato.config import DEFAULT_MODEL, models_folder
from ostinato.errors import ModelNotFoundError, OstinatoError
from ostinato.weights import hub_cache
from ostinato.weights.catalogue import CATALOGUE, CatalogueModel
from ostinato.weights.folder_names import is_checkpoint
from ostinato.weights.hub_names import SCHEME, HubName, is_model, parse
from ostinato.weights.locks import file_lock
from ostinato.weights.part_names import part_names
from ostinato.weights.places import hub_lock_path, is_pulled, lock_path, pulled_path, staging_folder
from ostinato.weights.progress import Progress
from ostinato.weights.redact import shown

__all__ = ["InstalledModel", "Progress", "installed", "remove", "resolve"]

_MAX_LISTED = 5


@dataclass(frozen=True)
class InstalledModel:
    """A pulled model; `name` is what `resolve` and `remove` take."""

    name: str
    path: Path
    size_bytes: int
    source: Literal["built-in", "hub"]


def resolve(name: str, *, pull: bool = True, progress: Progress | None = None) -> Path:
    """Return the file, or folder of safetensors, that a model name leads to, fetched first where missing.

    A name is, in this order: `hf:owner/repo[/file.gguf]`; a built-in name; a path to a file, or to a folder
    with one GGUF model or the safetensors of one in it (`~` is the home folder). So a file that happens to be
    called like a built-in model is reached as `./NAME`. Any part of a split model leads to all of it.

    Args:
        name: what the user wrote.
        pull: False: only what is on this machine.
        progress: told how far a fetch is; not called when nothing is fetched.

    Raises:
        ModelNotFoundError: the name leads nowhere, or to nothing on this machine while `pull` is False.
        DownloadError: the model could not be fetched.
    """
    if name.startswith(SCHEME):
        return _resolve_hub(parse(name), pull, progress)
    model = CATALOGUE.get(name)
    if model is not None:
        return _resolve_built_in(model, pull, progress)
    path = os.path.expanduser(name)
    if os.path.isfile(path):
        return Path(path)
    if len(models := _models_in(path)) == 1:
        return Path(path, *models)
    if not models and is_checkpoint(path):
        return Path(path)
    raise ModelNotFoundError(f"{_what_is_wrong(name, path)}{_suggestion(name)}. {_what_is_known()}")


def installed() -> list[InstalledModel]:
    """Return the pulled models: the built-in ones in catalogue order, then those of the hub by name."""
    built_in = [
        InstalledModel(model.name, pulled_path(model), model.size_bytes, "built-in")
        for model in CATALOGUE.values()
        if is_pulled(model)
    ]
    from_hub = [
        InstalledModel(str(HubName(file.repo, file.file)), file.path, file.size_bytes, "hub")
        for file in hub_cache.all_cached_files()
    ]
    return built_in + from_hub


def remove(name: str) -> int:
    """Remove a pulled model, and what an unfinished pull left of it; return how many bytes came free.

    `hf:owner/repo` without a file removes everything that is here of the repository.

    Raises:
        ModelNotFoundError: nothing of that name was pulled.
        OstinatoError: another process is pulling it, or the files cannot be removed.
    """
    if name.startswith(SCHEME):
        return _remove_hub(parse(name))
    model = CATALOGUE.get(name)
    if model is not None:
        return _remove_built_in(model)
    raise ModelNotFoundError(
        f"{shown(name)} is not a model that was pulled{_suggestion(name)}; "
        f"only these can be removed: {', '.join(m.name for m in installed()) or 'none is here'}"
    )


def _resolve_built_in(model: CatalogueModel, pull: bool, progress: Progress | None) -> Path:
    if is_pulled(model):
        return pulled_path(model)
    if not pull:
        raise _not_pulled(model.name)
    from ostinato.weights.pull import pull_model

    return pull_model(model, progress)


def _resolve_hub(name: HubName, pull: bool, progress: Progress | None) -> Path:
    path = hub_cache.find_cached(name)
    if path is not None:
        return path
    if not pull:
        raise _not_pulled(str(name))
    from ostinato.weights.hub import fetch

    return fetch(name, progress)


def _remove_built_in(model: CatalogueModel) -> int:
    folders = [models_folder() / model.name, staging_folder(model.name)]
    if not any(folder.is_dir() for folder in folders):
        raise _not_pulled(model.name)
    with _removing(model.name, lock_path(model.name)):
        freed = sum(_file_bytes(folder) for folder in folders)
        for folder in folders:
            if folder.is_dir():
                shutil.rmtree(folder)
    return freed


def _remove_hub(name: HubName) -> int:
    if name.file is None:
        is_here = hub_cache.repo_folder(name.repo).is_dir()
    else:
        is_here = hub_cache.holds(name.repo, name.file)
    if not is_here:
        raise _not_pulled(str(name))
    with _removing(str(name), hub_lock_path(name.repo)):
        return hub_cache.remove_files(name.repo, name.file)


@contextmanager
def _removing(name: str, lock: Path) -> Iterator[None]:
    """Keep pulls of the model away for the block, and turn what the system refuses into one clear line."""
    try:
        with file_lock(lock) as held:
            if not held:
                raise OstinatoError(
                    f"{name} is being pulled by another process; stop that first, or wait for it"
                )
            yield
    except OSError as error:
        raise OstinatoError(f"{name} could not be removed: {error.filename}: {error.strerror}") from error


def _file_bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def _not_pulled(name: str) -> ModelNotFoundError:
    return ModelNotFoundError(f"{name} is not on this machine; fetch it with `ostinato models pull {name}`")


def _what_is_wrong(name: str, path: str) -> str:
    if not name.strip():
        return "the model name is empty"
    if os.path.isdir(path):
        inside = _models_in(path)
        files = f"; name a file in it, for example {', '.join(inside[:_MAX_LISTED])}" if inside else ""
        return f"{shown(name)} is a folder, not a model file{files}"
    if os.path.islink(path):
        return f"{shown(name)} is a link to a file that does not exist"
    if os.path.exists(path):
        return f"{shown(name)} is not a regular file"
    if _looks_like_path(name):
        return f"there is no file {shown(name)}"
    return f"unknown model {shown(name)}"


def _models_in(folder: str) -> list[str]:
    """Return the GGUF models in a folder, none if it is no folder; of a split one, the first part there."""
    try:
        files = sorted(filter(is_model, os.listdir(folder)))
    except (OSError, ValueError):  # ValueError: a path with a NUL
        return []
    return list({part_names(file)[0]: file for file in reversed(files)}.values())[::-1]


def _looks_like_path(name: str) -> bool:
    return "/" in name or os.sep in name or name.lower().endswith(".gguf")


def _suggestion(name: str) -> str:
    from difflib import get_close_matches

    if _could_be_repository(name):
        return f" (did you mean {SCHEME}{name}?)"
    stem = os.path.basename(name).lower().removesuffix(".gguf")
    close = get_close_matches(stem, CATALOGUE, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _could_be_repository(name: str) -> bool:
    try:
        return parse(f"{SCHEME}{name}").file is None and not name.lower().endswith(".gguf")
    except ModelNotFoundError:
        return False


def _what_is_known() -> str:
    names = ", ".join(f"{name} (the default)" if name == DEFAULT_MODEL else name for name in CATALOGUE)
    paths = "a path to a GGUF file or a folder of safetensors"
    return f"A model is one of {names}; {paths}; or {SCHEME}owner/repo[/file.gguf]"
