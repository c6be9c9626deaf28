"""The commands in this process: what goes to standard output, what to standard error, and the exit code."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest
from fakes.tiny_gguf import (
    CONTEXT,
    base_model,
    chat_model,
    float_model,
    opinionated_model,
    write_model,
)
from fakes.vocabularies import smollm2

from ostinato.cli.app import main

Capture = pytest.CaptureFixture[str]
CLOCKS = r"ttft \d+ ms \(\d+ prompt tokens.*\) · \d+ tokens at \d+(\.\d)? tok/s · total "


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert isinstance(ended.value.code, int)
    return ended.value.code


def run(*arguments: str) -> int:
    return call("run", "-m", str(chat_model()), "-n", "6", *arguments)


def feed(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def one_error_line(capsys: Capture) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("error: ")
    return line


def test_an_answer_goes_to_stdout_and_its_clocks_to_stderr(capsys: Capture) -> None:
    assert run("Hello") == 0
    out, err = capsys.readouterr()
    assert out.endswith("\n") and len(out) > 1
    assert re.match(CLOCKS, err.splitlines()[-1])


def test_the_same_command_gives_the_same_answer(capsys: Capture) -> None:
    assert run("Hello", "-t", "3") == 0
    first = capsys.readouterr().out
    assert run("Hello", "-t", "3") == 0
    assert capsys.readouterr().out == first
    assert run("Hello", "-t", "3", "--seed", "1") == 0
    assert capsys.readouterr().out != first


def test_no_stats(capsys: Capture) -> None:
    assert run("Hello", "--no-stats") == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_the_prompt_comes_from_standard_input(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert run("Hello\n") == 0
    expected = capsys.readouterr().out
    feed(monkeypatch, b"Hello\n")
    assert run(*arguments) == 0
    assert capsys.readouterr().out == expected


def test_json_has_everything(capsys: Capture) -> None:
    assert run("Hello", "--json", "--trace") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["usage"]["completion_tokens"] == len(answer["token_ids"]) == len(answer["trace"]) == 6
    assert answer["finish_reason"] == "length"
    assert answer["timings"]["ttft_s"] > 0
    assert answer["model"] == str(chat_model())
    assert len(answer["trace"][0]["candidates"]) == 5


def test_a_trace_has_a_line_for_each_token(capsys: Capture) -> None:
    assert run("Hello", "--trace") == 0
    _, err = capsys.readouterr()
    lines = err.splitlines()
    assert len(lines) == 7
    assert [line.split()[0] for line in lines[:6]] == ["1", "2", "3", "4", "5", "6"]
    assert all(" ms  " in line and ">" in line for line in lines[:6])


def test_raw_and_system_change_the_prompt(capsys: Capture) -> None:
    counts = []
    for arguments in (("Hello",), ("Hello", "--raw"), ("Hello", "-s", "Be brief.")):
        assert run(*arguments, "--json") == 0
        counts.append(json.loads(capsys.readouterr().out)["usage"]["prompt_tokens"])
    assert counts[1] == 1
    assert len(set(counts)) == 3


def test_a_base_model_goes_on_from_the_text(capsys: Capture) -> None:
    assert call("run", "-m", str(base_model()), "-n", "3", "Hello", "--json") == 0
    assert json.loads(capsys.readouterr().out)["usage"]["prompt_tokens"] == 1


def test_asking_a_base_model_to_chat_is_one_clear_error(capsys: Capture) -> None:
    assert call("chat", "-m", str(base_model())) == 1
    assert "chat template" in one_error_line(capsys)
    assert call("run", "-m", str(base_model()), "-s", "Be brief.", "Hello") == 1
    assert "chat template" in one_error_line(capsys)


def test_every_sampling_value_reaches_the_sampler(capsys: Capture) -> None:
    flags = ["-t", "0", "--top-k", "5", "--top-p", "0.9", "--min-p", "0.1", "--repetition-penalty", "1.2"]
    flags += [
        "--repetition-window",
        "9",
        "--presence-penalty",
        "0.5",
        "--frequency-penalty",
        "0.5",
        "--seed",
        "3",
    ]
    assert run("Hello", *flags, "--json") == 0
    capsys.readouterr()
    assert run("Hello", "-t", "0", "--logit-bias", "500=100", "--logit-bias", "7=-1.5", "--json") == 0
    assert json.loads(capsys.readouterr().out)["token_ids"] == [500] * 6
    assert run("Hello", "-t", "0", "--logit-bias", "500=100", "--stop-token-id", "500", "--json") == 0
    assert json.loads(capsys.readouterr().out)["finish_reason"] == "stop"


def sampling_in_effect(capsys: Capture, model: Path, *flags: str) -> dict[str, float]:
    assert call("run", "-m", str(model), "-n", "2", "Hello", "--json", *flags) == 0
    sampling: dict[str, float] = json.loads(capsys.readouterr().out)["sampling"]
    return sampling


def test_flags_come_before_the_models_defaults_and_those_before_ours(capsys: Capture) -> None:
    ours = sampling_in_effect(capsys, chat_model())
    assert (ours["temperature"], ours["min_p"], ours["top_k"], ours["repetition_penalty"]) == (
        0.7,
        0.05,
        0,
        1.1,
    )
    theirs = sampling_in_effect(capsys, opinionated_model())
    assert (theirs["temperature"], theirs["min_p"], theirs["top_k"]) == (1.0, 0.25, 3)
    assert (theirs["repetition_penalty"], theirs["seed"]) == (1.0, 0)
    asked = sampling_in_effect(capsys, opinionated_model(), "-t", "0.2", "--min-p", "0", "--seed", "5")
    assert (asked["temperature"], asked["min_p"], asked["top_k"], asked["seed"]) == (0.2, 0.0, 3, 5)


def test_what_is_ignored_of_a_models_defaults_is_said_once(capsys: Capture) -> None:
    assert call("run", "-m", str(opinionated_model()), "-n", "2", "Hello", "--no-stats") == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ignored of the model's defaults: general.sampling.temp: temperature is -1.0")


def test_the_card_shows_defaults_and_end_tokens(capsys: Capture) -> None:
    """B48 and B10: what will be in effect can be seen before."""
    assert call("models", "show", str(opinionated_model())) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["sampling"] == "top_k 3, min_p 0.25"
    assert lines["ignored"].startswith("general.sampling.temp: ")
    assert lines["end"].split()[:3] == ["tokens", "<|endoftext|>", "<|im_end|>"]
    assert call("models", "show", str(chat_model()), "--json") == 0
    card = json.loads(capsys.readouterr().out)
    assert card["sampling"] is None and "<|im_end|>" in card["end_tokens"]


def test_the_card_of_a_model_whose_tokenizer_is_not_built(capsys: Capture) -> None:
    path = str(write_model("other", smollm2(model="bert")))
    assert call("models", "show", path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "end tokens     unknown" in lines and "chat template  yes" in lines
    assert call("run", "-m", path, "Hello") == 1
    assert "'bert': this kind of tokenizer is not built" in one_error_line(capsys)


def test_a_file_whose_rule_for_words_is_unknown(capsys: Capture) -> None:
    """B68: an error that says how to go on, and going on so."""
    path = str(write_model("unnamed", smollm2(pre="mystery")))
    assert call("run", "-m", path, "Hello") == 1
    assert "--pre-tokenizer NAME" in one_error_line(capsys)
    assert call("run", "-m", path, "-n", "2", "Hello", "--pre-tokenizer", "smollm") == 0
    capsys.readouterr()
    assert call("run", "-m", path, "Hello", "--pre-tokenizer", "smol") == 2
    assert "pre_tokenizer is 'smol'" in one_error_line(capsys)
    assert call("models", "show", path) == 0


def missing(folder: Path) -> str:
    return str(folder / "missing.gguf")


def corrupt(folder: Path) -> str:
    path = folder / "corrupt.gguf"
    path.write_bytes(chat_model().read_bytes()[:5000])
    return str(path)


def page(folder: Path) -> str:
    path = folder / "page.gguf"
    path.write_text("<!DOCTYPE html><html></html>")
    return str(path)


@pytest.mark.parametrize("make", [missing, corrupt, page, str, lambda _: "smolm2"])
@pytest.mark.parametrize("command", [("run",), ("models", "show"), ("bench",)])
def test_a_bad_model_is_one_line_and_exit_1(
    make: object, command: tuple[str, ...], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(B61, B63)"""
    name = make(tmp_path)  # type: ignore[operator]
    arguments = (*command, name) if command[0] == "models" else (*command, "-m", name)
    feed(monkeypatch, b"Hello")
    assert call(*arguments) == 1
    assert name in one_error_line(capsys)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("",), "empty"),
        (("Hello", "-t", "hot"), "temperature"),
        (("Hello", "-t", "-1"), "temperature"),
        (("Hello", "-t", "nan"), "temperature"),
        (("Hello", "--top-p", "1.5"), "top_p"),
        (("Hello", "--top-k", "-7"), "top_k"),
        (("Hello", "--seed", "-1"), "seed"),
        (("Hello", "--min-tokens", "99"), "min_tokens"),
        (("Hello", "-n", "0"), "max_tokens"),
        (("Hello", "-n", "100000"), "100000"),
        (("Hello", "--stop", ""), "stop"),
        (("Hello", "--stop-token-id", "99999999"), "stop_token_ids"),
        (("Hello", "--logit-bias", "x"), "--logit-bias"),
        (("Hello", "--logit-bias", "99999999=1"), "logit_bias"),
        (("Hello", "--threads", "0"), "--threads"),
        (("Hello", "--threads", "100000"), "threads"),
        (("Hello", "--context", "99999999"), "context"),
        (("Hello", "--raw", "-s", "x"), "--system"),
        (
            (
                "Hello",
                "--no-such-flag",
            ),
            "--no-such-flag",
        ),
        (("Hello", "again"), "again"),
        (("word " * CONTEXT,), str(CONTEXT)),
    ],
)
def test_a_wrong_call_is_one_line_and_exit_2(arguments: tuple[str, ...], words: str, capsys: Capture) -> None:
    assert run(*arguments) == 2
    assert words in one_error_line(capsys)


def test_invalid_utf8_on_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    feed(monkeypatch, b"abc\xff")
    assert run() == 2
    assert "0xff at offset 3" in one_error_line(capsys)


def test_an_empty_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    feed(monkeypatch, b"")
    assert run() == 2
    assert "empty" in one_error_line(capsys)


def test_unknown_simd_path(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("OSTINATO_SIMD", "mmx")
    assert run("Hello") == 2
    assert "OSTINATO_SIMD is 'mmx'" in one_error_line(capsys)


def test_a_conversation_reads_only_what_is_new(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    feed(monkeypatch, b"Hello\n\nAnd then?\n/clear\nHello\n/bye\nnever read\n")
    assert call("chat", "-m", str(chat_model()), "-n", "5", "-t", "0") == 0
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert len(lines) == 3
    assert "cached" not in lines[0]
    assert "cached" in lines[1]
    answers = out.splitlines()
    assert answers[0] == answers[-1]


def test_an_overlong_conversation_is_an_error_but_not_its_end(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    feed(monkeypatch, b"word " * CONTEXT + b"\nHello\n")
    assert call("chat", "-m", str(chat_model()), "-n", "5") == 0
    out, err = capsys.readouterr()
    assert err.splitlines()[0].startswith("error: ")
    assert len(err.splitlines()) == 2 and out


def test_bench_reports_medians_and_the_share_of_the_limit(capsys: Capture) -> None:
    arguments = ("bench", "-m", str(chat_model()), "-p", "64", "-n", "8", "-r", "2")
    assert call(*arguments, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["model"] == str(chat_model())
    assert {"threads", "simd"} <= result.keys()
    assert len(result["prefill_samples_tps"]) == len(result["decode_samples_tps"]) == 2
    assert min(result["prefill_tps"], result["decode_tps"], result["decode_bandwidth_share"]) > 0
    assert call(*arguments) == 0
    assert "prefill" in capsys.readouterr().out


def test_quantize(capsys: Capture) -> None:
    """A file of floats is shown and run in eight or four bits; what cannot be quantised is refused."""
    path = str(float_model())
    assert call("models", "show", path, "--json", "--quantize", "q8_0") == 0
    assert json.loads(capsys.readouterr().out)["tensor_types"].keys() == {"Q8_0", "F32"}
    answers = []
    for flags in ((), ("--quantize", "q8_0"), ("--quantize", "q4_1")):
        assert call("run", "Hello", "-m", path, "-n", "4", "--json", *flags) == 0
        answers.append(json.loads(capsys.readouterr().out)["usage"]["completion_tokens"])
    assert answers == [4, 4, 4]
    for flags, message in (
        (("-m", path, "--quantize", "q5_k"), "error: quantize is 'q5_k'; allowed: q8_0, q4_1"),
        (("-m", str(chat_model()), "--quantize", "q8_0"), "has no matrices of floats"),
    ):
        assert call("run", "Hello", *flags) == 2
        assert message in capsys.readouterr().err


def test_doctor_tells_about_machine_cache_and_models(capsys: Capture) -> None:
    assert call("doctor", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["read_gbps"] > 0 and found["int8_gops"] > 0
    assert found["kernel_cache"]["count"] > 0
    assert call("doctor") == 0
    out = capsys.readouterr().out
    for word in ("processor", "instructions", "threads", "memory read", "kernel cache", "models"):
        assert word in out


def test_models_are_listed_and_shown(capsys: Capture) -> None:
    assert call("models") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()][:3] == [
        "smollm2",
        "gemma3-270m",
        "qwen2.5-coder-1.5b",
    ]
    assert call("models", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) >= 3
    assert call("models", "show", str(chat_model()), "--json") == 0
    card = json.loads(capsys.readouterr().out)
    assert (card["architecture"], card["context_length"], card["has_template"]) == ("llama", CONTEXT, True)
    assert sum(share["parameters"] for share in card["tensor_types"].values()) == card["parameters"]
    assert call("models", "show", str(chat_model())) == 0
    assert "Q8_0" in capsys.readouterr().out


def test_help_and_version(capsys: Capture) -> None:
    assert call("--version") == 0
    assert capsys.readouterr().out.startswith("ostinato ")
    for command in ("run", "chat", "bench", "doctor", "models"):
        assert call(command, "--help") == 0
        assert "Usage" in capsys.readouterr().out
