"""ForwardBatch: the tokens of one step, and the protocol of the executors that run them.

Prefill chunks and decode steps are the same thing with different T; one batch may mix them. The engine builds
a batch, an executor runs it: `cpu/executor.py` or `reference.py`. Nothing here knows requests or text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

BLOCK_TOKENS = 32
"""Tokens in one KV block, of every model."""

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One step's work: T tokens of S sequences, R of which get logits.

    token_ids (T,), positions (T,): id and absolute position of each token; the positions of a sequence's
    tokens are consecutive.
    slot_of_token (T,): which sequence (row of block_tables) a token belongs to; the tokens of a sequence are
    adjacent.
    block_tables (S, B): for each sequence the KV blocks that hold positions 0-31, 32-63, …; unused entries
    are ignored.
    context_lens (S,): tokens of the sequence after this step.
    logits_rows (R,): indices into the T tokens whose logits are wanted.
    """

    token_ids: Int32
    positions: Int32
    slot_of_token: Int32
    block_tables: Int32
    context_lens: Int32
    logits_rows: Int32

    @staticmethod
    def single(
        token_ids: list[int], start: int, blocks: list[int], logits_rows: list[int] | None = None
    ) -> ForwardBatch:
        """Return the batch of one sequence from position `start`; by default its last token gets logits."""
        num_tokens = len(token_ids)
        rows = [num_tokens - 1] if logits_rows is None else logits_rows
        return ForwardBatch(
            token_ids=np.array(token_ids, np.int32),
            positions=np.arange(start, start + num_tokens, dtype=np.int32),
            slot_of_token=np.zeros(num_tokens, np.int32),
            block_tables=np.array([blocks], np.int32),
            context_lens=np.array([start + num_tokens], np.int32),
            logits_rows=np.array(rows, np.int32),
        )


class Executor(Protocol):
    """Runs a Program over batches, and owns the memory of the KV blocks."""

    vocab_size: int
    max_batch_tokens: int
    num_blocks: int

    def forward(self, batch: ForwardBatch) -> Float32:
        """Run the batch and return its logits (R, vocab_size), an array that the next call may overwrite."""
        ...

    def close(self) -> None:
        """Release threads and memory. Calling it twice is harmless."""
        ...
