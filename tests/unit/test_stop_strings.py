"""Stop strings over any cut of the text, against a matcher that looks at the whole text at once."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ostinato.chat.stop_strings import StopMatcher
from ostinato.errors import InvalidRequestError

STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def whole(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Return what comes out of the whole text: up to the match that begins first, of those the shortest."""
    for start in range(len(text)):
        here = [stop for stop in stops if text.startswith(stop, start)]
        if here:
            return text[:start], min(here, key=len)
    return text, None


def decided(text: str, stops: list[str]) -> str:
    """Return what must be out once this much has been fed: what nothing that follows can change."""
    end = len(whole(text, stops)[0])
    for start in range(end):
        rest = text[start:]
        if any(len(rest) < len(stop) and stop.startswith(rest) for stop in stops):
            return text[:start]
    return text[:end]


def stream(pieces: list[str], stops: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    out, fed, found = "", "", None
    for piece in pieces:
        emitted, stop = matcher.feed(piece)
        out, fed = out + emitted, fed + piece
        found = found or stop
        assert out == decided(fed, stops)
        if found:
            assert matcher.feed("more") == ("", None)
            break
    emitted, stop = matcher.flush()
    assert not (found and (emitted or stop))
    assert matcher.flush() == ("", None)
    return out + emitted, found or stop


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


@given(text=st.text("ab", max_size=16), stops=STOPS, places=st.lists(st.integers(0, 16), max_size=16))
@settings(max_examples=2000, deadline=None)
@example(text="aab", stops=["aab", "a"], places=[])
@example(text="aaba", stops=["ab", "aabb"], places=[1, 2, 3])
def test_any_cut_gives_what_the_whole_text_gives(text: str, stops: list[str], places: list[int]) -> None:
    """B06."""
    assert stream(cut(text, places), stops) == whole(text, stops)


@pytest.mark.parametrize("stops", [["MNOPQ"], ["MN", "MNOPQ"], ["PQ", "MNOPQ"]])
def test_every_cut_of_the_alphabet(stops: list[str]) -> None:
    """B06."""
    text = "KLMNOPQRST"
    for bits in range(2 ** (len(text) - 1)):
        places = [place for place in range(1, len(text)) if bits >> (place - 1) & 1]
        out, stop = stream(cut(text, places), stops)
        assert out == "KL" and stop in stops


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("KLMNOPQ", ["OP", "MNOPQ"], ("KL", "MNOPQ")),  # begun first, though complete last
        ("KLMNOPX", ["OP", "MNOPQ"], ("KLMN", "OP")),  # the one begun first came to nothing
        ("KLMNOP", ["OP", "MNOPQ"], ("KLMN", "OP")),  # and so at the end of the text
        ("KLMNOP", ["MNOPQ"], ("KLMNOP", None)),  # what was held back is not lost
        ("KLMN", ["MNO", "MN"], ("KL", "MN")),  # of two that begin at one place, the shorter
        ("", ["a"], ("", None)),
        ("日本語🦙", ["語🦙"], ("日本", "語🦙")),
        ("line\nUser: hi", ["\nUser:"], ("line", "\nUser:")),
    ],
)
def test_which_match_wins(text: str, stops: list[str], expected: tuple[str, str | None]) -> None:
    for size in range(1, len(text) + 2):
        assert stream([text[at : at + size] for at in range(0, len(text), size)], stops) == expected


def test_without_stops_everything_comes_out_at_once() -> None:
    matcher = StopMatcher([])
    assert matcher.feed("text") == ("text", None)
    assert matcher.flush() == ("", None)


def test_only_what_may_become_a_stop_is_held_back() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.feed("the E") == ("the ", None)
    assert matcher.feed("N") == ("", None)
    assert matcher.feed("ERGY E") == ("ENERGY ", None)
    assert matcher.flush() == ("E", None)


@pytest.mark.parametrize("stops", [[""], ["a", ""]])
def test_an_empty_stop_is_refused(stops: list[str]) -> None:
    with pytest.raises(InvalidRequestError, match=rf"stop\[{len(stops) - 1}\] is empty") as caught:
        StopMatcher(stops)
    assert caught.value.param == "stop"
