"""Byte-level byte-pair encoding: text to UTF-8 bytes to token ids, as in GPT-2 and its successors.

Knows the vocabulary's merges and the alphabet in which such vocabularies spell bytes. Must not know control
tokens: it is given text that holds none. The work is done by the `tokenizers` library. Text is not
normalised: the published Qwen tokenizers apply NFC first, but files carry no such rule and llama.cpp follows
none. Next on the request's path: back in `tokenizer.py`.
"""

from __future__ import annotations

from typing import Any

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from ostinato.chat.pretokenizers import PreTokenizer, pretokenizer
from ostinato.chat.vocabulary import TokenType, Vocabulary
from ostinato.errors import ModelFileError

_MERGES_KEY = "tokenizer.ggml.merges"


class ByteLevelBpe:
    """Encodes plain text with the merges of a file of kind `gpt2`.

    Raises:
        UnsupportedModelError: the pre-tokenizer is not built.
        ModelFileError: a merge is not two tokens that together make a third.
    """

    reads_user_defined = False

    def __init__(self, vocabulary: Vocabulary) -> None:
        rule = pretokenizer(vocabulary.pretokenizer)
        self.add_bos = rule.add_bos if vocabulary.add_bos is None else vocabulary.add_bos
        self._encoder = Tokenizer(_model(vocabulary, rule))
        self._encoder.pre_tokenizer = _pre_tokenizer(rule)

    def spell(self, text: str) -> str:
        """Return the text as `encode` and the user-defined tokens want it: as it is."""
        return text

    def encode(self, text: str, *, at_start: bool = True) -> list[int]:
        """Return the ids of plain text, without the bytes that the vocabulary cannot spell."""
        return library_encode(self._encoder, text)

    def prepare(self) -> Tokenizer:
        """Return the library's encoder, which is always at hand."""
        return self._encoder

    def token_bytes(self, token: str) -> bytes:
        """Return the bytes that a normal token stands for."""
        return letter_bytes(token)


def letter_bytes(token: str) -> bytes:
    """Return the bytes that the letters of a token stand for."""
    return b"".join(_BYTE_OF.get(letter) or letter.encode() for letter in token)


def library_encode(encoder: Tokenizer, text: str) -> list[int]:
    """Return the ids of one text. A batch of one, unlike `encode`, lets other threads of Python run."""
    ids: list[int] = encoder.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids


def _model(vocabulary: Vocabulary, rule: PreTokenizer) -> models.BPE:
    # Control tokens are left out, so that no merge and no whole word can make one from what a user typed.
    ids = dict(zip(vocabulary.tokens, range(len(vocabulary.tokens)), strict=True))
    for token_id in vocabulary.ids_of(TokenType.CONTROL, TokenType.UNKNOWN):
        ids.pop(vocabulary.tokens[token_id], None)
    merges: list[Any] = [tuple(merge.split(" ", 1)) for merge in vocabulary.merges]
    try:
        return models.BPE(ids, merges, ignore_merges=rule.whole_words)
    except (
        Exception
    ) as error:  # the library raises bare Exception, and TypeError for a merge that is not a pair
        raise _bad_merge(ids, vocabulary.merges) from error


def _bad_merge(ids: dict[str, int], merges: list[str]) -> ModelFileError:
    for index, merge in enumerate(merges):
        pair = merge.split(" ", 1)
        if len(pair) != 2:
            return ModelFileError(
                f"{_MERGES_KEY}[{index}] is {merge!r}, expected two tokens with a space between"
            )
        for token in (*pair, "".join(pair)):
            if token not in ids:
                return ModelFileError(
                    f"{_MERGES_KEY}[{index}] is {merge!r}, but there is no plain token {token!r}"
                )
    return ModelFileError(f"{_MERGES_KEY} cannot be used")


def _pre_tokenizer(rule: PreTokenizer) -> pre_tokenizers.PreTokenizer:
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns]
    to_letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*cuts, to_letters])


def _byte_letters() -> dict[str, bytes]:
    """Return the byte that each letter of a byte-level vocabulary stands for.

    Printable Latin-1 characters stand for themselves, the other bytes for the code points from 256 on, in
    order (source: the GPT-2 encoder, `bytes_to_unicode`).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): bytes([byte]) for byte in printable}
    return letters | {chr(256 + index): bytes([byte]) for index, byte in enumerate(others)}


_BYTE_OF = _byte_letters()
