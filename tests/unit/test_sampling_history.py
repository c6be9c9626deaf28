"""The token history against a plain counter over a slice."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.sampling.history import WHOLE, TokenHistory


def content(history: TokenHistory) -> dict[int, int]:
    assert len(set(history.ids.tolist())) == len(history.ids) == len(history.counts)
    return dict(zip(history.ids.tolist(), history.counts.tolist(), strict=True))


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    prompt=st.lists(st.integers(0, 6), max_size=12),
    output=st.lists(st.integers(0, 6), max_size=30),
    window=st.sampled_from([WHOLE, 1, 2, 3, 7, 100]),
)
def test_counts_the_newest_tokens(prompt: list[int], output: list[int], window: int) -> None:
    history = TokenHistory(prompt, window)
    for length in range(len(output) + 1):
        seen = prompt + output[:length]
        assert content(history) == Counter(seen if window == WHOLE else seen[-window:])
        if length < len(output):
            history.append(output[length])


def test_grows_without_losing_anything() -> None:
    history = TokenHistory()
    for token_id in [*range(1000), *range(0, 1000, 2)]:
        history.append(token_id)
    assert content(history) == {i: 1 + (i % 2 == 0) for i in range(1000)}


def test_window_holds_the_newest_not_the_oldest() -> None:
    assert sorted(TokenHistory([5, 6, 7], window=2).ids.tolist()) == [6, 7]


@pytest.mark.parametrize("window", [0, -2])
def test_other_windows_are_a_mistake_of_the_caller(window: int) -> None:
    with pytest.raises(AssertionError, match=f"window {window}"):
        TokenHistory([1], window)
