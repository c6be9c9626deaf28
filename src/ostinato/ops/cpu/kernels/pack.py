"""From the layout of a model file to the layout of packing.py, on all workers.

An item is a panel of 16 rows.
"""

from __future__ import annotations

from ostinato.ops.cpu.kernel import Kernel, inline, variant
from ostinato.ops.cpu.kernels import blocks
from ostinato.ops.cpu.kernels.blocks import columns, factor_offset, sub_minimum, sub_scale
from ostinato.ops.cpu.packing import LAYOUTS
from ostinato.ops.cpu.simd import LANES, get_i32, get_u8, get_u16, set_i32, set_u8, set_u16

# Constants of the variants, put in before compilation.
FILE_BLOCK_BYTES = 18
LOW, HIGH, GROUPS, SUBS, MINIMA, E8M0 = 4, 0, 1, 0, 0, 0
VALUE_BYTES, BLOCK_BYTES, SUB_SCALES, SUB_MINIMA, FACTORS, MINIMA_FACTORS = 256, 288, 0, 0, 0, 0
ELEMENT_BYTES = 2


@inline
def source_row(row: int, paired_dim: int) -> int:
    """The row of the file that becomes this one: itself, or rotary pairs made into halves."""
    if paired_dim == 0:
        return row
    head, i = row // paired_dim, row % paired_dim
    half = paired_dim // 2
    return head * paired_dim + (2 * i if i < half else 2 * (i - half) + 1)


@inline
def pack_values(block: int, group: int, values: int) -> None:
    """Write one row's values of a group into its planes; `values`: those of the row's lane."""
    if LOW == 8:
        for j in range(8):
            set_i32(values + 64 * j, columns(block, group, j))
    elif LOW == 4:
        for j in range(4):
            low, high = columns(block, group, j), columns(block, group, j + 4)
            set_i32(values + 64 * j, (low & 0x0F0F0F0F) | ((high & 0x0F0F0F0F) << 4))
    else:
        for k in range(2):
            word = 0
            for j in range(4):
                word = word | ((columns(block, group, 4 * k + j) & 0x03030303) << (2 * j))
            set_i32(values + 64 * k, word)
    if HIGH == 1:
        word = 0
        for j in range(8):
            word = word | (((columns(block, group, j) >> LOW) & 0x01010101) << j)
        set_i32(values + 64 * LOW, word)
    if HIGH == 2:
        for k in range(2):
            word = 0
            for j in range(4):
                word = word | (((columns(block, group, 4 * k + j) >> LOW) & 0x03030303) << (2 * j))
            set_i32(values + 64 * (LOW + k), word)


@inline
def pack_block(block: int, packed: int, lane: int) -> None:
    """Write one row of a super-block."""
    for group in range(GROUPS):
        pack_values(block, group, packed + group * VALUE_BYTES + 4 * lane)
    if SUBS:
        for index in range(GROUPS * SUBS):
            set_u8(packed + SUB_SCALES + 16 * index + lane, sub_scale(block, index))
    if MINIMA == 2:
        for index in range(GROUPS):
            set_u8(packed + SUB_MINIMA + 16 * index + lane, sub_minimum(block, index))
    if E8M0:
        set_u8(packed + FACTORS + lane, get_u8(block))
    else:
        set_u16(packed + FACTORS + 2 * lane, get_u16(block + factor_offset()))
    if MINIMA:
        set_u16(packed + MINIMA_FACTORS + 2 * lane, get_u16(block + factor_offset() + 2))


def _quantized(
    first: int, last: int, source: int, packed: int, rows: int, groups: int, paired_dim: int
) -> None:
    supers = groups // GROUPS
    for r in range(first, last):
        for lane in range(min(LANES, rows - r * LANES)):
            row = source + source_row(r * LANES + lane, paired_dim) * supers * FILE_BLOCK_BYTES
            for s in range(supers):
                pack_block(row + s * FILE_BLOCK_BYTES, packed + (r * supers + s) * BLOCK_BYTES, lane)


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


def _variant(type_name: str) -> Kernel:
    layout = LAYOUTS[type_name]
    if not layout.quantized:
        if layout.low == 32:
            return variant(_floating, f"pack_{layout.name}", ELEMENT_BYTES=4)
        return variant(_floating, "pack_16bit", ELEMENT_BYTES=2)
    constants = {"TYPE": getattr(blocks, type_name), "FILE_BLOCK_BYTES": FILE_BLOCKS[type_name]}
    return variant(_quantized, f"pack_{layout.name}", **constants, **layout.constants())


FILE_BLOCKS = {
    "Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34, "Q2_K": 84, "Q3_K": 110, "Q4_K": 144,
    "Q5_K": 176, "Q6_K": 210, "IQ4_NL": 18, "IQ4_XS": 136, "MXFP4": 17,
}  # fmt: skip
"""Bytes of a block in the file."""

PACK = {name: _variant(name) for name in LAYOUTS if name != "BF16"}
"""The kernel that packs each tensor type."""
PACK["BF16"] = PACK["F16"]
