"""Joining by score: our own encoder, the library's, and a slow one that tries every pair at every turn."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest
from fakes.vocabularies import scored
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.chat.scored_bpe import ScoredBpe, join_by_rank, merges_of
from ostinato.chat.vocabulary import read_vocabulary

PIECES = st.lists(st.text("abc", min_size=1, max_size=5), max_size=25, unique=True)
TEXTS = st.text(alphabet="helo wrdthquickbnfxjmpsvazyg'▁<b>/日本語ñ🦙\x00\t1234=!", max_size=80)


@cache
def encoder(patience_chars: int) -> ScoredBpe:
    return ScoredBpe(read_vocabulary(scored()), patience_chars)


def join_slowly(text: str, rank: dict[str, int]) -> list[str]:
    parts = list(text)
    while True:
        pairs = [(rank[a + b], at) for at, (a, b) in enumerate(pairwise(parts)) if a + b in rank]
        if not pairs:
            return parts
        _, at = min(pairs)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@given(pieces=PIECES, text=st.text("abc", max_size=30))
@settings(max_examples=400, deadline=None)
def test_joining_is_what_the_slow_encoder_does(pieces: list[str], text: str) -> None:
    rank = {piece: number for number, piece in enumerate(pieces)}
    assert join_by_rank(text, rank) == join_slowly(text, rank)


@given(pieces=PIECES, text=st.text("abc", max_size=30))
@settings(max_examples=400, deadline=None)
def test_one_order_of_merges_is_as_good_as_another(pieces: list[str], text: str) -> None:
    rank = {piece: number for number, piece in enumerate([*"abc", *(p for p in pieces if len(p) > 1)])}
    merges = list(merges_of(rank))
    for pairs in (merges, sorted(merges, key=lambda pair: (rank["".join(pair)], pair[::-1]))):
        by_pair = {pair: number for number, pair in enumerate(pairs)}
        parts = list(text)
        while True:
            found = [(by_pair[pair], at) for at, pair in enumerate(pairwise(parts)) if pair in by_pair]
            if not found:
                break
            _, at = min(found)
            parts[at : at + 2] = ["".join(parts[at : at + 2])]
        assert parts == join_by_rank(text, rank)


@given(text=TEXTS)
@settings(max_examples=300, deadline=None)
def test_the_library_gives_the_same_ids(text: str) -> None:
    text = text.replace(" ", "▁")
    assert encoder(10**9).encode(text) == encoder(0).encode(text)


def test_the_library_takes_over_when_enough_has_been_read() -> None:
    fresh = ScoredBpe(read_vocabulary(scored()), patience_chars=20)
    first, second = fresh.encode("hello▁world"), fresh.encode("hello▁world")
    assert first == second and fresh._library is not None
    assert ScoredBpe(read_vocabulary(scored()))._library is None


def test_a_character_without_a_piece_becomes_its_bytes() -> None:
    byte_ids = [15 + byte for byte in "🦙".encode()]
    assert encoder(10**9).encode("🦙") == encoder(0).encode("🦙") == byte_ids


def test_the_text_of_a_byte_token_is_text() -> None:
    assert encoder(0).encode("<0x41>") == encoder(10**9).encode("<0x41>")
    assert 15 + 0x41 not in encoder(0).encode("<0x41>")


@pytest.mark.parametrize(("says", "prefix"), [(True, "▁"), (None, "▁"), (False, "")])
def test_a_space_in_front_unless_the_file_says_no(says: bool | None, prefix: str) -> None:
    with_prefix = ScoredBpe(read_vocabulary(scored(add_space_prefix=says)))
    assert with_prefix.encode("hello") == encoder(10**9).encode(f"{prefix}hello")


def test_equal_scores_are_joined_in_the_order_of_ids() -> None:
    metadata = scored()
    scores = metadata["tokenizer.ggml.scores"].copy()
    scores[271:] = -5
    tied = read_vocabulary(scored(scores=scores))
    assert (
        ScoredBpe(tied).encode("the▁quick")
        == ScoredBpe(tied, 0).encode("the▁quick")
        == encoder(0).encode("the▁quick")
    )
