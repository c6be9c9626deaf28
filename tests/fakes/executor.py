"""A model without a model: an executor that gives out scripted tokens and remembers what it was asked."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ostinato.ops.batch import BLOCK_TOKENS, Float32, ForwardBatch

Script = Callable[[list[int]], int]
"""From the tokens of a sequence so far to the next one."""


class ScriptedExecutor:
    """Predicts what a script says from the tokens it finds in its blocks, which it fills as a real one would.

    A token that was never stored, or stored at another position, is found out at once: it reads -1.
    """

    def __init__(
        self, script: Script, *, vocab_size: int = 50, num_blocks: int = 8, max_batch_tokens: int = 16
    ) -> None:
        self.script = script
        self.vocab_size = vocab_size
        self.num_blocks = num_blocks
        self.max_batch_tokens = max_batch_tokens
        self.batches: list[ForwardBatch] = []
        self.closed = False
        self._cells = np.full(num_blocks * BLOCK_TOKENS, -1)

    def forward(self, batch: ForwardBatch) -> Float32:
        assert len(batch.token_ids) <= self.max_batch_tokens
        self.batches.append(batch)
        for token_id, position, slot in zip(
            batch.token_ids, batch.positions, batch.slot_of_token, strict=True
        ):
            self._cells[self._cell(batch, slot, position)] = token_id
        logits = np.zeros((len(batch.logits_rows), self.vocab_size), np.float32)
        for row, token in zip(logits, batch.logits_rows, strict=True):
            slot, end = batch.slot_of_token[token], batch.positions[token] + 1
            seen = [int(self._cells[self._cell(batch, slot, p)]) for p in range(end)]
            assert -1 not in seen, seen
            row[self.script(seen)] = 10.0
        return logits

    def close(self) -> None:
        self.closed = True

    def _cell(self, batch: ForwardBatch, slot: int, position: int) -> int:
        return (
            int(batch.block_tables[slot, position // BLOCK_TOKENS]) * BLOCK_TOKENS
            + int(position) % BLOCK_TOKENS
        )


class FakeClock:
    """A clock that moves one second each time it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def count_up(tokens: list[int]) -> int:
    """The script of a model that counts: the next number, modulo 50."""
    return (tokens[-1] + 1) % 50
