"""How weights lie in memory for the kernels: 16 rows interleaved, so that a register holds one column (or
four) of 16 rows.

A quantised matrix is a sequence of super-blocks of 16 rows by 32 or 256 columns, rows outermost. A
super-block holds, one after another:

* the values of each group of 32 columns: a plane of their low 2, 4 or 8 bits and, for types of 3, 5 and 6
  bits, a plane of their 1 or 2 high bits;
* for blocks of 256 columns an int8 sub-scale for each row and 32 (or 16) columns, and the sub-minima if the
  type has them;
* a factor for each row, and the factor of the minima: exactly the bits the file has.

A register of the low plane is 64 bytes, a lane to a row. In a 4-bit plane register j holds columns 4j …
4j+3 in the low and 16+4j … in the high half of each byte; in a 2-bit plane register j // 4 holds them at
bit 2 (j % 4). High bits of columns 4j … lie at bit j, or in register j // 4 at bit 2 (j % 4). 8-bit values
are stored with 128 added, because the dot product takes unsigned weights. A matrix of floats is a sequence
of 16-row panels, column after column. Rows that fill up the last panel are zeros. `kernels/pack.py` does
the work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ostinato.ops.cpu.simd import LANES

GROUP_COLUMNS = 32

Factor = Literal["f16", "e8m0"]
Minima = Literal["none", "f16", "u8", "u4"]

Q4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""What the 4 bits of IQ4_NL and IQ4_XS stand for. Source: `kvalues_iq4nl` of the ggml project."""

FP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the numbers that the 4 bits of MXFP4 (E2M1) stand for. Source: OCP Microscaling Formats 1.0."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A way to lay out weights.

    `low` and `high`: bits of the two planes (of one number, where not `quantized`). `groups`: groups of 32
    columns in a super-block. `subs`: int8 sub-scales a group, 0 without. `minima`: none; one a group; one a
    group as a byte times a factor; or one a sub-scale, in the upper half of its byte. `offset`: what is
    subtracted from a stored value. `table`: what 4 bits stand for, where not for themselves.
    """

    name: str
    low: int
    high: int = 0
    groups: int = 1
    subs: int = 0
    factor: Factor = "f16"
    minima: Minima = "none"
    offset: int = 0
    table: tuple[int, ...] = ()
    quantized: bool = True

    @property
    def columns(self) -> int:
        """Columns of a super-block."""
        return GROUP_COLUMNS * self.groups

    @property
    def value_bytes(self) -> int:
        """Bytes of the values of 16 rows by 32 columns."""
        return 4 * LANES * (self.low + self.high)

    @property
    def sub_scales(self) -> int:
        """Where the sub-scales begin in a super-block; its values come before."""
        return self.groups * self.value_bytes

    @property
    def sub_minima(self) -> int:
        """Where the minima that are bytes begin."""
        return self.sub_scales + self.groups * self.subs * LANES

    @property
    def factors(self) -> int:
        """Where the factors begin."""
        return self.sub_minima + (self.groups * LANES if self.minima == "u8" else 0)

    @property
    def minima_factors(self) -> int:
        """Where the minima, or their factors, begin."""
        return self.factors + (2 * LANES if self.factor == "f16" else LANES)

    @property
    def block_bytes(self) -> int:
        """Bytes of a super-block."""
        return self.minima_factors + (0 if self.minima == "none" else 2 * LANES)

    def packed_bytes(self, rows: int, columns: int) -> int:
        """Bytes of a matrix, its rows filled up to a multiple of 16."""
        panels = -(-rows // LANES)
        if self.quantized:
            return panels * (columns // self.columns) * self.block_bytes
        return panels * columns * LANES * self.low // 8

    def constants(self) -> dict[str, int]:
        """Return the layout as the constants of a kernel."""
        first, second = (
            int.from_bytes(bytes(128 + v for v in part), "little", signed=True)
            for part in (self.table[:8], self.table[8:])
        )
        return {
            "LOW": self.low,
            "HIGH": self.high,
            "GROUPS": self.groups,
            "SUBS": self.subs,
            "E8M0": int(self.factor == "e8m0"),
            "MINIMA": ("none", "f16", "u8", "u4").index(self.minima),
            "OFFSET": 128 if self.table else self.offset,
            "TABLE": int(bool(self.table)),
            "TABLE_FIRST": first,
            "TABLE_SECOND": second,
            "VALUE_BYTES": self.value_bytes,
            "SUB_SCALES": self.sub_scales,
            "SUB_MINIMA": self.sub_minima,
            "FACTORS": self.factors,
            "MINIMA_FACTORS": self.minima_factors,
            "BLOCK_BYTES": self.block_bytes,
        }


LAYOUTS = {
    "Q4_0": Layout("q4", 4, offset=8),
    "Q4_1": Layout("q4m", 4, minima="f16"),
    "Q5_0": Layout("q5", 4, 1, offset=16),
    "Q5_1": Layout("q5m", 4, 1, minima="f16"),
    "Q8_0": Layout("q8", 8, offset=128),
    "Q2_K": Layout("q2k", 2, groups=8, subs=2, minima="u4"),
    "Q3_K": Layout("q3k", 2, 1, groups=8, subs=2, offset=4),
    "Q4_K": Layout("q4k", 4, groups=8, subs=1, minima="u8"),
    "Q5_K": Layout("q5k", 4, 1, groups=8, subs=1, minima="u8"),
    "Q6_K": Layout("q6k", 4, 2, groups=8, subs=2, offset=32),
    "IQ4_NL": Layout("iq4nl", 4, table=Q4_VALUES),
    "IQ4_XS": Layout("iq4xs", 4, groups=8, subs=1, table=Q4_VALUES),
    "MXFP4": Layout("mxfp4", 4, factor="e8m0", table=FP4_VALUES),
    "F16": Layout("f16", 16, quantized=False),
    "BF16": Layout("bf16", 16, quantized=False),
    "F32": Layout("f32", 32, quantized=False),
}
"""The layout for each tensor type of a model file."""
