"""Vocabularies for tests without a model file: a real byte-level one, and a small one with scores."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parents[1] / "data"
SPACE = "▁"
CONTROL, USER_DEFINED, BYTE = 3, 4, 6
CORPUS = (
    "the quick brown fox jumps over the lazy dog and then the other dog jumps over the quick fox "
    "hello hello world the weather in the north is colder than the weather in the south aaaa aaaaaaaa bababa "
    "naïve café über straße <b>bold</b> 日本語 日本 1234 2345 3456 "
    "it's don't we'll {}[]()<>|/\\ == != :: ... "
)


@cache
def _smollm2() -> dict[str, Any]:
    with np.load(DATA / "smollm2_vocabulary.npz") as stored:
        control = stored["control"].tolist()
        tokens = control + [chr(letter) for letter in stored["letters"]]
        merges = []
        for left, right in stored["merges"].T.tolist():
            merges.append(f"{tokens[left]} {tokens[right]}")
            tokens.append(tokens[left] + tokens[right])
    types = np.ones(len(tokens), np.int32)
    types[: len(control)] = CONTROL
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": template("smollm2"),
    }


def smollm2(**changes: Any) -> dict[str, Any]:
    """Return the tokenizer keys of SmolLM2-135M-Instruct; changes name the end of a key, None removes it."""
    return _changed(_smollm2(), changes)


def scored(**changes: Any) -> dict[str, Any]:
    """Return the tokenizer keys of a small vocabulary with scores, laid out as Gemma's: control tokens,
    user-defined blanks and tags, bytes, pieces by score, characters last."""
    return _changed(_scored(), changes)


def template(name: str) -> str:
    """Return a stored chat template."""
    return (DATA / "templates" / f"{name}.jinja").read_text(encoding="utf-8")


def _changed(metadata: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    changed = dict(metadata)
    for name, value in changes.items():
        key = "tokenizer.chat_template" if name == "chat_template" else f"tokenizer.ggml.{name}"
        changed[key] = value
    return {key: value for key, value in changed.items() if value is not None}


@cache
def _scored() -> dict[str, Any]:
    control = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    user_defined = ["\n", "\n\n", "\n\n\n", "  ", "   ", "    ", "<b>", "</b>", "</s>"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = _train(CORPUS.replace(" ", SPACE), 200)
    tokens = control + user_defined + bytes_ + pieces
    kinds = [CONTROL] * len(control) + [USER_DEFINED] * len(user_defined) + [BYTE] * 256 + [1] * len(pieces)
    scores = (
        [-1000.0] * (len(control) + len(user_defined)) + [0.0] * 256 + [-float(n) for n in range(len(pieces))]
    )
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
    }


def _train(corpus: str, num_merges: int) -> list[str]:
    """Return pieces in the order in which byte-pair training would make them, then the characters."""
    words = [SPACE + word for word in corpus.split(SPACE)]
    parts = [list(word) for word in words]
    pieces: list[str] = []
    for _ in range(num_merges):
        pairs = Counter(pair for word in parts for pair in pairwise(word))
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        if "".join(best) not in pieces:
            pieces.append("".join(best))
        parts = [_merged(word, best) for word in parts]
    return pieces + sorted(set("".join(words)))


def _merged(word: list[str], pair: tuple[str, str]) -> list[str]:
    merged: list[str] = []
    for part in word:
        if merged and (merged[-1], part) == pair:
            merged[-1] += part
        else:
            merged.append(part)
    return merged
