"""Vocabularies of many families against ids made with transformers, where those files are on this machine.

`OSTINATO_TEST_VOCABULARIES` names a folder of llama.cpp's `ggml-vocab-*.gguf`, each with its `.inp` (texts)
and `.out` (ids): its repository has them in `models/`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ostinato.chat.pretokenizers import RULES
from ostinato.chat.tokenizer import Tokenizer
from ostinato.weights.gguf import open_gguf

CHOSEN = os.environ.get("OSTINATO_TEST_VOCABULARIES")
FILES = sorted(Path(CHOSEN).glob("ggml-vocab-*.gguf")) if CHOSEN else []


def is_built(path: Path) -> bool:
    metadata = open_gguf(path).metadata
    kind, rule = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    return kind == "llama" or (kind == "gpt2" and rule in RULES)


@pytest.mark.skipif(not FILES, reason="OSTINATO_TEST_VOCABULARIES names no folder with vocabularies")
def test_every_text_of_every_vocabulary() -> None:
    """B68."""
    compared = 0
    for path in FILES:
        texts_path, ids_path = path.with_name(path.name + ".inp"), path.with_name(path.name + ".out")
        if not texts_path.exists() or not is_built(path):
            continue
        tokenizer = Tokenizer.from_metadata(open_gguf(path).metadata)
        texts = texts_path.read_bytes().decode().split("\n__ggml_vocab_test__\n")
        rows = [list(map(int, line.split())) for line in ids_path.read_text().split("\n")]
        for text, ids in zip(texts, rows, strict=True):
            assert tokenizer.encode(text) == ids, (path.name, text)
            compared += 1
    assert compared
