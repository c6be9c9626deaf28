"""Where a model name leads, what is installed, what can be removed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.config import DEFAULT_MODEL
from ostinato.errors import ModelNotFoundError, OstinatoError
from ostinato.weights.catalogue import CATALOGUE
from ostinato.weights.locks import file_lock
from ostinato.weights.places import lock_path, pulled_path, staging_folder
from ostinato.weights.redact import last_words, one_line, without_addresses
from ostinato.weights.sources import InstalledModel, installed, remove, resolve

KNOWN = (
    "A model is one of smollm2 (the default), gemma3-270m, qwen2.5-coder-1.5b; "
    "a path to a GGUF file or a folder of safetensors; or hf:owner/repo[/file.gguf]"
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OSTINATO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "home"


@pytest.fixture
def smollm2() -> Path:
    """A file that passes for the pulled model: of the right length, with a hole for contents."""
    path = pulled_path(CATALOGUE["smollm2"])
    path.parent.mkdir(parents=True)
    with open(path, "wb") as file:
        file.truncate(CATALOGUE["smollm2"].size_bytes)
    return path


def refused(name: str, *, pull: bool = True) -> str:
    """Return the one line that says why the name leads nowhere."""
    with pytest.raises(ModelNotFoundError) as error:
        resolve(name, pull=pull)
    assert "\n" not in str(error.value)
    return str(error.value)


class TestResolve:
    def test_a_path(self, tmp_path: Path) -> None:
        Path("a.gguf").write_bytes(b"GGUF")
        Path("no suffix").write_bytes(b"GGUF")
        (tmp_path / "b.gguf").write_bytes(b"GGUF")
        assert resolve("a.gguf") == Path("a.gguf")
        assert resolve("no suffix") == Path("no suffix")
        assert resolve("~/b.gguf") == tmp_path / "b.gguf"
        assert resolve(str(tmp_path / "b.gguf"), pull=False) == tmp_path / "b.gguf"

    def test_a_pulled_model(self, smollm2: Path) -> None:
        assert resolve("smollm2") == resolve("smollm2", pull=False) == smollm2

    def test_a_built_in_name_comes_before_a_file_of_that_name(self, smollm2: Path) -> None:
        Path("smollm2").write_bytes(b"mine")
        assert resolve("smollm2") == smollm2
        assert resolve("./smollm2") == Path("smollm2")

    def test_a_model_that_is_not_to_be_pulled(self) -> None:
        assert refused("smollm2", pull=False) == (
            "smollm2 is not on this machine; fetch it with `ostinato models pull smollm2`"
        )

    def test_the_default_is_a_built_in_model(self) -> None:
        assert DEFAULT_MODEL in CATALOGUE

    @pytest.mark.parametrize(
        ("name", "wrong"),
        [
            ("missing.gguf", "there is no file 'missing.gguf'"),
            ("./smollm2", "there is no file './smollm2' (did you mean smollm2?)"),
            ("models/SmolLM2.gguf", "there is no file 'models/SmolLM2.gguf' (did you mean smollm2?)"),
            ("owner/repo", "there is no file 'owner/repo' (did you mean hf:owner/repo?)"),
            ("smolm2", "unknown model 'smolm2' (did you mean smollm2?)"),
            ("Gemma3-270M", "unknown model 'Gemma3-270M' (did you mean gemma3-270m?)"),
            ("llama", "unknown model 'llama'"),
            ("", "the model name is empty"),
            ("  ", "the model name is empty"),
            ("a\nb", r"unknown model 'a\nb'"),
            ("a\0b", r"unknown model 'a\x00b'"),
            ("\udc80", r"unknown model '\udc80'"),
            ("~nobody-of-this-name/x", "there is no file '~nobody-of-this-name/x'"),
            ("x" * 5000, "unknown model 'xxx"),
        ],
    )
    def test_nowhere(self, name: str, wrong: str) -> None:
        assert refused(name).startswith(wrong)
        assert refused(name).endswith(KNOWN)
        assert len(refused(name)) < 400

    def test_a_folder(self) -> None:
        Path("empty").mkdir()
        Path("full").mkdir()
        for name in "bca":
            Path("full", f"{name}.gguf").touch()
        assert refused("empty") == f"'empty' is a folder, not a model file. {KNOWN}"
        assert refused("full").startswith(
            "'full' is a folder, not a model file; name a file in it, for example a.gguf, b.gguf, c.gguf"
        )

    def test_a_folder_with_one_model(self) -> None:
        Path("one").mkdir()
        for name in ("m-00002-of-00003.gguf", "m-00003-of-00003.gguf", "mmproj-m.gguf", "README.md"):
            Path("one", name).touch()
        assert resolve("one") == Path("one", "m-00002-of-00003.gguf")
        Path("one", "m-00001-of-00003.gguf").touch()
        assert resolve("one") == Path("one", "m-00001-of-00003.gguf")

    def test_a_folder_of_safetensors(self) -> None:
        Path("hf").mkdir()
        Path("hf", "model.safetensors").touch()
        assert refused("hf").startswith("'hf' is a folder, not a model file")
        Path("hf", "config.json").touch()
        assert resolve("hf") == Path("hf")
        Path("hf", "model.gguf").touch()
        assert resolve("hf") == Path("hf", "model.gguf")

    @pytest.mark.skipif(os.name != "posix", reason="makes links and pipes")
    def test_neither_file_nor_folder(self) -> None:
        os.symlink("nowhere", "link.gguf")
        os.mkfifo("pipe.gguf")
        assert refused("link.gguf").startswith("'link.gguf' is a link to a file that does not exist")
        assert refused("pipe.gguf").startswith("'pipe.gguf' is not a regular file")

    @settings(deadline=None, derandomize=True)
    @given(st.text(max_size=30).filter(lambda name: not name.startswith("hf:") and name not in CATALOGUE))
    def test_any_text_leads_somewhere_or_is_one_line(self, name: str) -> None:
        try:
            resolve(name, pull=False)
        except ModelNotFoundError as error:
            assert "\n" not in str(error)


class TestInstalled:
    def test_nothing(self) -> None:
        assert installed() == []

    def test_only_whole_models(self, smollm2: Path) -> None:
        gemma = pulled_path(CATALOGUE["gemma3-270m"])
        gemma.parent.mkdir(parents=True)
        gemma.write_bytes(b"GGUF")
        assert installed() == [InstalledModel("smollm2", smollm2, smollm2.stat().st_size, "built-in")]


class TestRemove:
    def test_a_pulled_model(self, smollm2: Path) -> None:
        assert remove("smollm2") == CATALOGUE["smollm2"].size_bytes
        assert installed() == []
        assert not smollm2.parent.exists()

    def test_an_unfinished_pull(self) -> None:
        staging_folder("smollm2").mkdir(parents=True)
        (staging_folder("smollm2") / "x.partial").write_bytes(bytes(123))
        assert remove("smollm2") == 123
        assert not staging_folder("smollm2").exists()

    def test_while_it_is_pulled(self, smollm2: Path) -> None:
        with (
            file_lock(lock_path("smollm2")),
            pytest.raises(OstinatoError, match="smollm2 is being pulled by another process"),
        ):
            remove("smollm2")
        assert smollm2.exists()

    def test_what_is_not_here(self) -> None:
        with pytest.raises(ModelNotFoundError, match="gemma3-270m is not on this machine"):
            remove("gemma3-270m")

    def test_what_was_never_pulled(self, smollm2: Path) -> None:
        Path("mine.gguf").write_bytes(b"GGUF")
        with pytest.raises(
            ModelNotFoundError, match=r"'mine\.gguf' is not a model .* can be removed: smollm2"
        ):
            remove("mine.gguf")
        assert Path("mine.gguf").exists()

    def test_what_the_system_refuses(self, smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(path: Path) -> None:
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr("shutil.rmtree", refuse)
        with pytest.raises(
            OstinatoError, match=r"smollm2 could not be removed: .*smollm2: Permission denied"
        ):
            remove("smollm2")


class TestWords:
    """What other programs say, as recorded, with the addresses invented."""

    @pytest.mark.parametrize(
        ("stderr", "words"),
        [
            (
                "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError'\n"
                "ERROR: Could not find a version that satisfies the requirement a==1.0\n"
                "ERROR: No matching distribution found for a==1.0\n"
                "\n[notice] A new release of pip is available: 23.2.1 -> 26.0\n",
                "No matching distribution found for a==1.0",
            ),
            (
                "ERROR: Could not install packages due to an OSError: HTTPSConnectionPool"
                "(host='pypi.example.org', port=443): Max retries exceeded with url: /simple/a/\n",
                "Could not install packages due to an OSError: HTTPSConnectionPool"
                "(..., port=443): Max retries exceeded with url: /simple/a/",
            ),
            (
                "Using CPython 3.11.7 interpreter at: /usr/bin/python\n"
                "error: Failed to fetch: https://me:secret@10.1.2.3:8080/simple/a/\n"
                "  cause: error sending request for url (https://me:secret@10.1.2.3:8080/simple/a/)\n"
                "  cause: Connection refused (os error 111)\n",
                "Failed to fetch: ...; cause: error sending request for url (...); "
                "cause: Connection refused (os error 111)",
            ),
            ("Traceback\n\x1b[31m  ValueError: no\x1b[0m\n", "ValueError: no"),
            ("", ""),
        ],
    )
    def test_last_words(self, stderr: str, words: str) -> None:
        assert last_words(stderr) == words

    def test_addresses(self) -> None:
        said = "git+ssh://me@host.example/x, [fe80::1]:80, mirror.example.com:8443/simple, file:///srv/simple"
        assert without_addresses(said) == "..., ..., .../simple, ..."
        kept = "tiny_model-1.0.2-py3-none-any.whl of tiny==1.0.2, read pip.conf or part01.bin"
        assert without_addresses(kept) == kept

    def test_one_line_is_short_and_printable(self) -> None:
        assert one_line("a\r\n\tb\x00\x1b[1mc") == "a bc"
        assert len(one_line("word " * 1000)) == 300


def test_importing_this_module_loads_nothing_outside_the_standard_library() -> None:
    code = (
        "import sys, ostinato; before = set(sys.modules); import ostinato.weights.sources; "
        "print({name.partition('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "{'ostinato'}\n"
