"""The vocabulary of a model file: its tokens, their kinds, and the ids that have a role.

Knows the names and the meaning of the file's tokenizer keys. Must not know how text is cut or merged, nor
open a file: it is given the metadata as a mapping. Next on the request's path: `pretokenizers.py`, then
`tokenizer.py`.

Source of the keys: the GGUF specification, section "Tokenizer".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from ostinato.errors import ModelFileError, UnsupportedModelError

PREFIX = "tokenizer.ggml."
TEMPLATE_KEY = "tokenizer.chat_template"
BYTE_LEVEL, SCORED = "gpt2", "llama"  # the file's own words for the two kinds that are built
KINDS = (BYTE_LEVEL, SCORED)
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_PHI3_KEEPS_BLANKS = frozenset(["<unk>", "<s>", "<|endoftext|>"])
NO_ID = (-1, 2**32 - 1)  # how files say that there is no such token


class TokenType(IntEnum):
    """What a token is for; the numbers are those of the file."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokens of one model.

    `types` (V,) int32 and `scores` (V,) float32 are owned by the vocabulary and never changed. `add_bos` and
    `add_space_prefix` are None where the file is silent: what that means depends on the kind of tokenizer.
    `add_eos` is for callers that encode whole documents; a prompt is never closed. `more_end_ids` end an
    answer like `eos_id`; `left_strip` and `right_strip` are control tokens that take the blanks on that side.
    """

    kind: str
    pretokenizer: str | None
    tokens: list[str]
    types: np.ndarray[Any, np.dtype[np.int32]]
    scores: np.ndarray[Any, np.dtype[np.float32]] | None
    merges: list[str]
    bos_id: int | None
    eos_id: int | None
    eot_id: int | None
    eom_id: int | None
    unk_id: int | None
    pad_id: int | None
    add_bos: bool | None
    add_eos: bool
    add_space_prefix: bool | None
    chat_template: str | None
    more_end_ids: frozenset[int] = frozenset()
    left_strip: frozenset[int] = frozenset()
    right_strip: frozenset[int] = frozenset()

    def ids_of(self, *kinds: TokenType) -> list[int]:
        """Return the ids of all tokens of these kinds, in order."""
        wanted = np.asarray(kinds, np.int32)
        return [int(token_id) for token_id in np.flatnonzero(np.isin(self.types, wanted))]

    def text_of(self, token_id: int | None) -> str:
        """Return the text of a token that has a role, or nothing where the file names none."""
        return "" if token_id is None else self.tokens[token_id]


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """Read the tokenizer's part of a model file's metadata.

    Raises:
        UnsupportedModelError: the tokenizer is of a kind, or asks for a treatment of text, that is not built.
        ModelFileError: a key is missing, has the wrong type, or names a token that does not exist.
    """
    kind = _kind(metadata)
    _check_treatment(metadata, kind)
    tokens = _strings(metadata, "tokens")
    types = _types(metadata, len(tokens))
    scored = kind == SCORED
    return Vocabulary(
        kind=kind,
        pretokenizer=_text(metadata, "pre"),
        tokens=tokens,
        types=types,
        scores=_scores(metadata, len(tokens)) if scored else None,
        merges=[] if scored else _strings(metadata, "merges"),
        bos_id=_token_id(metadata, "bos", len(tokens)),
        eos_id=_token_id(metadata, "eos", len(tokens)),
        eot_id=_token_id(metadata, "eot", len(tokens)),
        eom_id=_token_id(metadata, "eom", len(tokens)),
        unk_id=_token_id(metadata, "unknown", len(tokens)),
        pad_id=_token_id(metadata, "padding", len(tokens)),
        add_bos=_flag(metadata, "add_bos_token"),
        add_eos=_flag(metadata, "add_eos_token") or False,
        add_space_prefix=_flag(metadata, "add_space_prefix"),
        chat_template=read_chat_template(metadata),
        right_strip=_right_strip(metadata, tokens, types) if scored else frozenset(),
    )


def read_chat_template(metadata: Mapping[str, Any]) -> str | None:
    """Return the source of the file's chat template, or None: a base model has none.

    Raises:
        ModelFileError: the key holds something other than text.
    """
    source = metadata.get(TEMPLATE_KEY)
    if source is None or isinstance(source, str):
        return source or None
    raise _wrong(TEMPLATE_KEY, source, "text")


def byte_value(token: str) -> int | None:
    """Return the byte that a token of type BYTE stands for: it is written `<0x0A>`."""
    match = _BYTE_TOKEN.fullmatch(token)
    return None if match is None else int(match[1], 16)


def _kind(metadata: Mapping[str, Any]) -> str:
    kind = _required(metadata, "model")
    if not isinstance(kind, str):
        raise _wrong(PREFIX + "model", kind, "text")
    if kind not in KINDS:
        raise UnsupportedModelError(
            f"{PREFIX}model is {kind!r}: this kind of tokenizer is not built (built: {', '.join(KINDS)})"
        )
    return kind


def _check_treatment(metadata: Mapping[str, Any], kind: str) -> None:
    """Refuse what would change the text before it is encoded, and is not built."""
    if _flag(metadata, "remove_extra_whitespaces"):
        raise UnsupportedModelError(
            f"{PREFIX}remove_extra_whitespaces is true: joining repeated blanks is not built"
        )
    if kind == BYTE_LEVEL and _flag(metadata, "add_space_prefix"):
        raise UnsupportedModelError(
            f"{PREFIX}add_space_prefix is true in a vocabulary of kind {kind!r}: a blank in front of a text "
            f"is built for {SCORED!r} only"
        )


def _right_strip(
    metadata: Mapping[str, Any], tokens: list[str], types: np.ndarray[Any, np.dtype[np.int32]]
) -> frozenset[int]:
    """Return the tokens after which blanks are dropped: those of Phi-3's SentencePiece vocabularies.

    No key of a file says so. Source: `rstrip` of the added tokens in the published tokenizer.json.
    """
    if metadata.get("general.architecture") != "phi3":
        return frozenset()
    added = np.flatnonzero(np.isin(types, np.asarray([TokenType.CONTROL, TokenType.USER_DEFINED], np.int32)))
    return frozenset(int(token_id) for token_id in added if tokens[token_id] not in _PHI3_KEEPS_BLANKS)


def _required(metadata: Mapping[str, Any], name: str) -> Any:
    value = metadata.get(PREFIX + name)
    if value is None:
        raise ModelFileError(f"{PREFIX}{name} is missing: the file has no usable tokenizer")
    return value


def _wrong(key: str, value: object, expected: str) -> ModelFileError:
    return ModelFileError(f"{key} holds {type(value).__name__}, expected {expected}")


def _strings(metadata: Mapping[str, Any], name: str) -> list[str]:
    value = _required(metadata, name)
    if not isinstance(value, list) or set(map(type, value)) - {str}:
        raise _wrong(PREFIX + name, value, "an array of text")
    if not value:
        raise ModelFileError(f"{PREFIX}{name} is empty")
    return value


def _text(metadata: Mapping[str, Any], name: str) -> str | None:
    value = metadata.get(PREFIX + name)
    if value is None or isinstance(value, str):
        return value
    raise _wrong(PREFIX + name, value, "text")


def _flag(metadata: Mapping[str, Any], name: str) -> bool | None:
    value = metadata.get(PREFIX + name)
    if value is None or isinstance(value, bool | np.bool_):
        return None if value is None else bool(value)
    raise _wrong(PREFIX + name, value, "true or false")


def _token_id(metadata: Mapping[str, Any], role: str, num_tokens: int) -> int | None:
    key = f"{PREFIX}{role}_token_id"
    value = metadata.get(key)
    if value is None:
        return None
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise _wrong(key, value, "an integer")
    if int(value) in NO_ID:
        return None
    if not 0 <= value < num_tokens:
        raise ModelFileError(f"{key} is {value}, but the file has {num_tokens} tokens")
    return int(value)


def _array(metadata: Mapping[str, Any], name: str, num_tokens: int) -> np.ndarray[Any, Any]:
    key, value = PREFIX + name, _required(metadata, name)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iuf" or value.ndim != 1:
        raise _wrong(key, value, "an array of numbers")
    if len(value) != num_tokens:
        raise ModelFileError(f"{key} has {len(value)} entries, but the file has {num_tokens} tokens")
    return value


def _types(metadata: Mapping[str, Any], num_tokens: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    if metadata.get(PREFIX + "token_type") is None:
        return np.full(num_tokens, TokenType.NORMAL, np.int32)
    types = _array(metadata, "token_type", num_tokens).astype(np.int32)
    strange = np.flatnonzero((types < min(TokenType)) | (types > max(TokenType)))
    if len(strange):
        token_id = int(strange[0])
        raise ModelFileError(f"{PREFIX}token_type of token {token_id} is {types[token_id]}, expected 1 to 6")
    return types


def _scores(metadata: Mapping[str, Any], num_tokens: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    scores = _array(metadata, "scores", num_tokens).astype(np.float32)
    if np.isnan(scores).any():
        token_id = int(np.flatnonzero(np.isnan(scores))[0])
        raise ModelFileError(f"{PREFIX}scores of token {token_id} is not a number")
    return scores
