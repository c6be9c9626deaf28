"""KeptSequences: the blocks of finished requests, kept so that a prompt that goes on from one need not be
read again.

A match is exact in tokens. The match is taken out: one owner writes to its blocks from then on. The oldest
sequence gives way when blocks are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ostinato.kvcache.blocks import BlockPool, blocks_for


@dataclass(frozen=True, slots=True)
class Kept:
    """A sequence of tokens whose keys and values lie in `blocks`, in order."""

    token_ids: tuple[int, ...]
    blocks: tuple[int, ...]


class KeptSequences:
    """Finished sequences, the oldest first, over the blocks of one pool."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._kept: list[Kept] = []

    @property
    def num_blocks(self) -> int:
        """Blocks that could be freed by forgetting everything."""
        return sum(len(kept.blocks) for kept in self._kept)

    def keep(self, token_ids: Sequence[int], blocks: Sequence[int]) -> None:
        """Take over blocks that hold these tokens; those beyond them go back to the pool."""
        needed = blocks_for(len(token_ids))
        self._pool.free(blocks[needed:])
        if needed:
            self._kept.append(Kept(tuple(token_ids), tuple(blocks[:needed])))

    def take(self, token_ids: Sequence[int]) -> tuple[list[int], int]:
        """Hand out the blocks of the longest match with a beginning of these tokens, and its length in
        tokens.

        At most all tokens but the last match: the last one is always computed, since its logits are wanted.
        """
        limit = len(token_ids) - 1
        lengths = [common_prefix(kept.token_ids, token_ids, limit) for kept in self._kept]
        longest = max(lengths, default=0)
        if longest == 0:
            return [], 0
        kept = self._kept.pop(len(lengths) - 1 - lengths[::-1].index(longest))
        needed = blocks_for(longest)
        self._pool.free(kept.blocks[needed:])
        return list(kept.blocks[:needed]), longest

    def make_room(self, num_free: int) -> None:
        """Forget the oldest sequences until the pool has `num_free` free blocks or nothing is kept."""
        while self._kept and self._pool.num_free < num_free:
            self._pool.free(self._kept.pop(0).blocks)

    def owned(self) -> list[int]:
        """Return the numbers of all blocks kept here."""
        return [block for kept in self._kept for block in kept.blocks]


def common_prefix(a: Sequence[int], b: Sequence[int], limit: int) -> int:
    """Return how many tokens at the beginning are equal, at most `limit`."""
    limit = min(limit, len(a), len(b))
    return next((i for i in range(limit) if a[i] != b[i]), limit)
