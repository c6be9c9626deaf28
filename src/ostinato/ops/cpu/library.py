"""Compiled kernels on disk and in memory: load what is cached, compile what is missing, return addresses.

The cache folder's name is a hash of everything that decides the machine code: the sources of this package,
the versions of Numba, llvmlite and LLVM, and the target. A file is a SHA-256 and an object; it is written
aside and renamed, and verified when read, so a torn or damaged file is compiled again rather than run. A warm
start needs only llvmlite's linker: Numba is not imported.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import llvmlite.binding as llvm

from ostinato import config
from ostinato.errors import KernelError
from ostinato.ops.cpu import host
from ostinato.ops.cpu.kernel import Kernel

Report = Callable[[int, int], None]
"""Called with (kernels done, kernels to compile) while compiling."""

DIGEST_BYTES = 32

KEPT_S = 90 * 24 * 3600
"""How long kernels of another version or processor are kept."""


@cache
def cache_folder(target: host.Target) -> Path:
    """Return the folder of this machine's and this version's kernels for a target; it may not exist yet."""
    key = hashlib.sha256()
    for source in _sources():
        key.update(source.read_bytes())
    versions = (version("numba"), version("llvmlite"), llvm.llvm_version_info, sys.version_info[:2])
    key.update(repr((versions, target)).encode())
    return config.kernels_folder() / key.hexdigest()[:24]


def _sources() -> list[Path]:
    """Return the files that decide what a kernel becomes."""
    here = Path(__file__).parent
    named = [
        here.parent / "batch.py",
        *(here / f"{name}.py" for name in ("host", "kernel", "packing", "simd")),
    ]
    return [*named, *sorted((here / "codegen").glob("*.py")), *sorted((here / "kernels").glob("*.py"))]


def write_object(folder: Path, name: str, code: bytes) -> None:
    """Write a kernel's object into the cache, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(code).digest() + code)
        os.replace(temporary, folder / f"{name}.o")
    except BaseException:
        os.unlink(temporary)
        raise


def read_object(folder: Path, name: str) -> bytes | None:
    """Return a kernel's object, or None if it is not cached or damaged."""
    try:
        content = (folder / f"{name}.o").read_bytes()
    except OSError:
        return None
    digest, code = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    return code if hashlib.sha256(code).digest() == digest else None


class Library:
    """The linked kernels of this process for one target."""

    def __init__(self, target: host.Target) -> None:
        self.target = target
        self.folder = cache_folder(target)
        self._addresses: dict[str, int] = {}
        self._linker: Any = None
        self._linked: list[Any] = []
        self._lock = threading.Lock()

    def load(self, kernels: Iterable[Kernel], report: Report | None = None) -> Mapping[str, int]:
        """Return the addresses of the kernels loaded so far, these among them; compile what is not cached.

        Raises:
            KernelError: a kernel could not be compiled or linked.
        """
        with self._lock:
            self._load({kernel.name for kernel in kernels} - self._addresses.keys(), report)
            return self._addresses

    def _load(self, names: set[str], report: Report | None) -> None:
        objects = {name: read_object(self.folder, name) for name in sorted(names)}
        missing = [name for name, code in objects.items() if code is None]
        if missing:
            _compile(self.target, missing, report)
            objects |= {name: read_object(self.folder, name) for name in missing}
        for name, code in objects.items():
            if code is None:
                raise KernelError(f"kernel '{name}' was compiled but cannot be read back from {self.folder}")
            self._addresses[name] = self._link(name, code)

    def _link(self, name: str, code: bytes) -> int:
        if self._linker is None:
            self._linker = _linker()
        builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process().export_symbol(name)
        try:
            linked = builder.link(self._linker, name)
        except RuntimeError as error:
            raise KernelError(f"kernel '{name}' cannot be linked: {error}") from error
        self._linked.append(linked)  # dropped, its code would be freed
        address: int = linked[name]
        return address


@cache
def library(target: host.Target) -> Library:
    """Return this process's library for a target."""
    return Library(target)


def _linker() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    return llvm.create_lljit_compiler(machine)


def _compile(target: host.Target, names: Sequence[str], report: Report | None) -> None:
    """Compile kernels in as many processes as there are cores, shared out in turn."""
    folder = cache_folder(target)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KernelError(
            f"cannot create the kernel cache {folder}: {error.strerror}; set OSTINATO_HOME"
        ) from error
    _prune(folder)
    jobs = min(host.usable_cores(), len(names))
    with tempfile.TemporaryFile() as log:
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for job in range(jobs):
                processes.append(_start(target, folder, names[job::jobs], log))
            _follow(processes, folder, names, report)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if any(process.returncode for process in processes):
            log.seek(0)
            lines = log.read().decode(errors="replace").strip().splitlines() or ["no output"]
            raise KernelError(f"compiling kernels failed: {lines[-1]}")


def _prune(folder: Path) -> None:
    """Remove the kernels of versions and machines that nobody has compiled for in a long time."""
    for other in folder.parent.iterdir():
        with suppress(OSError):
            if other != folder and time.time() - other.stat().st_mtime > KEPT_S:
                shutil.rmtree(other)


def _start(
    target: host.Target, folder: Path, names: Sequence[str], log: IO[bytes]
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "ostinato.ops.cpu.codegen.compile", str(folder), *names]
    path = os.pathsep.join(entry for entry in sys.path if entry)  # not the current folder
    environment = {**os.environ, "OSTINATO_SIMD": target.simd, "PYTHONPATH": path}
    return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)


def _follow(
    processes: Sequence[subprocess.Popen[bytes]], folder: Path, names: Sequence[str], report: Report | None
) -> None:
    """Report progress until all processes have ended or one has failed."""
    while any(process.poll() is None for process in processes):
        if any(process.returncode for process in processes):
            return
        if report is not None:
            report(sum((folder / f"{name}.o").exists() for name in names), len(names))
        time.sleep(0.05)
    if report is not None:
        report(len(names), len(names))
