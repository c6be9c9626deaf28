"""The memory a step works in: rows of floats, their quantised twins, rotary tables, KV blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ostinato.ops.batch import BLOCK_TOKENS
from ostinato.ops.cpu.kernels.common import GROUP
from ostinato.ops.cpu.memory import Arena, padded
from ostinato.ops.cpu.simd import LANES
from ostinato.ops.program import Experts, KVShape, Program, Weight


@dataclass(frozen=True, slots=True)
class Quantized:
    """Addresses of a buffer's int8 values, and per group of 32 their scale, scale · sum, and the
    sums of both halves."""

    values: int
    scales: int
    scaled_sums: int
    integer_sums: int


@dataclass(frozen=True, slots=True)
class Buffer:
    """A named buffer: `width` floats a row, rows `stride` floats apart (a multiple of 16, the rest zeros)."""

    name: str
    width: int
    stride: int
    address: int
    quantized: Quantized


class Buffers:
    """All buffers of a program for `max_tokens` rows, with spare ones for the last tile to run into."""

    def __init__(self, program: Program, max_tokens: int, spare_rows: int) -> None:
        self.rows = max_tokens + spare_rows
        shapes = {name: (self.rows, width) for name, width in program.widths.items()}
        shapes |= _expert_shapes(program, self.rows)
        sizes = [self._row_bytes(width) * rows for rows, width in shapes.values()]
        self.arena = Arena(sum(sizes) + 8 * padded(1) * len(sizes))
        self._buffers = {name: self._buffer(name, *shape) for name, shape in shapes.items()}

    @staticmethod
    def _row_bytes(width: int) -> int:
        return 4 * (width + LANES) + GROUP * (width // GROUP + 1) + 16 * (width // GROUP + 1)

    def _buffer(self, name: str, rows: int, width: int) -> Buffer:
        stride, groups = -(-width // LANES) * LANES, -(-width // GROUP)
        take = self.arena.take
        quantized = Quantized(take(rows * groups * GROUP), *(take(n * rows * groups) for n in (4, 4, 8)))
        return Buffer(name, width, stride, take(4 * rows * stride), quantized)

    def __getitem__(self, name: str) -> Buffer:
        return self._buffers[name]

    def floats(self, name: str, rows: int) -> NDArray[np.float32]:
        """Return the first rows of a buffer (rows, width), a view."""
        buffer = self[name]
        view: NDArray[np.float32] = self.arena.view(buffer.address, (rows, buffer.stride), np.float32)  # type: ignore[assignment]
        return view[:, : buffer.width]


PAIR_GATE, PAIR_UP, PAIR_HIDDEN, PAIR_OUT = "pair gate", "pair up", "pair hidden", "pair out"
"""Buffers of a mixture of experts, a row to a pair of token and expert."""

ROUTE_EXPERTS, ROUTE_SHARES, ROUTE_STARTS, ROUTE_PAIRS = "experts of", "shares", "starts", "pairs"
"""What experts.py writes, as buffers of 4-byte words."""


def _expert_shapes(program: Program, rows: int) -> dict[str, tuple[int, int]]:
    """Return rows and width of the buffers that mixtures of experts need beside the program's own."""
    shapes: dict[str, tuple[int, int]] = {}
    for op in program.ops:
        if isinstance(op, Experts):
            hidden = rows_of(op.gate[0])
            wide = dict.fromkeys((PAIR_GATE, PAIR_UP, PAIR_HIDDEN), hidden)
            wide[PAIR_OUT] = program.widths[op.out]
            shapes |= {name: (rows * op.chosen, width) for name, width in wide.items()}
            shapes |= {name: (rows, op.chosen) for name in (ROUTE_EXPERTS, ROUTE_SHARES, ROUTE_PAIRS)}
            shapes[ROUTE_STARTS] = (1, len(op.gate) + 2)
    return shapes


def rows_of(weight: Weight) -> int:
    """Return the rows of an expert's matrix."""
    assert weight.rows is not None, weight
    return weight.rows[1] - weight.rows[0]


class KVPool:
    """The KV blocks of an executor, in one memory; see kernels/attention.py for what lies in a block."""

    def __init__(self, shape: KVShape, num_blocks: int) -> None:
        self.shape = shape
        self.num_blocks = num_blocks
        self.block_bytes = shape.num_layers * shape.heads * shape.head_dim * BLOCK_TOKENS * 4
        self.arena = Arena(num_blocks * self.block_bytes)


class RopeTable:
    """Cosines and sines of the positions needed so far: float32 [position][rotated], cosines first.

    `rotated`: twice the number of frequencies.
    """

    def __init__(self, frequencies: Sequence[float], magnitude: float, max_positions: int) -> None:
        self._turns = np.array(frequencies, np.float64)
        self._magnitude = magnitude
        self.rotated = 2 * len(frequencies)
        self.arena = Arena(max_positions * self.rotated * 4)
        self._table = self.arena.view(self.arena.address, (max_positions, self.rotated), np.float32)
        self._filled = 0

    def reach(self, positions: int) -> None:
        """Make sure that the first `positions` rows are there."""
        if positions <= self._filled:
            return
        end = min(len(self._table), max(positions, 2 * self._filled, 512))
        angles = np.arange(self._filled, end)[:, None] * self._turns
        half = len(self._turns)
        self._table[self._filled : end, :half] = self._magnitude * np.cos(angles)
        self._table[self._filled : end, half:] = self._magnitude * np.sin(angles)
        self._filled = end
