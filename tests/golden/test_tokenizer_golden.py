"""Token ids of 156 texts, exactly as independent implementations give them, for three real vocabularies."""

from __future__ import annotations

import json
import lzma
from functools import cache
from typing import Any

import pytest
from fakes.vocabularies import DATA, smollm2
from models import model_path

from ostinato.chat.tokenizer import Tokenizer
from ostinato.weights.gguf import open_gguf

MODELS = {"smollm2-135m": "smollm2", "gemma3-270m": "gemma3-270m", "qwen2.5-coder-1.5b": "qwen2.5-coder-1.5b"}


@cache
def golden() -> dict[str, list[dict[str, Any]]]:
    rows: dict[str, list[dict[str, Any]]] = json.loads(
        lzma.decompress((DATA / "tokenizer_golden.json.xz").read_bytes())
    )
    return rows


def differences(tokenizer: Tokenizer, rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    found = []
    for row in rows:
        text = row["text"]
        ids = {
            "plain": tokenizer.encode(text),
            "special": tokenizer.encode(text, special=True),
            "with_bos": tokenizer.encode(text, bos=True),
        }
        found += [(name, text) for name, encoded in ids.items() if encoded != row[name]]
        if tokenizer.decode(row["plain"]) != text:
            found.append(("decoded", text))
    return found


def test_every_row_of_the_stored_vocabulary() -> None:
    assert len(golden()["smollm2-135m"]) == 156
    assert differences(Tokenizer.from_metadata(smollm2()), golden()["smollm2-135m"]) == []


@pytest.mark.parametrize("name", MODELS)
def test_every_row_of_a_model_file(name: str) -> None:
    path = model_path(MODELS[name])
    if path is None:
        pytest.skip(f"{MODELS[name]} is not on this machine: pull it, or set OSTINATO_TEST_MODELS")
    tokenizer = Tokenizer.from_metadata(open_gguf(path).metadata)
    assert len(golden()[name]) == 156
    assert differences(tokenizer, golden()[name]) == []
    tokenizer.prepare()  # the library's encoder gives the same, where the first one was ours
    assert differences(tokenizer, golden()[name]) == []
