"""Finding written-out tokens: one pass against a search at every place."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.chat.token_finder import TokenFinder


def find_slowly(ids: dict[str, int], text: str, start: int, end: int) -> list[tuple[int, int, int]]:
    found = []
    while start < end:
        here = [t for t in ids if t and text.startswith(t, start) and start + len(t) <= end]
        if here:
            longest = max(here, key=len)
            found.append((start, start + len(longest), ids[longest]))
            start += len(longest)
        else:
            start += 1
    return found


@given(
    tokens=st.lists(st.text("ab<", max_size=5), max_size=8, unique=True),
    text=st.text("ab<", max_size=30),
    edges=st.tuples(st.integers(0, 30), st.integers(0, 30)),
)
@settings(max_examples=500, deadline=None)
def test_finds_what_a_search_at_every_place_finds(
    tokens: list[str], text: str, edges: tuple[int, int]
) -> None:
    ids = {token: number for number, token in enumerate(tokens)}
    start, end = (min(edge, len(text)) for edge in sorted(edges))
    assert list(TokenFinder(ids).find(text, start, end)) == find_slowly(ids, text, start, end)


def test_nothing_to_find() -> None:
    assert list(TokenFinder({}).find("text")) == []
    assert TokenFinder({}).get("text") is None
    assert TokenFinder({"a": 3}).get("a") == 3
