"""Streaming text: nothing is lost, nothing is taken back, and the pieces are the whole."""

from __future__ import annotations

from functools import cache

import pytest
from fakes.vocabularies import scored, smollm2
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.chat.detokenizer import Detokenizer
from ostinato.chat.tokenizer import Tokenizer
from ostinato.errors import InvalidRequestError

TEXTS = [
    "麤🦉ñ",
    "👩\u200d👩\u200d👧\u200d👦",
    "שלום עולם",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "\U0001d4b3\U0001d4b4\U0001d4b5",
    "e\u0301é",
    "🏳️\u200d🌈 ok",
]
SPACED = [" jumps over", "it 's .", "a , b", "two  spaces", "\nline", "  \n  ", " "]


@cache
def tokenizers() -> tuple[Tokenizer, Tokenizer]:
    return Tokenizer.from_metadata(smollm2()), Tokenizer.from_metadata(scored())


def cut(ids: list[int], lengths: list[int]) -> list[list[int]]:
    """Cut ids into pieces of these lengths, again and again."""
    pieces, at, turn = [], 0, 0
    while at < len(ids):
        length = lengths[turn % len(lengths)]
        pieces.append(ids[at : at + length])
        at, turn = at + length, turn + 1
    return pieces


def stream(tokenizer: Tokenizer, pieces: list[list[int]], control: bool = False) -> list[str]:
    detokenizer = Detokenizer(tokenizer, control=control)
    return [*(detokenizer.feed(piece) for piece in pieces), detokenizer.flush()]


@pytest.mark.parametrize("text", TEXTS + SPACED)
@pytest.mark.parametrize("which", [0, 1])
def test_text_in_any_pieces(which: int, text: str) -> None:
    """B01."""
    tokenizer = tokenizers()[which]
    ids = tokenizer.encode(text)
    for length in range(1, 6):
        pieces = stream(tokenizer, cut(ids, [length]))
        assert "".join(pieces) == tokenizer.decode(ids) == text
        assert "\ufffd" not in "".join(pieces)


@pytest.mark.parametrize("which", [0, 1])
@given(data=st.data())
@settings(max_examples=1000, deadline=None)
def test_random_ids_in_any_pieces(which: int, data: st.DataObject) -> None:
    """B03."""
    tokenizer = tokenizers()[which]
    # among all ids those of single bytes are rare, so they are drawn on purpose
    byte_like = st.integers(15, 270) if which else st.integers(17, 260)
    ids = data.draw(st.lists(st.one_of(byte_like, st.integers(0, tokenizer.vocab_size - 1)), max_size=30))
    lengths = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    control = data.draw(st.booleans())
    pieces = stream(tokenizer, cut(ids, lengths), control)
    assert "".join(pieces) == tokenizer.decode(ids, control=control)
    done = ""
    for piece, taken in zip(pieces, range(len(pieces)), strict=True):
        done += piece
        seen = [token_id for part in cut(ids, lengths)[: taken + 1] for token_id in part]
        assert tokenizer.decode(seen, control=control).startswith(done)  # only what is final has come out


def test_a_character_is_held_back_until_it_is_whole() -> None:
    tokenizer = tokenizers()[1]
    first, second, third, fourth = tokenizer.encode("🦙")
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.feed([token_id]) for token_id in (first, second, third)] == ["", "", ""]
    assert detokenizer.feed([fourth]) == "🦙"
    assert detokenizer.flush() == ""


def test_a_cut_character_comes_out_once_at_the_end() -> None:
    """B03."""
    tokenizer = tokenizers()[1]
    ids = tokenizer.encode("🦙")[:3]
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.feed(ids) == ""
    assert detokenizer.flush() == "\ufffd" == tokenizer.decode(ids)
    assert detokenizer.flush() == ""


def test_a_leading_space_is_kept() -> None:
    """B05."""
    for tokenizer in tokenizers():
        detokenizer = Detokenizer(tokenizer)
        assert detokenizer.feed(tokenizer.encode(" the")[:1]).startswith(" ")


def test_control_tokens_add_nothing_unless_shown() -> None:
    tokenizer = tokenizers()[0]
    ids = [1, *tokenizer.encode("hi"), 2]
    assert "".join(stream(tokenizer, cut(ids, [1]))) == "hi"
    assert "".join(stream(tokenizer, cut(ids, [1]), control=True)) == "<|im_start|>hi<|im_end|>"


def test_nothing_fed_is_nothing_written() -> None:
    detokenizer = Detokenizer(tokenizers()[0])
    assert detokenizer.feed([]) == detokenizer.flush() == ""


def test_an_id_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        Detokenizer(tokenizers()[0]).feed([10**6])
