"""How weights lie in memory for the kernels: 16 rows interleaved, so that a register holds one column (or
four) of 16 rows.

A quantised matrix is a sequence of groups of 16 rows by 32 columns, rows outermost. A group holds its 4-bit
or 8-bit values, 64 bytes a register with a lane to a row, then 16 float16 scales and, for types that have
them, 16 float16 minima: exactly the bits the file has. In 4-bit groups register j holds columns 4j … 4j+3 in
the low and 16+4j … in the high half of each byte, as GGUF's types do. 8-bit values are stored with 128 added,
because the dot product takes unsigned weights. A matrix of floats is a sequence of 16-row panels, column
after column. Rows that fill up the last panel are zeros. `kernels/pack.py` does the work.
"""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.ops.cpu.simd import LANES

GROUP_COLUMNS = 32


@dataclass(frozen=True, slots=True)
class Layout:
    """A way to lay out weights. `bits` of one value; `minima`: a group has a minimum beside its scale."""

    name: str
    bits: int
    quantized: bool
    minima: bool = False

    @property
    def group_bytes(self) -> int:
        """Bytes of 16 rows by 32 columns."""
        values = self.bits * LANES * GROUP_COLUMNS // 8
        return values + 2 * LANES * (self.quantized + self.minima)

    def packed_bytes(self, rows: int, columns: int) -> int:
        """Bytes of a matrix, its rows filled up to a multiple of 16."""
        panels = -(-rows // LANES)
        if self.quantized:
            return panels * (columns // GROUP_COLUMNS) * self.group_bytes
        return panels * columns * LANES * self.bits // 8


Q4 = Layout("q4", 4, quantized=True)
Q4_MINIMA = Layout("q4m", 4, quantized=True, minima=True)
Q8 = Layout("q8", 8, quantized=True)
F16 = Layout("f16", 16, quantized=False)
BF16 = Layout("bf16", 16, quantized=False)
F32 = Layout("f32", 32, quantized=False)

LAYOUTS = {"Q4_0": Q4, "Q4_1": Q4_MINIMA, "Q8_0": Q8, "F16": F16, "BF16": BF16, "F32": F32}
"""The layout for each tensor type of a model file."""
