"""Plain text to token ids as a tokenizer.json says, by the library whose format that is.

Knows the description and how its parts spell a space or a byte. Must not know where control tokens may be
read: it is given text that holds none, and takes care that none arises from it. Next on the request's path:
back in `tokenizer.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

from ostinato.chat.byte_bpe import letter_bytes, library_encode
from ostinato.chat.end_tokens import parsed_ids
from ostinato.chat.folder import Description
from ostinato.chat.vocabulary import TokenType, Vocabulary
from ostinato.errors import ModelFileError, UnsupportedModelError

_HIDDEN = " \U0010ffff{}"
"""The name under which a token cannot be reached: no text has a space in it when pieces are looked up."""


class JsonPieces:
    """Encodes plain text as a tokenizer.json says; user-defined tokens are read as the library reads them.

    Raises:
        UnsupportedModelError: the pieces spell bytes and spaces in a way that is not built.
        ModelFileError: the library refuses the description.
    """

    reads_user_defined = True

    def __init__(self, vocabulary: Vocabulary, description: Description) -> None:
        self.add_bos = bool(vocabulary.add_bos)
        self._space = _space_mark(description.whole)
        _check_control_tokens(description)
        parsed = parsed_ids(vocabulary).values()
        hidden = {token_id for token_id in parsed if vocabulary.types[token_id] != TokenType.NORMAL}
        self._without_control = _without(description, hidden)
        self._encoder = _made(self._without_control)

    def spell(self, text: str) -> str:
        """Return the text as `encode` wants it: as it is."""
        return text

    def encode(self, text: str, *, at_start: bool = True) -> list[int]:
        """Return the ids of plain text; some vocabularies put a blank in front where no token precedes it."""
        encoder = self._encoder if at_start else self._later_encoder
        return library_encode(encoder, text)

    def prepare(self) -> Tokenizer:
        """Make the encoder of later stretches of a text, where it is another."""
        return self._later_encoder

    def token_bytes(self, token: str) -> bytes:
        """Return the bytes that a normal token stands for."""
        return letter_bytes(token) if self._space is None else token.replace(self._space, " ").encode()

    @cached_property
    def _later_encoder(self) -> Tokenizer:
        later = deepcopy(self._without_control.get("pre_tokenizer"))
        first = [part for part in _parts(later) if part.get("prepend_scheme") == "first"]
        for part in first:
            part["prepend_scheme"] = "never"
        return _made({**self._without_control, "pre_tokenizer": later}) if first else self._encoder


def _parts(step: object) -> Iterator[dict[str, Any]]:
    """Yield a step of the tokenizer and, if it is a sequence, all within it."""
    if isinstance(step, dict):
        yield step
        for name in ("pretokenizers", "decoders", "normalizers"):
            inner = step.get(name)
            for part in inner if isinstance(inner, list) else []:
                yield from _parts(part)


def _space_mark(whole: Mapping[str, Any]) -> str | None:
    """Return the character that pieces have for a space, or None where they spell bytes as letters."""
    for part in [*_parts(whole.get("decoder")), *_parts(whole.get("pre_tokenizer"))]:
        if part.get("type") == "ByteLevel":
            return None
        if part.get("type") == "Metaspace":
            return str(part.get("replacement", "▁"))
        if part.get("type") == "Replace" and part.get("content") == " ":
            pattern = part.get("pattern")
            if isinstance(pattern, dict) and isinstance(pattern.get("String"), str):
                return str(pattern["String"])
    raise UnsupportedModelError(
        "tokenizer.json: neither its decoder nor its pre_tokenizer is ByteLevel, Metaspace or Replace of a "
        "mark by a space: how its pieces spell text is not built"
    )


def _check_control_tokens(description: Description) -> None:
    for token in description.added:
        if token.get("special") and token.get("single_word"):
            raise UnsupportedModelError(
                f"tokenizer.json: the special token {token['content']!r} is read as a single word only, "
                "which is not built"
            )


def _without(description: Description, hidden: set[int]) -> dict[str, Any]:
    """Return the description without the hidden tokens, cutting, filling and adding nothing.

    The added tokens that remain are entered in the model's vocabulary: the library numbers those that are not
    by their order, which is another now.
    """
    whole, model = description.whole, dict(description.whole["model"])
    added = [token for token in description.added if token["id"] not in hidden]
    ids = {token["content"]: token["id"] for token in added if token["content"] not in description.tokens}
    names = {
        text: _HIDDEN.format(token_id) for text, token_id in description.tokens.items() if token_id in hidden
    }
    if description.kind == "BPE":
        own = {names.get(text, text): token_id for text, token_id in description.tokens.items()}
        model["vocab"] = own | ids
        model["merges"] = _merges(model.get("merges"), names)
        unknown = model.get("unk_token")
        model["unk_token"] = names.get(unknown, unknown) if isinstance(unknown, str) else unknown
        model["dropout"] = None  # a device of training: the same text has the same ids
    else:
        model["vocab"] = _extended([[names.get(text, text), score] for text, score in model["vocab"]], ids)
    nothing = dict.fromkeys(("truncation", "padding", "post_processor"))
    return {**whole, **nothing, "model": model, "added_tokens": added}


def _extended(rows: list[list[Any]], ids: Mapping[str, int]) -> list[list[Any]]:
    """Return the pieces of a Unigram with those added whose ids lie behind, gaps between them filled.

    They get the worst score there is: that of an unknown character is derived from it.
    """
    texts = {token_id: text for text, token_id in ids.items()}
    worst = min((score for _, score in rows if isinstance(score, int | float)), default=0.0)
    behind = range(len(rows), max(texts, default=-1) + 1)
    return rows + [[texts.get(token_id, _HIDDEN.format(token_id)), worst] for token_id in behind]


def _merges(merges: object, names: Mapping[str, str]) -> object:
    """Return the merges that have nothing to do with hidden tokens."""
    if not names or not isinstance(merges, list):
        return merges
    return [merge for merge in merges if not _makes_or_takes(merge, names)]


def _makes_or_takes(merge: object, names: Mapping[str, str]) -> bool:
    match merge.split(" ") if isinstance(merge, str) else merge:
        case [str(left), str(right)]:
            return left in names or right in names or left + right in names
    return False


def _made(description: Mapping[str, Any]) -> Tokenizer:
    try:
        return Tokenizer.from_str(json.dumps(description))
    except Exception as error:  # the library raises bare Exception
        raise ModelFileError(f"tokenizer.json cannot be used: {error}") from None
