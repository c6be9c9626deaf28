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
from ostinato.ops.program import KVShape, Program


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
        sizes = [self._row_bytes(width) * self.rows for width in program.widths.values()]
        self.arena = Arena(sum(sizes) + 8 * padded(1) * len(sizes))
        self._buffers = {name: self._buffer(name, width) for name, width in program.widths.items()}

    @staticmethod
    def _row_bytes(width: int) -> int:
        return 4 * (width + LANES) + GROUP * (width // GROUP + 1) + 16 * (width // GROUP + 1)

    def _buffer(self, name: str, width: int) -> Buffer:
        stride, groups = -(-width // LANES) * LANES, -(-width // GROUP)
        take, rows = self.arena.take, self.rows
        quantized = Quantized(take(rows * groups * GROUP), *(take(n * rows * groups) for n in (4, 4, 8)))
        return Buffer(name, width, stride, take(4 * rows * stride), quantized)

    def __getitem__(self, name: str) -> Buffer:
        return self._buffers[name]

    def floats(self, name: str, rows: int) -> NDArray[np.float32]:
        """Return the first rows of a buffer (rows, width), a view."""
        buffer = self[name]
        view: NDArray[np.float32] = self.arena.view(buffer.address, (rows, buffer.stride), np.float32)  # type: ignore[assignment]
        return view[:, : buffer.width]


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
