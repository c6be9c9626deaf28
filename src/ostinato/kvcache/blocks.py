"""BlockPool: the numbers of the KV blocks that are free, and a proof that none was lost.

Next: sequences.py, which keeps the blocks of finished requests.
"""

from __future__ import annotations

from collections.abc import Iterable

from ostinato.ops.batch import BLOCK_TOKENS


def blocks_for(num_tokens: int) -> int:
    """Return how many blocks hold this many tokens."""
    return -(-num_tokens // BLOCK_TOKENS)


class BlockPool:
    """Hands out block numbers 0 to num_blocks - 1, each to one owner at a time."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Blocks nobody owns."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks; there must be as many."""
        assert count <= len(self._free), (count, len(self._free))
        return [self._free.pop() for _ in range(count)]

    def free(self, blocks: Iterable[int]) -> None:
        """Give blocks back."""
        self._free.extend(blocks)

    def check_integrity(self, owned: Iterable[int]) -> None:
        """Assert that free and owned blocks together are all blocks, each once."""
        everything = sorted([*self._free, *owned])
        assert everything == list(range(self.num_blocks)), everything
