"""Compiled kernels on disk: found again, replaced when damaged, safe to write from several processes; and
what they may ask of the process that runs them.
"""

from __future__ import annotations

import ast
import os
import re
import struct
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import PATHS, TURNS, own_kernel, products

from ostinato.errors import InvalidRequestError, KernelError
from ostinato.ops.cpu import host
from ostinato.ops.cpu import library as library_module
from ostinato.ops.cpu.kernel import REGISTRY, Kernel
from ostinato.ops.cpu.kernels import find
from ostinato.ops.cpu.kernels.matmul import EXPERTS, MATMUL
from ostinato.ops.cpu.kernels.rows import take_rows
from ostinato.ops.cpu.library import Library, cache_folder, library, read_object, write_object
from ostinato.ops.cpu.packing import LAYOUTS

QUICK = [take_rows, find("rms_norm")]
"""Kernels that take no time to compile."""

ATTENTION = ["attention_q8_g1_k2_v1", "attention_q6_g1_k1_v1", "attention_q6_g3_k2_v4", "segments_g3_k2_v4"]
"""Variants that other tests need too, on every path."""

MAY_CALL = {"sched_yield", "memcpy", "memset", "memmove"}
"""What a kernel may call besides LLVM's own: of the C library, and nothing that could raise in Python."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache."""
    monkeypatch.setenv("OSTINATO_HOME", str(tmp_path))
    cache_folder.cache_clear()
    yield tmp_path
    cache_folder.cache_clear()


class Counted:
    """Counts what a load had to compile."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def __call__(self, done: int, total: int) -> None:
        self.calls.append((done, total))


def test_compiled_once_then_found(home: Path) -> None:
    first, second, third = Counted(), Counted(), Counted()
    made = Library(host.target())
    addresses = made.load(QUICK, first)
    assert {"take_rows", "rms_norm"} <= addresses.keys() and all(addresses.values())
    assert first.calls[-1] == (2, 2) and all(0 <= done <= total == 2 for done, total in first.calls)
    assert made.load(QUICK, second) == addresses and not second.calls
    Library(host.target()).load(QUICK, third)
    assert not third.calls
    assert sorted(path.name for path in made.folder.iterdir()) == ["rms_norm.o", "take_rows.o"]
    assert made.folder.is_relative_to(home)


def damaged(whole: bytes) -> dict[str, bytes]:
    flipped = [bytearray(whole), bytearray(whole)]
    flipped[0][5] ^= 1
    flipped[1][-1] ^= 0x80
    return {
        "empty": b"",
        "shorter than its digest": whole[:20],
        "only a digest": whole[:32],
        "torn": whole[:-1],
        "longer": whole + b"\0",
        "digest flipped": bytes(flipped[0]),
        "code flipped": bytes(flipped[1]),
    }


def test_only_a_whole_object_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    assert read_object(folder, "one") is None
    write_object(folder, "one", b"machine code")
    assert read_object(folder, "one") == b"machine code"
    for name, content in damaged((folder / "one.o").read_bytes()).items():
        (folder / "one.o").write_bytes(content)
        assert read_object(folder, "one") is None, name
    (folder / "one.o").unlink()
    (folder / "one.o").mkdir()
    assert read_object(folder, "one") is None


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "one.o").mkdir()
    with pytest.raises(OSError):
        write_object(tmp_path, "one", b"machine code")
    assert [path.name for path in tmp_path.iterdir()] == ["one.o"]


def test_a_damaged_object_is_compiled_again(home: Path) -> None:
    Library(host.target()).load([take_rows])
    path = cache_folder(host.target()) / "take_rows.o"
    whole = path.read_bytes()
    path.write_bytes(damaged(whole)["code flipped"])
    counted = Counted()
    Library(host.target()).load([take_rows], counted)
    assert counted.calls[-1] == (1, 1)
    assert path.read_bytes() == whole


def test_what_cannot_be_replaced_is_named(home: Path) -> None:
    path = cache_folder(host.target()) / "take_rows.o"
    path.mkdir(parents=True)
    with pytest.raises(KernelError, match=re.escape(str(path.parent))):
        Library(host.target()).load([take_rows])


LOAD = """
    from ostinato.ops.cpu import host
    from ostinato.ops.cpu.kernels import find
    from ostinato.ops.cpu.library import Library

    kernels = [find(name) for name in ("take_rows", "rms_norm", "quantize", "gated_silu")]
    assert all(Library(host.target()).load(kernels).values())
"""


def start(script: str, folder: Path | None = None, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, **environment},
    )


def finish(process: subprocess.Popen[str]) -> tuple[int | None, str]:
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


def test_processes_may_compile_the_same_at_once(home: Path) -> None:
    processes = [start(LOAD) for _ in range(3)]
    assert [finish(process) for process in processes] == [(0, "")] * 3
    left = sorted(path.name for path in cache_folder(host.target()).iterdir())
    assert left == ["gated_silu.o", "quantize.o", "rms_norm.o", "take_rows.o"]


def test_a_warm_start_needs_no_compiler(home: Path) -> None:
    Library(host.target()).load([take_rows, find("rms_norm"), find("quantize"), find("gated_silu")])
    script = LOAD + "\n    import sys\n    assert 'numba' not in sys.modules, 'numba was imported'"
    assert finish(start(script)) == (0, "")


@pytest.mark.parametrize("obstacle", ["file", "nowhere"])
def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, obstacle: str) -> None:
    """One line that names the folder and the variable that moves it."""
    (tmp_path / "file").touch()
    (tmp_path / "nowhere").symlink_to(tmp_path / "absent" / "deeper")
    monkeypatch.setenv("OSTINATO_HOME", str(tmp_path / obstacle))
    cache_folder.cache_clear()
    with pytest.raises(KernelError) as caught:
        Library(host.target()).load([take_rows])
    cache_folder.cache_clear()
    message = str(caught.value)
    assert "OSTINATO_HOME" in message and str(tmp_path / obstacle) in message and "\n" not in message


def test_the_compiler_s_complaint_is_passed_on(home: Path) -> None:
    """A kernel that the compiling process does not know fails there; its last line is the reason given."""

    def unheard_of(first: int, last: int) -> None:
        pass

    with pytest.raises(KernelError, match=r"compiling kernels failed: KeyError: 'unheard_of'"):
        Library(host.target()).load([own_kernel(unheard_of), *QUICK])


def test_the_current_folder_does_not_matter(home: Path, tmp_path: Path) -> None:
    """Compiling runs nothing that happens to lie where the user is."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "numba.py").write_text("raise SystemExit('a stranger was run')")
    script = "import sys; sys.path.remove('')\n" + textwrap.dedent(LOAD)
    assert finish(start(script, tmp_path / "work")) == (0, "")


# -- what the cache is keyed by ------------------------------------------------------------------------------


def test_each_target_has_its_own_folder(home: Path) -> None:
    folders = {cache_folder(host.target(simd)) for simd in PATHS}
    assert len(folders) == len(PATHS)
    other_processor = host.Target("generic", "some-cpu", "", fma=False)
    assert cache_folder(other_processor) not in folders


def test_the_key_covers_every_source_that_kernels_import(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A constant of another module could change without a new key."""
    read, read_bytes = set[Path](), Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: [read.add(path), read_bytes(path)][1])
    cache_folder(host.target())
    kernels = Path(library_module.__file__).parent / "kernels"
    sources = {*kernels.glob("*.py")}
    for source in sorted(sources):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ostinato."):
                file = kernels.parents[2].joinpath(*str(node.module).split(".")[1:])
                sources.add(file / "__init__.py" if file.is_dir() else file.with_suffix(".py"))
    assert sources <= read, sources - read


def test_paths_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PATHS[-1] == "generic"
    assert host.target() == host.target(PATHS[0]) or "OSTINATO_SIMD" in os.environ
    for simd in PATHS:
        assert host.target(simd).simd == simd
    with pytest.raises(InvalidRequestError, match=r"there is no such path.*generic"):
        host.target("avx1024")


# -- what kernels may ask for --------------------------------------------------------------------------------


class Elf:
    """The little of an object file that says which symbols somebody else has to provide."""

    def __init__(self, code: bytes) -> None:
        self.code = code
        (sections,) = struct.unpack_from("<Q", code, 0x28)
        size, count = struct.unpack_from("<HH", code, 0x3A)
        self.sections = [struct.unpack_from("<IIQQQQII", code, sections + size * i) for i in range(count)]

    def undefined(self) -> set[str]:
        """Return the names of the symbols that no section defines."""
        names = set()
        for _, kind, _, _, offset, size, link, _ in self.sections:
            if kind == 2:  # SHT_SYMTAB
                strings = self.sections[link][4]
                for entry in range(offset + 24, offset + size, 24):
                    name, _, _, section = struct.unpack_from("<IBBH", self.code, entry)
                    if section == 0:  # SHN_UNDEF
                        start = strings + name
                        names.add(self.code[start : self.code.index(b"\0", start)].decode())
        return names


def kernels_without_variants() -> list[Kernel]:
    """All but attention, which is registered as it is asked for, and products, which take seconds each."""
    several = {kernel.name for kernel in (*MATMUL.values(), *EXPERTS.values())}
    attention = ("attention_", "segments_")
    return [k for name, k in REGISTRY.items() if name not in several and not name.startswith(attention)]


@pytest.mark.skipif(sys.platform != "linux", reason="reads ELF files")
@pytest.mark.parametrize("simd", PATHS)
def test_no_kernel_can_raise(simd: str) -> None:
    """A kernel calls nothing but these functions: no Python exception, no helper of Numba's."""
    target = host.target(simd)
    kernels = [*kernels_without_variants(), *products(simd), *map(find, ATTENTION)]
    kernels += [EXPERTS[layout, min(TURNS[name], 4)] for name, layout in LAYOUTS.items()]
    library(target).load(kernels)
    calls = {}
    for made in kernels:
        code = read_object(cache_folder(target), made.name)
        assert code is not None
        calls[made.name] = Elf(code).undefined() - MAY_CALL
    assert {name: names for name, names in calls.items() if names} == {}
    code = read_object(cache_folder(target), "team_lead")
    assert code is not None and Elf(code).undefined() == {"sched_yield"}


def test_an_unknown_name_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        find("nothing of the kind")
