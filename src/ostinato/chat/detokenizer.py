"""Token ids to text as they come, without ever taking back a character.

Knows which bytes may still become a character. Must not know stop strings or why an answer ends. Next on the
request's path: `stop_strings.py`.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from ostinato.chat.tokenizer import Tokenizer


class Detokenizer:
    """Turns the ids of one answer into pieces of text.

    However the ids are divided over the calls, the pieces and what `flush` returns join to `Tokenizer.decode`
    of all ids. Bytes that begin a character are held back until it is whole.

    Args:
        control: show control tokens as they are written in the vocabulary; otherwise they add nothing.
    """

    def __init__(self, tokenizer: Tokenizer, *, control: bool = False) -> None:
        self._tokenizer = tokenizer
        self._control = control
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Iterable[int]) -> str:
        """Take further ids and return the text that is final with them."""
        new_bytes = b"".join(self._tokenizer.shown_bytes(token_id, self._control) for token_id in ids)
        return self._decoder.decode(new_bytes)

    def flush(self) -> str:
        """End the text: return U+FFFD for a character that was begun and never finished, or nothing."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
