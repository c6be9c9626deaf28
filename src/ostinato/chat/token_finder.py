"""Find the tokens that are written out in a text, such as `<|im_end|>` or a run of newlines.

Knows texts and ids. Must not know which stretches of a text may be searched: the caller says so. Next on the
request's path: `byte_bpe.py` or `scored_bpe.py`, for the text between the tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_HEAD_LEN = 2  # characters of a token by which its possible places are found


class TokenFinder:
    """Finds tokens in one pass: the first in the text wins, then the longest of those that begin there."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = {text: token_id for text, token_id in ids.items() if text}
        self._lengths = _lengths_by_head(self._ids)
        heads = sorted(self._lengths, key=len, reverse=True)
        self._head = re.compile("|".join(map(re.escape, heads))) if heads else None

    def get(self, text: str) -> int | None:
        """Return the id of the token with exactly this text."""
        return self._ids.get(text)

    def find(self, text: str, start: int = 0, end: int | None = None) -> Iterator[tuple[int, int, int]]:
        """Yield (start, end, token id) of each token that lies wholly within `text[start:end]`, in order."""
        end = len(text) if end is None else end
        while self._head is not None and (head := self._head.search(text, start, end)):
            start = head.start()
            found = self._longest(text, start, end, self._lengths[head.group()])
            if found is None:
                start += 1
                continue
            yield start, found[0], found[1]
            start = found[0]

    def _longest(self, text: str, start: int, end: int, lengths: list[int]) -> tuple[int, int] | None:
        for length in lengths:
            stop = start + length
            if stop <= end and (token_id := self._ids.get(text[start:stop])) is not None:
                return stop, token_id
        return None


def _lengths_by_head(ids: Mapping[str, int]) -> dict[str, list[int]]:
    """Return, by the first two characters of tokens (or their only one), their lengths, longest first."""
    lengths: dict[str, set[int]] = {}
    for text in ids:
        lengths.setdefault(text[:_HEAD_LEN], set()).add(len(text))
    for head, found in lengths.items():
        if len(head) > 1 and head[0] in ids:  # where no longer token fits, the single character still does
            found.add(1)
    return {head: sorted(found, reverse=True) for head, found in lengths.items()}
