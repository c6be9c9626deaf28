"""Models of the hub, fetched by the real library from a stand-in on loopback."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from fakes.hub import COMMIT, FakeHub, serve
from fakes.progress import Recorder
from huggingface_hub import constants
from huggingface_hub.utils.tqdm import are_progress_bars_disabled
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.errors import DownloadError, ModelNotFoundError, OstinatoError
from ostinato.weights import hub_cache
from ostinato.weights.hub_names import PREFERENCE, HubName, choose, parse
from ostinato.weights.locks import file_lock
from ostinato.weights.part_names import part_names
from ostinato.weights.sources import InstalledModel, installed, remove, resolve

MODEL = b"GGUF" + bytes(range(256)) * 3000
OTHER = b"GGUF" + bytes(range(255, -1, -1)) * 200


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("OSTINATO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def no_other_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the library nothing that it would fetch or send on its own account."""
    harnesses = tmp_path / "harnesses.json"
    harnesses.write_text('{"standardEnvVars": [], "harnesses": {}}')
    monkeypatch.setattr(constants, "AGENT_HARNESSES_PATH", str(harnesses), raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with serve(FakeHub({"owner/repo": {"README.md": b"# repo", "model-Q4_K_M.gguf": MODEL}})) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        yield served


def refused(name: str) -> str:
    """Return the one line that says why the name leads nowhere."""
    with pytest.raises(OstinatoError) as error:
        resolve(name)
    assert "\n" not in str(error.value)
    return f"{type(error.value).__name__}: {error.value}"


class TestNames:
    def test_form(self) -> None:
        assert parse("hf:owner/repo") == HubName("owner/repo", None)
        assert parse("hf:owner/repo/a.gguf") == HubName("owner/repo", "a.gguf")
        assert parse("hf:o.w-n_er/Repo2.5/folder/b c.GGUF") == HubName("o.w-n_er/Repo2.5", "folder/b c.GGUF")

    @pytest.mark.parametrize(
        "name",
        [
            "hf:",
            "hf:repo",
            "hf:/repo",
            "hf:owner/",
            "hf:own er/repo",
            "hf:owner/re..po",
            "hf:../repo/a.gguf",
            "hf:owner/repo/",
            "hf:owner/repo//a.gguf",
            "hf:owner/repo/../a.gguf",
            "hf:owner/repo/..\\a.gguf",
            "hf:owner/repo/a\nb.gguf",
            "hf:owner/repo/\udc80.gguf",
            "hf:owner/repo/model.safetensors",
        ],
    )
    def test_other_forms_are_refused(self, name: str) -> None:
        assert refused(name).startswith("ModelNotFoundError: 'hf:")
        assert refused(name).endswith("write hf:owner/repo or hf:owner/repo/file.gguf")

    @settings(deadline=None, derandomize=True)
    @given(st.text(max_size=40))
    def test_any_text_is_a_name_or_one_line(self, text: str) -> None:
        try:
            name = parse(f"hf:{text}")
        except ModelNotFoundError as error:
            assert "\n" not in str(error)
        else:
            assert str(name) == f"hf:{text}"


class TestChoice:
    @pytest.mark.parametrize(
        ("files", "chosen"),
        [
            (["README.md", "a.gguf", "config.json"], "a.gguf"),
            (["m.Q8_0.gguf", "m.Q4_K_M.gguf", "m.Q4_0.gguf"], "m.Q4_K_M.gguf"),
            (["m-q8_0.gguf", "m-q4_1.gguf", "m-f16.gguf"], "m-q4_1.gguf"),
            (["m.F16.gguf", "m.Q8_0.gguf", "m.IQ4_0.gguf"], "m.Q8_0.gguf"),
            (["m-BF16.gguf", "m-F16.gguf"], "m-BF16.gguf"),
            (["m.Q4_K_M.gguf", "mmproj-m.Q8_0.gguf", "m.imatrix.gguf"], "m.Q4_K_M.gguf"),
            (["Q2_K/m-Q2_K.gguf", "Q4_K_M/m-Q4_K_M.gguf"], "Q4_K_M/m-Q4_K_M.gguf"),
            (["m-Q4_K_M-00001-of-00002.gguf", "m-Q2_K.gguf"], "m-Q2_K.gguf"),
            ([*part_names("m-Q4_K_M-00001-of-00002.gguf"), "m-Q2_K.gguf"], "m-Q4_K_M-00001-of-00002.gguf"),
            (part_names("m-00001-of-00003.gguf")[::-1], "m-00001-of-00003.gguf"),
            (["m-00001-of-00001.gguf"], "m-00001-of-00001.gguf"),
        ],
    )
    def test_a_repository_leads_to(self, files: list[str], chosen: str) -> None:
        assert choose("o/r", files) == chosen

    def test_preference_is_the_order(self) -> None:
        files = [f"m.{quantisation}.gguf" for quantisation in reversed(PREFERENCE)]
        for quantisation in PREFERENCE:
            assert choose("o/r", files) == f"m.{quantisation}.gguf"
            files.pop()

    @pytest.mark.parametrize(
        ("files", "message"),
        [
            (["README.md"], "hf:o/r has no GGUF file of a whole model; look for a GGUF repository"),
            (["m-00002-of-00002.gguf"], "hf:o/r has no GGUF file of a whole model"),
            (["b.gguf", "a.gguf"], "several GGUF files, name one as hf:o/r/FILE: a.gguf, b.gguf"),
            (["a.Q8_0.gguf", "b.Q8_0.gguf", "c.F16.gguf"], "FILE: a.Q8_0.gguf, b.Q8_0.gguf, c.F16.gguf"),
            ([f"{i:02}.gguf" for i in range(40)], "10.gguf, 11.gguf and 28 more"),
        ],
    )
    def test_no_choice(self, files: list[str], message: str) -> None:
        with pytest.raises(ModelNotFoundError) as error:
            choose("o/r", files)
        assert message in str(error.value)


class TestFetching:
    def test_a_file(self, hub: FakeHub, home: Path) -> None:
        progress = Recorder()
        path = resolve("hf:owner/repo/model-Q4_K_M.gguf", progress=progress)
        assert path.read_bytes() == MODEL
        assert path.is_relative_to(home / "hub")
        assert (progress.label, progress.total_bytes) == ("hf:owner/repo/model-Q4_K_M.gguf", len(MODEL))
        assert (progress.position, progress.num_finished) == (len(MODEL), 1)

    def test_a_repository(self, hub: FakeHub) -> None:
        hub.repos["owner/repo"]["deep/model-Q8_0.gguf"] = OTHER
        assert resolve("hf:owner/repo").read_bytes() == MODEL
        assert resolve("hf:owner/repo/deep/model-Q8_0.gguf").read_bytes() == OTHER

    @pytest.mark.parametrize("name", ["hf:owner/repo", "hf:owner/repo/model-Q4_K_M.gguf"])
    def test_what_is_here_needs_no_hub(
        self, hub: FakeHub, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = resolve("hf:owner/repo")
        hub.requests.clear()
        progress = Recorder()
        assert resolve(name, pull=False) == resolve(name, progress=progress) == path
        assert hub.requests == []
        assert not progress.started.is_set()

    def test_a_broken_connection_is_taken_up_where_it_broke(
        self, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 50_000)
        hub.break_after = [300_000]
        try:
            path = resolve("hf:owner/repo")
        except DownloadError:  # older libraries take it up at the next call
            path = resolve("hf:owner/repo")
        assert path.read_bytes() == MODEL
        assert hub.ranges[0] == 0 and 0 < hub.ranges[1] <= 300_000

    def test_bytes_that_are_not_those_listed(self, hub: FakeHub, home: Path) -> None:
        hub.served[MODEL] = MODEL[:-1] + b"x"
        expected, found = (hashlib.sha256(data).hexdigest() for data in (MODEL, hub.served[MODEL]))
        message = refused("hf:owner/repo")
        assert message.startswith("DownloadError: hf:owner/repo/model-Q4_K_M.gguf is not as the hub lists it")
        assert expected in message and found in message
        assert installed() == []
        hub.served.clear()
        assert resolve("hf:owner/repo").read_bytes() == MODEL

    def test_leftovers_of_killed_downloads_are_removed(self, hub: FakeHub, home: Path) -> None:
        blobs = hub_cache.repo_folder("owner/repo") / "blobs"
        blobs.mkdir(parents=True)
        (blobs / "abc.01234567.incomplete").write_bytes(MODEL)
        resolve("hf:owner/repo")
        assert [path.name for path in blobs.iterdir()] == [hashlib.sha256(MODEL).hexdigest()]

    def test_a_token(self, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
        hub.private["owner/repo"] = "hf_secret"
        assert "no repository owner/repo, or a private one" in refused("hf:owner/repo")
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        assert resolve("hf:owner/repo").read_bytes() == MODEL
        assert hub.tokens == {("api", "hf_secret"), ("owner", "hf_secret")}

    def test_the_library_is_left_as_it_was(self, hub: FakeHub, capfd: pytest.CaptureFixture[str]) -> None:
        resolve("hf:owner/repo")
        assert not are_progress_bars_disabled()
        assert capfd.readouterr() == ("", "")

    def test_two_at_once(self, hub: FakeHub) -> None:
        paths: list[Path] = []
        threads = [threading.Thread(target=lambda: paths.append(resolve("hf:owner/repo"))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(paths) == 2 and paths[0] == paths[1]
        assert hub.ranges == [0]


class TestParts:
    """A model in three files of different lengths."""

    @pytest.fixture
    def parts(self, hub: FakeHub) -> dict[str, bytes]:
        names = part_names("deep/m-00001-of-00003.gguf")
        contents = {name: OTHER[: 9000 + 1000 * number] for number, name in enumerate(names)}
        hub.repos["owner/split"] = {"README.md": b"# split", **contents}
        return contents

    @pytest.mark.parametrize("asked", ["", "/deep/m-00001-of-00003.gguf", "/deep/m-00003-of-00003.gguf"])
    def test_any_name_fetches_all(self, hub: FakeHub, parts: dict[str, bytes], asked: str) -> None:
        progress = Recorder()
        path = resolve(f"hf:owner/split{asked}", progress=progress)
        assert path.name == "m-00001-of-00003.gguf"
        assert [path.with_name(Path(name).name).read_bytes() for name in parts] == list(parts.values())
        assert progress.label == "hf:owner/split/deep/m-00001-of-00003.gguf"
        assert progress.position == progress.total_bytes == sum(map(len, parts.values()))
        hub.requests.clear()
        assert resolve(f"hf:owner/split{asked}", pull=False) == path
        assert hub.requests == []

    def test_they_are_one_model(self, parts: dict[str, bytes]) -> None:
        path, name = resolve("hf:owner/split"), "hf:owner/split/deep/m-00001-of-00003.gguf"
        size_bytes = sum(map(len, parts.values()))
        assert installed() == [InstalledModel(name, path, size_bytes, "hub")]
        assert remove("hf:owner/split/deep/m-00002-of-00003.gguf") >= size_bytes
        assert installed() == [] and not hub_cache.repo_folder("owner/split").exists()

    def test_a_broken_fetch_is_taken_up(self, hub: FakeHub, parts: dict[str, bytes]) -> None:
        third = parts["deep/m-00003-of-00003.gguf"]
        hub.served[third] = third[:-1] + b"x"
        assert "m-00003-of-00003.gguf is not as the hub lists it" in refused("hf:owner/split")
        assert installed() == []
        assert hub_cache.find_cached(parse("hf:owner/split/deep/m-00001-of-00003.gguf")) is None
        hub.served.clear()
        hub.ranges.clear()
        resolve("hf:owner/split")
        assert len(installed()) == 1 and len(hub.ranges) == 1

    def test_what_a_broken_fetch_left_can_be_removed(self, hub: FakeHub, parts: dict[str, bytes]) -> None:
        third = parts["deep/m-00003-of-00003.gguf"]
        hub.served[third] = third[:-1] + b"x"
        refused("hf:owner/split")
        assert remove("hf:owner/split/deep/m-00001-of-00003.gguf") >= sum(map(len, parts.values())) - len(
            third
        )
        assert not hub_cache.repo_folder("owner/split").exists()


class TestRefusals:
    def test_no_such_repository(self, hub: FakeHub) -> None:
        assert refused("hf:owner/nothing") == (
            "ModelNotFoundError: the hub has no repository owner/nothing, or a private one; "
            "check the spelling, or set HF_TOKEN"
        )

    def test_no_such_file(self, hub: FakeHub) -> None:
        assert refused("hf:owner/repo/model-Q8_0.gguf") == (
            "ModelNotFoundError: hf:owner/repo has no file 'model-Q8_0.gguf'; "
            "its GGUF files: model-Q4_K_M.gguf"
        )

    def test_a_part_of_a_split_model_that_lacks_another(self, hub: FakeHub) -> None:
        hub.repos["owner/repo"]["m-00001-of-00003.gguf"] = OTHER
        assert refused("hf:owner/repo/m-00001-of-00003.gguf") == (
            "ModelNotFoundError: hf:owner/repo has no file 'm-00002-of-00003.gguf'; "
            "its GGUF files: model-Q4_K_M.gguf"
        )
        assert installed() == []

    def test_gated(self, hub: FakeHub) -> None:
        hub.gated.add("owner/repo")
        assert refused("hf:owner/repo") == (
            "DownloadError: hf:owner/repo/model-Q4_K_M.gguf is gated: "
            "accept its terms on its page of the hub, set HF_TOKEN, pull again"
        )

    def test_a_hub_out_of_order(self, hub: FakeHub) -> None:
        hub.status = 418
        assert (
            refused("hf:owner/repo")
            == "DownloadError: the hub answered 418 for hf:owner/repo; try again later"
        )

    def test_no_hub(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.socket() as unheard:
            unheard.bind(("127.0.0.1", 0))
            monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{unheard.getsockname()[1]}")
            message = refused("hf:owner/repo")
        assert message.startswith("DownloadError: hf:owner/repo could not be fetched from the hub: ")
        assert "127.0.0.1" not in message

    def test_offline_by_choice(self, hub: FakeHub) -> None:
        code = (
            "from ostinato import errors; from ostinato.weights.sources import resolve\n"
            "try: resolve('hf:owner/repo')\n"
            "except errors.DownloadError as error: print(error)"
        )
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        answer = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
        )
        assert answer.stdout == (
            "hf:owner/repo is not on this machine, and HF_HUB_OFFLINE forbids to fetch it; unset it\n"
        )
        assert (answer.stderr, hub.requests) == ("", [])

    def test_a_full_disk(self, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*args: object, **kwargs: object) -> str:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(huggingface_hub, "hf_hub_download", full)
        assert "DownloadError: no space left in" in refused("hf:owner/repo")

    def test_not_here_and_not_to_be_pulled(self, hub: FakeHub) -> None:
        with pytest.raises(ModelNotFoundError, match="hf:owner/repo is not on this machine; fetch it with"):
            resolve("hf:owner/repo", pull=False)
        assert hub.requests == []


class TestCache:
    @pytest.fixture
    def two(self, hub: FakeHub) -> list[Path]:
        hub.repos["owner/repo"]["deep/model-Q8_0.gguf"] = OTHER
        return [resolve(f"hf:owner/repo/{file}") for file in ("deep/model-Q8_0.gguf", "model-Q4_K_M.gguf")]

    def test_installed(self, two: list[Path]) -> None:
        assert installed() == [
            InstalledModel("hf:owner/repo/deep/model-Q8_0.gguf", two[0], len(OTHER), "hub"),
            InstalledModel("hf:owner/repo/model-Q4_K_M.gguf", two[1], len(MODEL), "hub"),
        ]
        assert [resolve(model.name, pull=False) for model in installed()] == two

    def test_remove_a_file(self, two: list[Path], home: Path) -> None:
        assert remove("hf:owner/repo/deep/model-Q8_0.gguf") == len(OTHER)
        assert [model.path for model in installed()] == [two[1]]
        assert remove("hf:owner/repo/model-Q4_K_M.gguf") >= len(MODEL)
        assert not hub_cache.repo_folder("owner/repo").exists()

    def test_remove_a_repository(self, two: list[Path]) -> None:
        assert remove("hf:owner/repo") >= len(MODEL) + len(OTHER)
        assert installed() == []
        assert not hub_cache.repo_folder("owner/repo").exists()

    @pytest.mark.parametrize(
        "name", ["hf:owner/nothing", "hf:owner/repo/model-F16.gguf", "hf:owner/nothing/a.gguf"]
    )
    def test_remove_what_is_not_here(self, two: list[Path], name: str) -> None:
        with pytest.raises(ModelNotFoundError, match=f"{name} is not on this machine"):
            remove(name)
        assert len(installed()) == 2

    def test_remove_while_it_is_pulled(self, two: list[Path], home: Path) -> None:
        with (
            file_lock(home / "partial" / "hub--owner--repo.lock"),
            pytest.raises(OstinatoError, match="hf:owner/repo is being pulled by another process"),
        ):
            remove("hf:owner/repo")
        assert len(installed()) == 2

    def test_the_commit_last_seen_counts(self, home: Path) -> None:
        folder = hub_cache.repo_folder("o/r")
        for commit, content in (("old", b"old"), (COMMIT, b"seen"), ("zzz", b"newer")):
            (folder / "snapshots" / commit).mkdir(parents=True)
            (folder / "snapshots" / commit / "a.gguf").write_bytes(content)
        (folder / "snapshots" / "old" / "b.GGUF").write_bytes(b"only here")
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(COMMIT)
        assert [file.path.read_bytes() for file in hub_cache.cached_files("o/r")] == [b"seen", b"only here"]

    def test_a_link_that_leads_nowhere_is_not_installed(self, two: list[Path]) -> None:
        two[0].resolve().unlink()
        assert [model.path for model in installed()] == [two[1]]
