"""SentencePiece's byte-pair encoding: the pair that makes the best-scored piece is joined first.

Knows pieces, their scores, and the mark that stands for a space. Must not know control tokens: it is given
text that holds none. Next on the request's path: back in `tokenizer.py`.

A file of this kind holds scores and no merges. The first texts are therefore encoded here, from the scores
alone, which needs no preparation; the `tokenizers` library, ten times faster but about a second in the making
for a vocabulary of a quarter of a million, takes over once so much has been read that it pays. Both give the
same ids, which tests hold.

Source: the SentencePiece library, `bpe_model.cc`; the fallback to bytes, its option `byte_fallback`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import pairwise
from threading import Lock

import numpy as np
from tokenizers import Tokenizer, models

from ostinato.chat.byte_bpe import library_encode
from ostinato.chat.vocabulary import TokenType, Vocabulary, byte_value
from ostinato.errors import ModelFileError

SPACE = "▁"
PATIENCE_CHARS = 200_000  # about half a second of joining here


class ScoredBpe:
    """Encodes plain text with the scores of a file of kind `llama`.

    Pieces with equal scores are joined in the order of their ids.

    Raises:
        ModelFileError: a byte has no token, or a piece appears twice.
    """

    reads_user_defined = False

    def __init__(self, vocabulary: Vocabulary, patience_chars: int = PATIENCE_CHARS) -> None:
        self.add_bos = vocabulary.add_bos is not False
        self._prefix = "" if vocabulary.add_space_prefix is False else SPACE
        self._id_of_rank = _ids_by_score(vocabulary)
        pieces = [vocabulary.tokens[token_id] for token_id in self._id_of_rank]
        self._rank = dict(zip(pieces, range(len(pieces)), strict=True))
        if len(self._rank) != len(pieces):
            raise ModelFileError(f"tokenizer.ggml.tokens holds the piece {_repeated(pieces)!r} twice")
        self._byte_ids = _byte_ids(vocabulary)
        self._patience_chars = patience_chars
        self._library: Tokenizer | None = None
        self._making = Lock()

    def spell(self, text: str) -> str:
        """Return the text as `encode` and the user-defined tokens want it."""
        return text.replace(" ", SPACE)

    def encode(self, text: str, *, at_start: bool = True) -> list[int]:
        """Return the ids of plain text, spelled; a character without a piece becomes its bytes."""
        text = self._prefix + text
        self._patience_chars -= len(text)
        if self._library is None and self._patience_chars >= 0:
            return [token_id for piece in join_by_rank(text, self._rank) for token_id in self._ids(piece)]
        return library_encode(self.prepare(), text)

    def token_bytes(self, token: str) -> bytes:
        """Return the bytes that a normal token stands for."""
        return token.replace(SPACE, " ").encode()

    def _ids(self, piece: str) -> list[int]:
        rank = self._rank.get(piece)
        if rank is not None:
            return [self._id_of_rank[rank]]
        return [self._byte_ids[byte] for byte in piece.encode()]

    def prepare(self) -> Tokenizer:
        """Return the library's encoder, made when first asked for."""
        with self._making:
            if self._library is None:
                ids = dict(zip(self._rank, self._id_of_rank, strict=True))
                ids |= {f"<0x{byte:02X}>": token_id for byte, token_id in enumerate(self._byte_ids)}
                merges = list(merges_of(self._rank))
                self._library = Tokenizer(models.BPE(ids, merges, byte_fallback=True))
            return self._library


def join_by_rank(text: str, rank: Mapping[str, int]) -> list[str]:
    """Join neighbours until no two make a piece: of those that do the lowest rank first, then the leftmost.

    Linear in the text but for the heap's logarithm. Joined parts are found through their first character's
    index.
    """
    parts = list(text)
    after = list(range(1, len(text) + 1))
    before = list(range(-1, len(text) - 1))
    heap = [
        (rank[pair], index, pair) for index, pair in enumerate(map("".join, pairwise(text))) if pair in rank
    ]
    heapify(heap)

    def offer(left: int, right: int) -> None:
        pair = parts[left] + parts[right]
        if pair in rank:
            heappush(heap, (rank[pair], left, pair))

    while heap:
        _, left, pair = heappop(heap)
        right = after[left]
        if not parts[left] or right == len(text) or parts[left] + parts[right] != pair:
            continue  # one of the two has been joined to another since
        parts[left], parts[right] = pair, ""
        after[left] = after[right]
        if after[left] < len(text):
            before[after[left]] = left
            offer(left, after[left])
        if before[left] >= 0:
            offer(before[left], left)
    return [part for part in parts if part]


def merges_of(rank: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield every pair of pieces that makes a piece, in the order of what they make.

    Of the pairs that make one piece at most one can ever meet: what happens inside a stretch of text before
    it is joined does not depend on what is around it. So the order among them is of no consequence.
    """
    for piece in rank:
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in rank and right in rank:
                yield left, right


def _ids_by_score(vocabulary: Vocabulary) -> list[int]:
    """Return the ids of the normal pieces, best score first."""
    assert vocabulary.scores is not None, "a vocabulary of this kind has scores"
    normal = np.flatnonzero(vocabulary.types == TokenType.NORMAL)
    order = np.argsort(-vocabulary.scores[normal], kind="stable")
    ids: list[int] = normal[order].tolist()
    return ids


def _byte_ids(vocabulary: Vocabulary) -> list[int]:
    """Return the token of each byte."""
    found = {}
    for token_id in vocabulary.ids_of(TokenType.BYTE):
        text = vocabulary.tokens[token_id]
        byte = byte_value(text)
        if byte is None:
            raise ModelFileError(
                f"token {token_id} is of type byte, expected <0x00> to <0xFF>, found {text!r}"
            )
        found[byte] = token_id
    missing = next((byte for byte in range(256) if byte not in found), None)
    if missing is not None:
        raise ModelFileError(f"tokenizer.ggml.tokens has no token for the byte 0x{missing:02X}")
    return [found[byte] for byte in range(256)]


def _repeated(pieces: list[str]) -> str:
    return next(piece for piece, count in Counter(pieces).items() if count > 1)
