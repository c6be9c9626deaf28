"""The rules that cut text into words: every name of a file, and a caller's name instead of the file's."""

from __future__ import annotations

import pytest
from fakes.vocabularies import scored, smollm2
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from ostinato.chat.pretokenizers import RULES, pretokenizer
from ostinato.chat.tokenizer import Tokenizer
from ostinato.errors import InvalidRequestError, UnsupportedModelError

TEXT = "I'M don't camelCase 4821+96350 e\u0301té  \n ==\u2029日本.\r\n\tx"
GPT2 = "I|'|M| don|'t| camelCase| 4821|+|96350| e|\u0301|té|  \n| ==|\u2029|日本|.|\r\n|\t|x"
CUT = {
    "gpt-2": GPT2,
    "smollm": GPT2.replace(" 4821", " |4|8|2|1").replace("96350", "9|6|3|5|0"),
    "qwen2": "I|'M| don|'t| camelCase| |4|8|2|1|+|9|6|3|5|0| e|\u0301té|  \n| ==|\u2029日本|.\r\n|\tx",
    "qwen35": "I|'M| don|'t| camelCase| |4|8|2|1|+|9|6|3|5|0| e\u0301té|  \n| ==|\u2029日本|.\r\n|\tx",
    "dbrx": "I|'M| don|'t| camelCase| |482|1|+|963|50| e|\u0301té|  \n| ==|\u2029日本|.\r\n|\tx",
    "gpt-4o": "I'M| don't| camel|Case| |482|1|+|963|50| e\u0301té|  \n| ==|\u2029日本|.\r\n|\tx",
    "tekken": "I|'M| don|'t| camel|Case| |4|8|2|1|+|9|6|3|5|0| e\u0301té|  \n| ==|\u2029日本|.\r\n|\tx",
    "deepseek-coder": "I|'|M| don|'|t| camelCase| |4|8|2|1|+|9|6|3|5|0| e|\u0301|té|  |\n| ==|\u2029日本|."
    "|\r|\n|\tx",
    "seed-coder": "I|'M| don|'t| camelCase| |4|8|2|1|+|9|6|3|5|0| e|\u0301té|  \n| ==|\u2029日本|.|\r\n|\tx",
    "default": "I|'|M| don|'|t| camelCase| |482|1|+|963|50| e|\u0301|té|  \n |==|\u2029|日本|.|\r\n|\t|x",
}
SAME = {
    "gpt-2": ["phi-2", "mpt", "olmo", "a.x-4.0", "mellum", "trillion", "granite-docling"],
    "smollm": ["starcoder", "refact", "command-r", "codeshell", "minerva-7b", "mellum2"],
    "qwen2": ["deepseek-r1-qwen", "megrez", "kormo", "stablelm2"],
    "dbrx": ["smaug-bpe", "llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0"],
    "gpt-4o": ["llama4", "kanana2"],
}
WHOLE_WORDS_AND_BOS = {"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0", "tekken"}


def cut(name: str, text: str) -> list[str]:
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pretokenizer(name).patterns]
    return [piece for piece, _ in pre_tokenizers.Sequence(splits).pre_tokenize_str(text)]


@pytest.mark.parametrize("name", CUT)
def test_where_a_rule_cuts(name: str) -> None:
    """B68: digits, contractions, blanks, accents apart from their letters, U+2029."""
    assert cut(name, TEXT) == CUT[name].split("|")


def test_every_name_has_one_of_these_rules() -> None:
    assert {*CUT, *(name for names in SAME.values() for name in names)} == set(RULES)
    for name, others in SAME.items():
        assert {RULES[other].patterns for other in others} == {RULES[name].patterns}


@pytest.mark.parametrize("name", RULES)
def test_what_comes_with_a_name(name: str) -> None:
    rule = RULES[name]
    assert (rule.whole_words, rule.add_bos) == (name in WHOLE_WORDS_AND_BOS,) * 2


@pytest.mark.parametrize("name", CUT)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
@settings(max_examples=30, deadline=None)
def test_a_rule_loses_nothing(name: str, text: str) -> None:
    assert "".join(cut(name, text)) == text


@pytest.mark.parametrize("named", [None, "mystery"])
def test_a_missing_or_unknown_name_is_refused_and_can_be_overridden(named: str | None) -> None:
    """B68: no default is taken in silence."""
    with pytest.raises(UnsupportedModelError, match=r"--pre-tokenizer NAME.*smollm.*tekken"):
        Tokenizer.from_metadata(smollm2(pre=named))
    text = "4821+96350 don't"
    overridden = Tokenizer.from_metadata(smollm2(pre=named), pre_tokenizer="smollm")
    assert overridden.encode(text) == Tokenizer.from_metadata(smollm2()).encode(text)


def test_the_callers_name_comes_before_the_files() -> None:
    text = "a  4821"
    with_another = Tokenizer.from_metadata(smollm2(), pre_tokenizer="gpt-2")
    assert with_another.encode(text) == Tokenizer.from_metadata(smollm2(pre="gpt-2")).encode(text)
    assert with_another.encode(text) != Tokenizer.from_metadata(smollm2()).encode(text)


def test_a_callers_name_is_checked() -> None:
    with pytest.raises(
        InvalidRequestError, match=r"pre_tokenizer is 'gpt2'; these are built: gpt-2, "
    ) as error:
        Tokenizer.from_metadata(smollm2(), pre_tokenizer="gpt2")
    assert error.value.param == "pre_tokenizer"
    with pytest.raises(InvalidRequestError, match="kind 'llama' is not cut by a rule; leave it out"):
        Tokenizer.from_metadata(scored(), pre_tokenizer="gpt-2")


@pytest.mark.parametrize("kind", ["bert", "t5", "rwkv", "plamo2", "gemma4", "no_vocab"])
def test_other_kinds_are_refused(kind: str) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"'{kind}': this kind of tokenizer is not built"):
        Tokenizer.from_metadata(smollm2(model=kind))


@pytest.mark.parametrize("metadata", [scored, smollm2])
def test_flags_that_change_the_text_are_honoured_or_refused(metadata) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UnsupportedModelError, match="remove_extra_whitespaces is true"):
        Tokenizer.from_metadata(metadata(remove_extra_whitespaces=True))
    assert Tokenizer.from_metadata(metadata(remove_extra_whitespaces=False)).encode("a")
    with_blank = metadata(add_space_prefix=True)
    if metadata is scored:
        assert Tokenizer.from_metadata(with_blank).encode("the") == Tokenizer.from_metadata(scored()).encode(
            " the"
        )
    else:
        with pytest.raises(UnsupportedModelError, match=r"add_space_prefix is true .* 'gpt2'"):
            Tokenizer.from_metadata(with_blank)


def test_blanks_behind_a_control_token_of_phi3() -> None:
    """As in its tokenizer.json: `<|user|>\\n` is one token, `<s> ` two."""
    tokens = scored()["tokenizer.ggml.tokens"].copy()
    tokens[2], tokens[4] = "<s>", "<|user|>"
    phi3 = Tokenizer.from_metadata({**scored(tokens=tokens), "general.architecture": "phi3"})
    plain = Tokenizer.from_metadata(scored(tokens=tokens))
    text = "<s> <|user|> \n\u3000hello<|user|>"
    assert phi3.encode(text, special=True) == [2, *plain.encode(" "), 4, *plain.encode("hello"), 4]
    assert phi3.decode(plain.encode(text, special=True), control=True) == text
