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
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from ostinato.chat.byte_bpe import ByteLevelBpe
from ostinato.chat.end_tokens import END_MARKERS, end_ids, parsed_ids
from ostinato.chat.folder import read_folder
from ostinato.chat.json_pieces import JsonPieces
from ostinato.chat.pretokenizers import check_name
from ostinato.chat.rendered import Rendered
from ostinato.chat.scored_bpe import ScoredBpe
from ostinato.chat.token_finder import TokenFinder
from ostinato.chat.vocabulary import BYTE_LEVEL, TokenType, Vocabulary, byte_value, read_vocabulary
from ostinato.errors import InvalidRequestError

# What Unicode calls white space; Python's `isspace` knows four more.
_WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)


class Pieces(Protocol):
    """Encodes text without control tokens: the part in which vocabularies differ.

    `add_bos`: whether prompts begin with BOS. `reads_user_defined`: `encode` finds such tokens itself.
    """

    add_bos: bool
    reads_user_defined: bool

    def spell(self, text: str) -> str:
        """Return the text as `encode` and the user-defined tokens want it."""

    def encode(self, text: str, *, at_start: bool = True) -> list[int]:
        """Return the ids of plain text, spelled; `at_start`: no token is in front of it."""

    def prepare(self) -> object:
        """Do at once what could wait."""

    def token_bytes(self, token: str) -> bytes:
        """Return the bytes that a normal token stands for."""


class Tokenizer:
    """Encodes and decodes text. Safe to share between threads."""

    def __init__(self, vocabulary: Vocabulary, pieces: Pieces) -> None:
        self.vocabulary = vocabulary
        self._pieces = pieces
        self._parsed = TokenFinder(parsed_ids(vocabulary))
        self._user_defined = self._find_user_defined()
        self._bytes: list[bytes | None] = [None] * len(vocabulary.tokens)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], pre_tokenizer: str | None = None) -> Tokenizer:
        """Build the tokenizer of a GGUF file from the file's metadata.

        Args:
            pre_tokenizer: the rule by which text is cut into words, instead of the one that the file names.

        Raises:
            UnsupportedModelError: the kind of tokenizer or its pre-tokenizer is not built.
            ModelFileError: the metadata is damaged.
            InvalidRequestError: `pre_tokenizer` is not a rule, or the vocabulary is not cut by one.
        """
        vocabulary = read_vocabulary(metadata)
        if pre_tokenizer is not None:
            check_name(pre_tokenizer)
            if vocabulary.kind != BYTE_LEVEL:
                raise _no_rule(f"a vocabulary of kind {vocabulary.kind!r} is not cut by a rule")
            vocabulary = replace(vocabulary, pretokenizer=pre_tokenizer)
        is_bytewise = vocabulary.kind == BYTE_LEVEL
        return cls(vocabulary, ByteLevelBpe(vocabulary) if is_bytewise else ScoredBpe(vocabulary))

    @classmethod
    def from_folder(
        cls, folder: Path, *, vocab_size: int | None = None, pre_tokenizer: str | None = None
    ) -> Tokenizer:
        """Build the tokenizer of a folder that holds tokenizer.json and the small files beside it.

        Args:
            vocab_size: how many tokens the model has; those beyond the tokenizer's own add nothing to a text.
            pre_tokenizer: as in `from_metadata`; refused here, since tokenizer.json holds the rule itself.

        Raises:
            UnsupportedModelError: the tokenizer is of a kind that is not built.
            ModelFileError: a file is missing or damaged, or does not fit the model.
            InvalidRequestError: `pre_tokenizer` is given.
        """
        if pre_tokenizer is not None:
            raise _no_rule("tokenizer.json itself says how text is cut")
        vocabulary, description = read_folder(folder, vocab_size)
        return cls(vocabulary, JsonPieces(vocabulary, description))

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
        return end_ids(self.vocabulary)

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
                if start >= done:
                    ids += self._encode_plain(self._up_to(text, done, start, token_id), at_start=done == 0)
                    ids.append(token_id)
                    done = self._behind(text, end, token_id)
        return ids + self._encode_plain(text[done:], at_start=done == 0)

    def _up_to(self, text: str, done: int, start: int, token_id: int) -> str:
        """Return the text between two control tokens, without the blanks that the second takes."""
        between = text[done:start]
        return between.rstrip(_WHITE_SPACE) if token_id in self.vocabulary.left_strip else between

    def _behind(self, text: str, end: int, token_id: int) -> int:
        """Return where the text goes on behind a control token, which may take blanks."""
        if token_id in self.vocabulary.right_strip:
            while end < len(text) and text[end] in _WHITE_SPACE:
                end += 1
        return end

    def _encode_plain(self, text: str, *, at_start: bool) -> list[int]:
        if not text:
            return []
        if self._pieces.reads_user_defined:
            return self._pieces.encode(text, at_start=at_start)
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


def _no_rule(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"pre_tokenizer has no place here: {reason}; leave it out", "pre_tokenizer")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        bad = ord(text[error.start])
        raise InvalidRequestError(
            f"the text holds U+{bad:04X} at position {error.start}: half of a surrogate pair, no character"
        ) from None
