"""Models of the Hugging Face hub, by name: `hf:owner/repo` or `hf:owner/repo/path/file.gguf`.

Knows the hub library, which is imported only when something must be fetched. Must not know the model format.
`HF_ENDPOINT`, `HF_TOKEN` and the library's other variables mean here what they mean to the library. A file
that is already on this disk is used without asking the hub (`hub_cache.py`).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from ostinato.errors import DownloadError, ModelNotFoundError, OstinatoError
from ostinato.weights.hub_cache import hub_folder, repo_folder
from ostinato.weights.hub_names import FORM, SCHEME, HubName, choose, listed, models_among
from ostinato.weights.locks import file_lock
from ostinato.weights.part_names import part_names
from ostinato.weights.places import hub_lock_path
from ostinato.weights.progress import Meter, Progress
from ostinato.weights.redact import one_line, shown

_ABANDONED = re.compile(r".+\.[0-9a-f]{8}\.incomplete")
_CHUNK_BYTES = 1 << 20
_POLL_S = 0.1
_LISTING_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class _Entry:
    """A file as the hub lists it; size and sum are None where the hub does not say."""

    size_bytes: int | None
    sha256: str | None


def fetch(name: HubName, progress: Progress | None = None) -> Path:
    """Download the file that the name leads to, check it and return its path in the hub library's cache.

    Of a model in several parts, all are downloaded, and the path is that of the first.

    Raises:
        ModelNotFoundError: no such repository or file, or the repository does not say which file is meant.
        DownloadError: the hub cannot be reached, refuses, or sent something else than it lists.
    """
    with _quiet():
        entries = _list_files(name)
        parts = part_names(name.file if name.file is not None else choose(name.repo, list(entries)))
        missing = [part for part in parts if part not in entries]
        if missing:
            there = listed(models_among(list(entries)))
            raise ModelNotFoundError(
                f"{SCHEME}{name.repo} has no file {shown(missing[0])}; its GGUF files: {there}"
            )
        return _download(name.repo, {part: entries[part] for part in parts}, progress)


def _list_files(name: HubName) -> dict[str, _Entry]:
    with _translated(name):
        from huggingface_hub import HfApi

        info = HfApi(endpoint=_endpoint()).model_info(
            name.repo, files_metadata=True, timeout=_LISTING_TIMEOUT_S
        )
    return {
        sibling.rfilename: _Entry(sibling.size, sibling.lfs.sha256 if sibling.lfs else None)
        for sibling in info.siblings or []
    }


def _download(repo: str, parts: Mapping[str, _Entry], progress: Progress | None) -> Path:
    """Download the parts of a model and return the path of the first."""
    blobs = repo_folder(repo) / "blobs"
    name = HubName(repo, next(iter(parts)))
    sizes = [entry.size_bytes or 0 for entry in parts.values()]
    with (
        Meter(progress, sum(sizes), str(name)) as meter,
        _translated(name),
        file_lock(hub_lock_path(repo), waiting=lambda: meter.reach(_arriving_bytes(blobs))),
    ):
        _sweep(blobs)
        ends = accumulate(sizes)
        paths = [
            _download_part(HubName(repo, part), entry, blobs, meter, end - size)
            for (part, entry), size, end in zip(parts.items(), sizes, ends, strict=True)
        ]
    return paths[0]


def _download_part(name: HubName, entry: _Entry, blobs: Path, meter: Meter, begin: int) -> Path:
    """Download and check one file; its bytes are those from `begin` on of all that the meter counts."""
    from huggingface_hub import hf_hub_download

    with _watched(blobs, meter, begin):
        path = Path(hf_hub_download(name.repo, str(name.file), cache_dir=hub_folder(), endpoint=_endpoint()))
        _check(name, path, entry)
    meter.reach(begin + (entry.size_bytes or 0))
    return path


def _endpoint() -> str | None:
    """Return the endpoint that the environment names now; the library reads it once, at its import."""
    return os.environ.get("HF_ENDPOINT") or None


def _sweep(blobs: Path) -> None:
    """Remove what killed downloads left: newer libraries write to random names and never return."""
    for path in blobs.glob("*.incomplete"):
        if _ABANDONED.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _arriving_bytes(blobs: Path) -> int:
    sizes = [0]
    for path in blobs.glob("*.incomplete"):
        with contextlib.suppress(OSError):
            sizes.append(path.stat().st_size)
    return max(sizes)


@contextlib.contextmanager
def _watched(blobs: Path, meter: Meter, begin: int) -> Iterator[None]:
    """Report the growth of the download after `begin`, for the length of the block, from another thread."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_POLL_S):
            meter.reach(begin + _arriving_bytes(blobs))

    thread = threading.Thread(target=watch, name="ostinato-hub-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _check(name: HubName, path: Path, entry: _Entry) -> None:
    """Compare the file with what the hub lists; remove it if it differs."""
    num_bytes, found = path.stat().st_size, None
    if entry.sha256 is not None:
        with open(path, "rb") as file:
            digest = hashlib.sha256()
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
        found = digest.hexdigest()
    if num_bytes == (entry.size_bytes or num_bytes) and found == entry.sha256:
        return
    blob = Path(os.path.realpath(path))
    path.unlink()
    blob.unlink(missing_ok=True)
    raise DownloadError(
        f"{name} is not as the hub lists it: expected {entry.size_bytes} bytes with sha256 {entry.sha256}, "
        f"found {num_bytes} bytes with {found}; it is removed, pull again"
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the library from logging retries and, unless the user has decided, from drawing progress bars."""
    from huggingface_hub import constants
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    shown_bars = constants.HF_HUB_DISABLE_PROGRESS_BARS is None and not are_progress_bars_disabled()
    logger.setLevel(logging.ERROR)
    if shown_bars:
        disable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(level)
        if shown_bars:
            enable_progress_bars()


@contextlib.contextmanager
def _translated(name: HubName) -> Iterator[None]:
    """Turn whatever the library raises into one clear line."""
    try:
        yield
    except OstinatoError:
        raise
    except Exception as error:  # the library's errors, and those of whichever HTTP client it uses
        raise _translation(name, error) from error


def _translation(name: HubName, error: Exception) -> OstinatoError:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return DownloadError(
            f"{name} is gated: accept its terms on its page of the hub, set HF_TOKEN, pull again"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return ModelNotFoundError(
            f"the hub has no repository {name.repo}, or a private one; check the spelling, or set HF_TOKEN"
        )
    if isinstance(error, errors.HFValidationError):
        return ModelNotFoundError(f"{name} is not a name of the hub; write {FORM}")
    if isinstance(error, errors.OfflineModeIsEnabled):
        return DownloadError(
            f"{name} is not on this machine, and HF_HUB_OFFLINE forbids to fetch it; unset it"
        )
    if isinstance(error, errors.HfHubHTTPError):
        return DownloadError(f"the hub answered {error.response.status_code} for {name}; try again later")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DownloadError(f"no space left in {hub_folder()} for {name}; make room and pull again")
    cause = error.__cause__ or error
    reason = one_line(str(cause)) or type(cause).__name__
    return DownloadError(
        f"{name} could not be fetched from the hub: {reason}; check the network and pull again"
    )
