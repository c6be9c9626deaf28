"""Which files a model's text side is read from, by its path."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes.folders import make_folder
from fakes.vocabularies import smollm2

from ostinato.chat.sources import defaults_of, tokenizer_of, vocabulary_of
from ostinato.errors import InvalidRequestError, ModelFileError
from ostinato.sampling.defaults import ModelDefaults
from ostinato.sampling.params import SamplingParams

GGUF = Path("model.gguf")


@pytest.fixture(scope="module")
def folder() -> Path:
    made = make_folder("bytewise")
    (made / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "eos_token_id": [2, 5]}))
    return made


@pytest.mark.parametrize("file", ["", "model.safetensors", "model.safetensors.index.json"])
def test_a_folder_or_a_file_of_it(folder: Path, file: str) -> None:
    path = folder / file
    size = len(vocabulary_of(path, {}).tokens)
    tokenizer = tokenizer_of(path, {}, vocab_size=size + 3)
    assert tokenizer.vocab_size == size + 3 and tokenizer.end_ids == {2, 5}
    assert tokenizer.decode(tokenizer.encode("the quick")) == "the quick"
    assert defaults_of(path, {}) == ModelDefaults(SamplingParams(temperature=0.6))
    with pytest.raises(InvalidRequestError, match=r"tokenizer\.json itself"):
        tokenizer_of(path, {}, vocab_size=size, pre_tokenizer="gpt-2")


def test_a_gguf_file_speaks_for_itself() -> None:
    metadata = {**smollm2(), "general.sampling.top_k": 5}
    assert tokenizer_of(GGUF, metadata, vocab_size=49152).vocab_size == 49152
    assert vocabulary_of(GGUF, metadata).eos_id == 2
    assert defaults_of(GGUF, metadata) == ModelDefaults(SamplingParams(top_k=5))


def test_a_damaged_generation_config(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(ModelFileError, match=r"generation_config\.json is no JSON"):
        defaults_of(tmp_path, {})
    assert defaults_of(tmp_path.parent / "elsewhere", {}) == ModelDefaults()
