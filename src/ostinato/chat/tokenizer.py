"""Text to token ids and back, for the vocabulary of a model file.

Knows where control tokens may be read, what stands in front of a prompt, and the bytes of every token. Must
not know messages or templates (it is given their result) and nothing of models. Next on the request's path:
`engine`, on ids; its answer comes back through `detokenizer.py`.

In what is encoded here three things differ from llama.cpp, which is followed otherwise: control tokens are
never read in a caller's text; a prompt never begins with two BOS; and a token with the text of an end marker
but another type in the file (Gemma's `</s>` is a tag of HTML) neither ends an answer nor is hidden from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from ostinato.chat.byte_bpe import ByteLevelBpe
from ostinato.chat.end_tokens import END_MARKERS, end_ids, parsed_tokens
from ostinato.chat.rendered import Rendered
from ostinato.chat.scored_bpe import ScoredBpe
from ostinato.chat.token_finder import TokenFinder
from ostinato.chat.vocabulary import BYTE_LEVEL, TokenType, Vocabulary, byte_value, read_vocabulary
from ostinato.errors import InvalidRequestError


class Tokenizer:
    """Encodes and decodes text. Safe to share between threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._pieces = ByteLevelBpe(vocabulary) if vocabulary.kind == BYTE_LEVEL else ScoredBpe(vocabulary)
        self._parsed = parsed_tokens(vocabulary)
        self._user_defined = self._find_user_defined()
        self._bytes: list[bytes | None] = [None] * len(vocabulary.tokens)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Build the tokenizer of a model file from the file's metadata.

        Raises:
            UnsupportedModelError: the kind of tokenizer or its pre-tokenizer is not built.
            ModelFileError: the metadata is damaged.
        """
        return cls(read_vocabulary(metadata))

    @property
    def vocab_size(self) -> int:
        """The number of tokens in the file."""
        return len(self.vocabulary.tokens)

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text, whether or not prompts begin with it."""
        return self.vocabulary.bos_id

    @property
    def bos_token(self) -> str:
        """The text of `bos_id`, for templates; empty where the file names none."""
        return self.vocabulary.text_of(self.vocabulary.bos_id)

    @property
    def eos_token(self) -> str:
        """The text of the token that ends a text, for templates; empty where the file names none."""
        return self.vocabulary.text_of(self.vocabulary.eos_id)

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """Every token that ends an answer."""
        return end_ids(self.vocabulary, self._parsed)

    def id_of_special(self, text: str) -> int | None:
        """Return the token written exactly so, where it is a control token or a user-defined one."""
        token_id = self._parsed.get(text)
        return self._user_defined.get(self._pieces.spell(text)) if token_id is None else token_id

    def prepare(self) -> None:
        """Do at once what would otherwise be done when enough has been read to make it pay; for servers."""
        self._pieces.prepare()

    def encode(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
        """Return the ids of a raw text.

        Args:
            special: read control tokens in the text. Without it they are ordinary text; user-defined tokens
                are always read.
            bos: put in front what the model's prompts begin with, unless it is there already.

        Raises:
            InvalidRequestError: the text has half of a surrogate pair, which no UTF-8 can hold.
        """
        ids = self._encode(text, [(0, len(text))] if special else [])
        return self._with_bos(ids) if bos else ids

    def encode_rendered(self, rendered: Rendered) -> list[int]:
        """Return the ids of a rendered prompt, with what the model's prompts begin with in front, once.

        A control token is read only where the template wrote its every character. What lies between two of
        them is encoded
        as one text, whoever wrote it: the ids are those of the whole rendered text unless a caller typed a
            control token.

        Raises:
            InvalidRequestError: as `encode`.
        """
        return self._with_bos(self._encode(rendered.text, rendered.template_spans()))

    def token_bytes(self, token_id: int) -> bytes:
        """Return what a token adds to a text, which may be a part of a character. Control tokens add nothing.

        Raises:
            InvalidRequestError: there is no such token.
        """
        if not 0 <= token_id < len(self._bytes):
            raise InvalidRequestError(
                f"token id {token_id} is not in the vocabulary: allowed are 0 to {self.vocab_size - 1}"
            )
        found = self._bytes[token_id]
        if found is None:
            found = self._bytes[token_id] = self._make_bytes(token_id)
        return found

    def decode(self, ids: Iterable[int], *, control: bool = False) -> str:
        """Return the text of ids exactly as they spell it, with U+FFFD for bytes that are not UTF-8.

        Args:
            control: show control tokens as they are written in the vocabulary.

        Raises:
            InvalidRequestError: there is no such token.
        """
        return b"".join(self.shown_bytes(token_id, control) for token_id in ids).decode("utf-8", "replace")

    def shown_bytes(self, token_id: int, control: bool) -> bytes:
        """Return `token_bytes`, or for a control token its text where those are to be shown."""
        shown = self.token_bytes(token_id)
        if control and self.vocabulary.types[token_id] in (TokenType.CONTROL, TokenType.UNKNOWN):
            return self.vocabulary.tokens[token_id].encode()
        return shown

    def _find_user_defined(self) -> TokenFinder:
        ids = self.vocabulary.ids_of(TokenType.USER_DEFINED)
        texts = {self.vocabulary.tokens[token_id]: token_id for token_id in ids}
        return TokenFinder(
            {
                self._pieces.spell(text): token_id
                for text, token_id in texts.items()
                if text not in END_MARKERS
            }
        )

    def _encode(self, text: str, parsed_spans: Sequence[tuple[int, int]]) -> list[int]:
        _check_text(text)
        ids: list[int] = []
        done = 0
        for span in parsed_spans:
            for start, end, token_id in self._parsed.find(text, *span):
                ids += self._encode_plain(text[done:start])
                ids.append(token_id)
                done = end
        return ids + self._encode_plain(text[done:])

    def _encode_plain(self, text: str) -> list[int]:
        text = self._pieces.spell(text)
        ids: list[int] = []
        done = 0
        for start, end, token_id in self._user_defined.find(text):
            if done < start:
                ids += self._pieces.encode(text[done:start])
            ids.append(token_id)
            done = end
        return ids + self._pieces.encode(text[done:]) if done < len(text) else ids

    def _with_bos(self, ids: list[int]) -> list[int]:
        bos_id = self.vocabulary.bos_id
        if bos_id is None or not self._pieces.add_bos or ids[:1] == [bos_id]:
            return ids
        return [bos_id, *ids]

    def _make_bytes(self, token_id: int) -> bytes:
        text = self.vocabulary.tokens[token_id]
        match self.vocabulary.types[token_id]:
            case TokenType.NORMAL:
                return self._pieces.token_bytes(text)
            case TokenType.USER_DEFINED:
                return text.encode()
            case TokenType.BYTE:
                byte = byte_value(text)
                return b"" if byte is None else bytes([byte])
            case _:
                return b""


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        bad = ord(text[error.start])
        raise InvalidRequestError(
            f"the text holds U+{bad:04X} at position {error.start}: half of a surrogate pair, no character"
        ) from None
