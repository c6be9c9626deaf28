"""Scheduler: which tokens of which requests the next step computes. No model, no arrays: tested on its own.

Requests wait in order of arrival until there are blocks for all they may become, then run. A step takes the
newest token of every request that is decoding, then as much of the waiting prompts as fits its budget.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ostinato.engine.sequence import Sequence
from ostinato.kvcache.blocks import BlockPool, blocks_for
from ostinato.kvcache.sequences import KeptSequences
from ostinato.telemetry.timeline import Clock


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Part of a step: `num_tokens` tokens of a sequence, from its first uncomputed one."""

    sequence: Sequence
    num_tokens: int

    @property
    def wants_logits(self) -> bool:
        """Whether this reaches the newest token, so that the next one can be chosen."""
        return self.num_tokens == self.sequence.num_pending


class Scheduler:
    """Admits, schedules and releases sequences over one pool of KV blocks."""

    def __init__(self, num_blocks: int, max_step_tokens: int, clock: Clock) -> None:
        self.max_step_tokens = max_step_tokens
        self.pool = BlockPool(num_blocks)
        self.kept = KeptSequences(self.pool)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._clock = clock

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait for its turn."""
        self.waiting.append(sequence)

    def schedule(self) -> list[Scheduled]:
        """Admit what fits, and return the work of the next step; empty if there is none."""
        while self.waiting and self._admit(self.waiting[0]):
            self.running.append(self.waiting.popleft())
        decoding = [s for s in self.running if s.num_pending == 1][: self.max_step_tokens]
        scheduled = [Scheduled(sequence, 1) for sequence in decoding]
        budget = self.max_step_tokens - len(scheduled)
        for sequence in self.running:
            if sequence.num_pending > 1 and budget > 0:
                num_tokens = min(budget, sequence.num_pending)
                scheduled.append(Scheduled(sequence, num_tokens))
                budget -= num_tokens
        return scheduled

    def release(self, sequence: Sequence, keep: bool) -> None:
        """Take a sequence out, wherever it is; keep what it has computed for later prompts, or forget it."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        keep = keep and sequence.request.use_cache
        computed = sequence.token_ids[: sequence.num_computed] if keep else []
        self.kept.keep(computed, sequence.blocks)
        sequence.blocks = []

    def _admit(self, sequence: Sequence) -> bool:
        """Give a sequence its blocks, those of a kept one that it continues first; False if there are too
        few."""
        needed = blocks_for(sequence.capacity)
        if needed > self.pool.num_free + self.kept.num_blocks:
            return False
        if sequence.request.use_cache:
            sequence.blocks, sequence.num_cached = self.kept.take(sequence.token_ids)
            sequence.num_computed = sequence.num_cached
        missing = needed - len(sequence.blocks)
        self.kept.make_room(missing)
        sequence.blocks += self.pool.allocate(missing)
        sequence.timeline.scheduled_s = self._clock()
        return True

    def check_integrity(self) -> None:
        """Assert that every block is free, kept or in use, once."""
        in_use = [block for sequence in self.running for block in sequence.blocks]
        self.pool.check_integrity([*in_use, *self.kept.owned()])
