"""From the layout of a model file to the layout of packing.py, on all workers.

An item is a panel of 16 rows.
"""

from __future__ import annotations

from ostinato.ops.cpu.kernel import Kernel, inline, variant
from ostinato.ops.cpu.packing import GROUP_COLUMNS, LAYOUTS, Layout
from ostinato.ops.cpu.simd import LANES, get_i32, get_u16, set_i32, set_u16, static

# Constants of the variants, put in before compilation.
BITS, MINIMA, GROUP_BYTES, BLOCK_BYTES, FLIP = 4, 0, 288, 18, 0
ELEMENT_BYTES = 2

FLIP_SIGNS = -0x7F7F7F80
"""0x80808080 as an int32: turns a signed byte w into the unsigned w + 128."""


@inline
def source_row(row: int, paired_dim: int) -> int:
    """The row of the file that becomes this one: itself, or rotary pairs made into halves."""
    if paired_dim == 0:
        return row
    head, i = row // paired_dim, row % paired_dim
    half = paired_dim // 2
    return head * paired_dim + (2 * i if i < half else 2 * (i - half) + 1)


def _quantized(
    first: int, last: int, source: int, packed: int, rows: int, groups: int, paired_dim: int
) -> None:
    for r in range(first, last):
        for lane in range(min(LANES, rows - r * LANES)):
            row = source + source_row(r * LANES + lane, paired_dim) * groups * BLOCK_BYTES
            for g in range(groups):
                block = row + g * BLOCK_BYTES
                group = packed + (r * groups + g) * GROUP_BYTES
                for j in static(BITS):
                    set_i32(group + 64 * j + 4 * lane, get_i32(block + 2 + 2 * MINIMA + 4 * j) ^ FLIP)
                set_u16(group + 64 * BITS + 2 * lane, get_u16(block))
                if MINIMA:
                    set_u16(group + 64 * BITS + 32 + 2 * lane, get_u16(block + 2))


def _floating(
    first: int, last: int, source: int, packed: int, rows: int, columns: int, paired_dim: int
) -> None:
    for r in range(first, last):
        panel = packed + r * columns * LANES * ELEMENT_BYTES
        for lane in range(min(LANES, rows - r * LANES)):
            row = source + source_row(r * LANES + lane, paired_dim) * columns * ELEMENT_BYTES
            for k in range(columns):
                if ELEMENT_BYTES == 4:
                    set_i32(panel + (k * LANES + lane) * 4, get_i32(row + 4 * k))
                else:
                    set_u16(panel + (k * LANES + lane) * 2, get_u16(row + 2 * k))


def _variant(layout: Layout) -> Kernel:
    name = f"pack_{layout.name}"
    if not layout.quantized:
        if layout.bits == 32:
            return variant(_floating, name, ELEMENT_BYTES=4)
        return variant(_floating, "pack_16bit", ELEMENT_BYTES=2)
    block_bytes = layout.bits * GROUP_COLUMNS // 8 + 2 + 2 * layout.minima
    return variant(
        _quantized,
        name,
        BITS=layout.bits,
        MINIMA=int(layout.minima),
        GROUP_BYTES=layout.group_bytes,
        BLOCK_BYTES=block_bytes,
        FLIP=FLIP_SIGNS if layout.bits == 8 else 0,
    )


PACK = {layout: _variant(layout) for layout in LAYOUTS.values() if layout.name != "bf16"}
"""The kernel that packs each layout."""
PACK[LAYOUTS["BF16"]] = PACK[LAYOUTS["F16"]]
