"""The command as a process of its own: Ctrl-C, pipes, bytes on standard input, what a start must not load."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.tiny_gguf import chat_model

OSTINATO = [sys.executable, "-m", "ostinato"]
RUN = [*OSTINATO, "run", "-m", str(chat_model())]


def start(*command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    )


def interrupted_answer(*flags: str) -> tuple[bytes, str, int]:
    """Send Ctrl-C after the first byte of an answer."""
    process = start(*RUN, "Hello", "--ignore-eos", "-n", "200", "--context", "256", *flags)
    assert process.stdout is not None
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return first + out, err.decode(), process.returncode


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_ends_an_answer_with_its_text_and_numbers() -> None:
    out, err, code = interrupted_answer()
    assert out.endswith(b"\n")
    assert "Traceback" not in err
    assert re.search(r"ttft .* tokens? .*(interrupted|limit)", err)
    assert code == 0


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_before_an_answer_is_one_line() -> None:
    code = "import os, signal, sys; from ostinato.cli import app, terminal\n"
    code += "def load(*_, **__): os.kill(os.getpid(), signal.SIGINT)\n"
    code += f"terminal.load = load; app.main(['run', '-m', {str(chat_model())!r}, 'Hello'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "error: interrupted\n")


def test_a_reader_who_leaves_is_no_error() -> None:
    with start(*RUN, "Hello", "--ignore-eos", "-n", "200") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        err = process.stderr.read().decode()
    assert "Traceback" not in err and "Exception" not in err


def test_bytes_that_are_no_text_on_standard_input() -> None:
    done = subprocess.run(RUN, input=b"\xff\xfe", capture_output=True, timeout=60)
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.count(b"\n") == 1 and b"0xff at offset 0" in done.stderr


def modules_after(code: str, **environment: str) -> set[str]:
    script = f"{code}\nimport json, sys; print('\\n' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
        timeout=120,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_help_loads_nothing_heavy() -> None:
    code = "from ostinato.cli import app\ntry: app.main(['run', '--help'])\nexcept SystemExit: pass"
    heavy = {"numpy", "numba", "llvmlite", "tokenizers", "jinja2", "huggingface_hub", "rich.progress"}
    assert not heavy & modules_after(code)


def test_a_warm_start_needs_no_compiler() -> None:
    code = f"import ostinato\nwith ostinato.load({str(chat_model())!r}) as m: m.generate('Hello')"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
    assert not {"numba", "huggingface_hub", "rich", "typer"} & modules_after(code)


def test_the_first_run_compiles_and_says_so(tmp_path: Path) -> None:
    environment = {**os.environ, "OSTINATO_HOME": str(tmp_path)}
    done = subprocess.run(
        [*RUN, "Hello", "-n", "2"], capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "Compiling kernels" in done.stderr
    again = subprocess.run(
        [*RUN, "Hello", "-n", "2"], capture_output=True, text=True, env=environment, timeout=60
    )
    assert again.stdout == done.stdout
    assert "Compiling" not in again.stderr
