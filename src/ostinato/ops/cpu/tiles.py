"""How much of a batch a kernel works on at a time: as much as its path has registers for.

Nothing here can change a bit of a result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ostinato.ops.batch import ForwardBatch
from ostinato.ops.cpu.kernels import attention, matmul

SPLIT_TOKENS = 8
"""The most tokens whose attention is split into segments; more of them keep a team busy as they are."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tile sizes: tokens of a product, rows of one after TakeRows, tokens of attention; whether attention is
    split into segments; and how many registers can hold its sums.
    """

    tokens: int
    rows: int
    attention: int
    split: bool = False
    accumulators: int = 24


@dataclass(frozen=True, slots=True)
class TileSizes:
    """The tile sizes of a model on a path: of products, ascending; tokens of attention; its accumulators."""

    products: tuple[int, ...]
    attention: int
    accumulators: int

    @staticmethod
    def of(heads_per_kv: int, simd: str) -> TileSizes:
        """Return those of a model whose KV heads are each read by so many query heads."""
        queries = attention.queries(simd)
        return TileSizes(matmul.TILES, max(1, queries // heads_per_kv), attention.accumulators(simd))

    def all(self) -> Iterable[Tiles]:
        """Return tiles that between them need every kernel that any batch does."""
        for tile in self.products:
            tokens = 1 if tile == 1 else self.attention
            yield Tiles(tile, tile, tokens, accumulators=self.accumulators)
        yield Tiles(1, 1, 1, split=True, accumulators=self.accumulators)

    def for_batch(self, batch: ForwardBatch) -> Tiles:
        """Return the tiles that suit a batch.

        Attention is split into segments where there are several and few tokens, one of each sequence.
        """
        num_tokens = len(batch.token_ids)
        tile, row_tile = self._product(num_tokens), self._product(len(batch.logits_rows))
        if num_tokens > 1 and not np.diff(batch.slot_of_token).all():
            return Tiles(tile, row_tile, self.attention, accumulators=self.accumulators)
        split = num_tokens <= SPLIT_TOKENS and int(batch.positions.max()) >= attention.SEGMENT
        return Tiles(tile, row_tile, 1, split, self.accumulators)

    def _product(self, count: int) -> int:
        return next((tile for tile in self.products if tile >= count), self.products[-1])
