"""Reading the tokenizer's keys: each fault is one clear line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fakes.vocabularies import scored, smollm2

from ostinato.chat.pretokenizers import RULES
from ostinato.chat.tokenizer import Tokenizer
from ostinato.chat.vocabulary import TokenType, read_chat_template, read_vocabulary
from ostinato.errors import ModelFileError, UnsupportedModelError

TYPES = scored()["tokenizer.ggml.token_type"]
SCORES = scored()["tokenizer.ggml.scores"]


def refused(metadata: dict[str, Any]) -> str:
    with pytest.raises(ModelFileError) as caught:
        Tokenizer.from_metadata(metadata)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def with_entry(array: np.ndarray[Any, Any], index: int, value: Any) -> np.ndarray[Any, Any]:
    changed = array.copy()
    changed[index] = value
    return changed


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": None}, "tokenizer.ggml.model is missing"),
        ({"model": 5}, "tokenizer.ggml.model holds int, expected text"),
        ({"model": "bert"}, "'bert': this kind of tokenizer is not built (built: gpt2, llama)"),
        ({"tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"tokens": []}, "tokenizer.ggml.tokens is empty"),
        ({"tokens": ["a", 7]}, "tokenizer.ggml.tokens holds list, expected an array of text"),
        ({"tokens": np.arange(3)}, "tokenizer.ggml.tokens holds ndarray"),
        ({"scores": None}, "tokenizer.ggml.scores is missing"),
        ({"scores": SCORES[:-1]}, "tokenizer.ggml.scores has 464 entries, but the file has 465 tokens"),
        ({"scores": ["1"] * 465}, "tokenizer.ggml.scores holds list, expected an array of numbers"),
        ({"scores": with_entry(SCORES, 300, np.nan)}, "tokenizer.ggml.scores of token 300 is not a number"),
        ({"token_type": TYPES[:9]}, "tokenizer.ggml.token_type has 9 entries"),
        (
            {"token_type": with_entry(TYPES, 4, 9)},
            "tokenizer.ggml.token_type of token 4 is 9, expected 1 to 6",
        ),
        ({"token_type": with_entry(TYPES, 4, 0)}, "tokenizer.ggml.token_type of token 4 is 0"),
        ({"token_type": with_entry(TYPES, 20, 1)}, "no token for the byte 0x05"),
        ({"token_type": with_entry(TYPES, 400, 6)}, "token 400 is of type byte, expected <0x00> to <0xFF>"),
        ({"bos_token_id": 465}, "tokenizer.ggml.bos_token_id is 465, but the file has 465 tokens"),
        ({"eos_token_id": -2}, "tokenizer.ggml.eos_token_id is -2"),
        ({"eot_token_id": "x"}, "tokenizer.ggml.eot_token_id holds str, expected an integer"),
        ({"eom_token_id": True}, "tokenizer.ggml.eom_token_id holds bool"),
        ({"add_bos_token": 1}, "tokenizer.ggml.add_bos_token holds int, expected true or false"),
        ({"add_space_prefix": "no"}, "tokenizer.ggml.add_space_prefix holds str"),
        ({"pre": 3}, "tokenizer.ggml.pre holds int"),
        ({"chat_template": 3}, "tokenizer.chat_template holds int, expected text"),
    ],
)
def test_faults_of_the_scored_kind(changes: dict[str, Any], said: str) -> None:
    assert said in refused(scored(**changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"merges": None}, "tokenizer.ggml.merges is missing"),
        ({"merges": ["ab"]}, "tokenizer.ggml.merges[0] is 'ab', expected two tokens with a space between"),
        (
            {"merges": ["h e", "h qqq"]},
            "tokenizer.ggml.merges[1] is 'h qqq', but there is no plain token 'qqq'",
        ),
        ({"merges": ["q qzx"]}, "no plain token 'qzx'"),
        ({"merges": ["<|im_start|> h"]}, "no plain token '<|im_start|>'"),
        ({"pre": None}, "tokenizer.ggml.pre is missing; if you know which rule"),
        (
            {"pre": "mystery"},
            "is 'mystery', which is not built; if you know which rule the model was trained with, name it "
            "(`--pre-tokenizer NAME`, `load(..., pre_tokenizer=NAME)`): gpt-2,",
        ),
    ],
)
def test_faults_of_the_byte_level_kind(changes: dict[str, Any], said: str) -> None:
    assert said in refused(smollm2(**changes))


def test_what_is_merely_not_built_is_told_apart_from_damage() -> None:
    for metadata in (scored(model="t5"), smollm2(pre="mystery"), smollm2(pre=None)):
        with pytest.raises(UnsupportedModelError):
            Tokenizer.from_metadata(metadata)


def test_a_piece_twice_is_a_fault() -> None:
    tokens = list(scored()["tokenizer.ggml.tokens"])
    tokens[-1] = tokens[-2]
    assert f"the piece {tokens[-1]!r} twice" in refused(scored(tokens=tokens))


@pytest.mark.parametrize("absent", [-1, 2**32 - 1])
def test_ids_that_say_there_is_no_such_token(absent: int) -> None:
    vocabulary = read_vocabulary(scored(padding_token_id=absent, eot_token_id=np.int64(5)))
    assert vocabulary.pad_id is None and vocabulary.eot_id == 5


def test_what_is_read() -> None:
    vocabulary = read_vocabulary(scored(add_eos_token=np.True_))
    assert (vocabulary.kind, vocabulary.bos_id, vocabulary.eos_id, vocabulary.unk_id) == ("llama", 2, 1, 3)
    assert vocabulary.add_bos is True and vocabulary.add_eos is True and vocabulary.add_space_prefix is False
    assert vocabulary.ids_of(TokenType.CONTROL) == [0, 1, 2, 3, 4, 5]
    assert vocabulary.merges == [] and vocabulary.chat_template is None


def test_without_types_every_token_is_normal() -> None:
    vocabulary = read_vocabulary(smollm2(token_type=None))
    assert vocabulary.ids_of(TokenType.NORMAL) == list(range(49152))


def test_an_empty_template_is_none() -> None:
    assert read_chat_template({"tokenizer.chat_template": ""}) is None
    assert read_chat_template({}) is None


@pytest.mark.parametrize("name", RULES)
def test_every_rule_can_be_used(name: str) -> None:
    tokenizer = Tokenizer.from_metadata(smollm2(pre=name))
    text = "It's 1234567 o'clock\n\n  in  Köln, ΣΊΣΥΦΟΣ!!\t日本語 \r\n "
    assert tokenizer.decode(tokenizer.encode(text)) == text


def words(name: str, text: str) -> list[str]:
    """Cut with a rule alone: a vocabulary whose only merges would join everything shows where it may not."""
    tokenizer = Tokenizer.from_metadata(smollm2(pre=name))
    cut = tokenizer._pieces.prepare().pre_tokenizer.pre_tokenize_str(text)
    return [text[start:end] for _, (start, end) in cut]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("gpt-2", "I've 4821+96350", ["I", "'ve", " 4821", "+", "96350"]),
        ("smollm", "I've 4821+96350", ["I", "'ve", " ", "4", "8", "2", "1", "+", "9", "6", "3", "5", "0"]),
        ("qwen2", "I'VE 4821+9", ["I", "'VE", " ", "4", "8", "2", "1", "+", "9"]),
        ("llama-bpe", "I've 4821+96350", ["I", "'ve", " ", "482", "1", "+", "963", "50"]),
        ("gpt-2", " \n ==", [" \n", " =="]),
        ("qwen2", " \n ==\n\n", [" \n", " ==\n\n"]),
        ("qwen2", "a\r\n\tb", ["a", "\r\n", "\tb"]),
        ("gpt-2", "a   b", ["a", "  ", " b"]),
        ("gpt-2", "e\u0301 é", ["e", "\u0301", " é"]),
        ("qwen2", "x\u2029y\u00a0z", ["x", "\u2029y", "\u00a0z"]),
    ],
)
def test_where_rules_cut(name: str, text: str, expected: list[str]) -> None:
    assert words(name, text) == expected


def test_whole_words_are_taken_where_the_rule_says_so() -> None:
    tokens = [*smollm2()["tokenizer.ggml.tokens"], "qzqzq"]
    types = np.append(smollm2()["tokenizer.ggml.token_type"], 1).astype(np.int32)
    changes = {"tokens": tokens, "token_type": types}
    assert Tokenizer.from_metadata(smollm2(pre="llama-bpe", **changes)).encode("qzqzq") == [49152]
    assert 49152 not in Tokenizer.from_metadata(smollm2(pre="qwen2", **changes)).encode("qzqzq")
