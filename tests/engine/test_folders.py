"""A folder of safetensors as a model, end to end: from text to text, and by every command."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path

import pytest
from fakes.checkpoints import reference
from fakes.model_folders import OVER, SPECIAL, model_folder, write_json

import ostinato
from ostinato import Options, SamplingParams
from ostinato.cli.app import main
from ostinato.errors import InvalidRequestError, ModelFileError, ModelNotFoundError
from ostinato.ops.batch import ForwardBatch
from ostinato.weights.opened import open_model
from ostinato.weights.quantize import FORMATS, quantized

GREEDY = SamplingParams(temperature=0.0)
HELLO = [{"role": "user", "content": "hello"}]
NEW = 12


def expected(folder: Path, ids: list[int], quantize: str | None = None) -> tuple[int, ...]:
    """Return how the reference goes on from these ids."""
    with open_model(folder) as opened:
        file = opened if quantize is None else quantized(opened, FORMATS[quantize])
        executor, blocks, written = reference(file, 128), [2, 0, 3, 1], list(ids)
        while len(written) < len(ids) + NEW:
            logits = executor.forward(ForwardBatch.single(written, 0, blocks))
            written.append(int(logits[0].argmax()))
    return tuple(written[len(ids) :])


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2"])
def test_text_is_that_of_the_reference(name: str) -> None:
    """One file, shards, and an architecture with norms from one."""
    folder = model_folder(name)
    with ostinato.load(str(folder)) as model:
        prompt = model.tokenizer.encode("the quick brown", bos=True)
        assert prompt[0] == 1 and model.tokenizer.decode(prompt[1:]) == "the quick brown"
        answer = model.generate("the quick brown", Options(max_tokens=NEW, sampling=GREEDY, ignore_eos=True))
    assert answer.token_ids == expected(folder, prompt)
    assert answer.text == model.tokenizer.decode(answer.token_ids)


@pytest.mark.parametrize("quantize", FORMATS)
def test_quantised_while_loading(quantize: str) -> None:
    folder = model_folder("smollm3")
    with ostinato.load(str(folder)) as floats, ostinato.load(str(folder), quantize=quantize) as model:
        assert model.weight_bytes_per_token < 0.6 * floats.weight_bytes_per_token
        prompt = model.tokenizer.encode("hello world", bos=True)
        answer = model.generate("hello world", Options(max_tokens=NEW, sampling=GREEDY, ignore_eos=True))
    assert answer.token_ids == expected(folder, prompt, quantize)


def test_a_file_in_the_folder_leads_to_the_same() -> None:
    options = Options(max_tokens=NEW, sampling=GREEDY)
    for name, file in (("llama", "model.safetensors"), ("qwen3", "model.safetensors.index.json")):
        folder = model_folder(name)
        with ostinato.load(str(folder)) as whole, ostinato.load(str(folder / file)) as part:
            assert part.chat(HELLO, options).token_ids == whole.chat(HELLO, options).token_ids


def test_a_chat_is_templated_and_ends_at_any_end_token() -> None:
    """B10: config.json names one end token, generation_config.json a second."""
    with ostinato.load(str(model_folder("llama"))) as model:
        rendered = model.template.render(HELLO)
        assert rendered.text == "<|turn|>user\nhello<|over|>\n<|turn|>assistant\n"
        prompt = model.tokenizer.encode_rendered(rendered)
        options = Options(max_tokens=5, sampling=GREEDY, ignore_eos=True)
        answer = model.chat(HELLO, options)
        assert answer.usage.prompt_tokens == len(prompt)
        assert answer.token_ids == model.generate(prompt, options).token_ids
        assert model.tokenizer.end_ids == {SPECIAL.index("</s>"), OVER}
        for end_id in model.tokenizer.end_ids:
            forced = SamplingParams(temperature=0.0, logit_bias={end_id: 100.0})
            ended = model.chat(HELLO, Options(max_tokens=5, sampling=forced))
            assert (ended.finish_reason, ended.text) == ("stop", "")


def test_the_makers_defaults_are_in_effect() -> None:
    with ostinato.load(str(model_folder("llama"))) as model:
        theirs = SamplingParams(temperature=1.5, top_k=3)
        assert model.defaults.sampling == theirs and not model.defaults.ignored
        first = {model.generate("hello", Options(max_tokens=1)).token_ids for _ in range(30)}
        assert 2 <= len(first) <= 3


def altered(folder: Path, **files: dict[str, object] | None) -> Path:
    """Make a copy of the llama folder, with JSON files written anew or, where None is given, left out."""
    shutil.copytree(model_folder("llama"), folder)
    for name, values in files.items():
        path = folder / f"{name}.json"
        path.unlink() if values is None else write_json(path, **values)
    return folder


def test_a_folder_without_the_small_files(tmp_path: Path) -> None:
    bare = altered(tmp_path / "bare", tokenizer_config=None, generation_config=None)
    with ostinato.load(str(bare)) as model:
        assert not model.has_template and model.tokenizer.end_ids == {2}
        assert model.defaults.sampling is None
        assert model.generate("hello", Options(max_tokens=2, ignore_eos=True)).usage.completion_tokens == 2


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    """It cannot write, but its card can be read."""
    folder = altered(tmp_path / "mute", tokenizer=None)
    with pytest.raises(ModelNotFoundError, match=r"tokenizer\.json does not exist: fetch all of the model"):
        ostinato.load(str(folder))
    card = ostinato.describe(str(folder))
    assert (card.architecture, card.vocab_size, card.end_tokens) == ("llama", None, None)


def test_a_tokenizer_of_another_model(tmp_path: Path) -> None:
    folder = altered(tmp_path / "foreign")
    path = folder / "tokenizer.json"
    whole = json.loads(path.read_text(encoding="utf-8"))
    whole["model"]["vocab"]["far"] = 200
    write_json(path, **whole)
    with pytest.raises(ModelFileError, match="has 201 tokens, but the model has 128"):
        ostinato.load(str(folder))


def test_a_rule_for_words_has_no_place() -> None:
    with pytest.raises(InvalidRequestError, match=r"tokenizer\.json itself"):
        ostinato.load(str(model_folder("llama")), pre_tokenizer="gpt-2")


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    """Run a command that succeeds; return what it writes to standard output and to standard error."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    out, err = capsys.readouterr()
    assert ended.value.code == 0, err
    return out, err


@pytest.mark.parametrize("flags", [(), ("--quantize", "q8_0")])
def test_every_command(
    flags: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(model_folder("llama"))
    out, err = command(capsys, "models", "show", path, *flags)
    assert ("Q8_0" in out, "BF16" in out, err) == (bool(flags), True, "")  # vectors stay
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert {"architecture llama", "vocabulary 94 tokens", "chat template yes"} <= set(lines)
    assert {"end tokens </s> <|over|>", "sampling temperature 1.5, top_k 3"} <= set(lines)

    answer = json.loads(command(capsys, "run", "-m", path, "-n", "4", "--json", "hello", *flags)[0])
    assert (answer["usage"]["completion_tokens"], answer["sampling"]["top_k"]) == (4, 3)
    assert command(capsys, "run", "-m", path, "-n", "4", "hello", *flags)[0] == answer["text"] + "\n"

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello\nthe fox\n")))
    out, err = command(capsys, "chat", "-m", path, "-n", "3", "-t", "0", *flags)
    assert out and len(err.splitlines()) == 2 and "cached" in err.splitlines()[1]

    measured = json.loads(command(capsys, "bench", "-m", path, "-p", "32", "-n", "4", "--json", *flags)[0])
    assert measured["model"] == path and measured["decode_tps"] > 0
