"""How kernels read the blocks of a model file, one row at a time: values, scales and minima of every
quantised type. Inline functions only; TYPE is put in before compilation.

`block` is the address of a block of 32 or 256 columns, `group` the number of 32 columns in it. Four columns
are a word: a byte each. Source: `ggml-common.h` of the ggml project, and `weights/quants.py` for what they
mean.
"""

from __future__ import annotations

from ostinato.ops.cpu.kernel import inline
from ostinato.ops.cpu.simd import get_i32, get_u8, get_u16

Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 = 2, 3, 6, 7, 8
Q2_K, Q3_K, Q4_K, Q5_K, Q6_K = 10, 11, 12, 13, 14
IQ4_NL, IQ4_XS, MXFP4 = 20, 23, 39
"""The numbers that GGUF gives the types."""

TYPE = Q4_0

NIBBLES, PAIRS_OF_BITS, SINGLE_BITS = 0x0F0F0F0F, 0x03030303, 0x01010101

FLIP_SIGNS = 0x80808080
"""Turns four signed bytes w into the unsigned w + 128."""


@inline
def halves(quants: int, j: int) -> int:
    """Of 16 bytes with columns 0 … 15 in the low and 16 … 31 in the high halves: the columns from 4j."""
    return (get_i32(quants + 4 * (j % 4)) >> (4 * (j // 4))) & NIBBLES


@inline
def spread(bits: int) -> int:
    """Four bits, one to a byte."""
    return (bits | (bits << 7) | (bits << 14) | (bits << 21)) & SINGLE_BITS


@inline
def columns(block: int, group: int, j: int) -> int:
    """The columns 4j … 4j + 3 of a group, as unsigned bytes."""
    half, k = group // 4, group % 4
    if TYPE in (Q4_0, IQ4_NL):
        word = halves(block + 2, j)
    elif TYPE == Q4_1:
        word = halves(block + 4, j)
    elif TYPE == MXFP4:
        word = halves(block + 1, j)
    elif TYPE == Q5_0:
        word = halves(block + 6, j) | (spread((get_i32(block + 2) >> (4 * j)) & 15) << 4)
    elif TYPE == Q5_1:
        word = halves(block + 8, j) | (spread((get_i32(block + 4) >> (4 * j)) & 15) << 4)
    elif TYPE == Q8_0:
        word = get_i32(block + 2 + 4 * j) ^ FLIP_SIGNS
    elif TYPE == Q2_K:
        word = (get_i32(block + 16 + 32 * half + 4 * j) >> (2 * k)) & PAIRS_OF_BITS
    elif TYPE == Q3_K:
        word = (get_i32(block + 32 + 32 * half + 4 * j) >> (2 * k)) & PAIRS_OF_BITS
        word = word | (((get_i32(block + 4 * j) >> group) & SINGLE_BITS) << 2)
    elif TYPE == Q4_K:
        word = (get_i32(block + 16 + 32 * (group // 2) + 4 * j) >> (4 * (group % 2))) & NIBBLES
    elif TYPE == Q5_K:
        word = (get_i32(block + 48 + 32 * (group // 2) + 4 * j) >> (4 * (group % 2))) & NIBBLES
        word = word | (((get_i32(block + 16 + 4 * j) >> group) & SINGLE_BITS) << 4)
    elif TYPE == Q6_K:
        word = (get_i32(block + 64 * half + 32 * (k % 2) + 4 * j) >> (4 * (k // 2))) & NIBBLES
        word = word | (((get_i32(block + 128 + 32 * half + 4 * j) >> (2 * k)) & PAIRS_OF_BITS) << 4)
    else:
        word = halves(block + 8 + 16 * group, j)
    return word


@inline
def sub_scale(block: int, index: int) -> int:
    """The sub-scale of 32 or 16 columns: a byte, as the low bits of the result."""
    if TYPE == Q2_K:
        scale = get_u8(block + index)
    elif TYPE == Q3_K:
        low = (get_u8(block + 96 + index % 8) >> (4 * (index // 8))) & 15
        high = (get_u8(block + 104 + index % 4) >> (2 * (index // 4))) & 3
        scale = (low | (high << 4)) - 32
    elif TYPE == Q6_K:
        scale = get_u8(block + 192 + index)
    elif TYPE == IQ4_XS:
        low = (get_u8(block + 4 + index // 2) >> (4 * (index % 2))) & 15
        high = (get_u16(block + 2) >> (2 * index)) & 3
        scale = (low | (high << 4)) - 32
    elif index < 4:
        scale = get_u8(block + 4 + index) & 63
    else:
        scale = (get_u8(block + 8 + index) & 15) | ((get_u8(block + index) >> 6) << 4)
    return scale


@inline
def sub_minimum(block: int, index: int) -> int:
    """The 6-bit minimum of 32 columns, of Q4_K and Q5_K."""
    if index < 4:
        minimum = get_u8(block + 8 + index) & 63
    else:
        minimum = (get_u8(block + 8 + index) >> 4) | ((get_u8(block + 4 + index) >> 6) << 4)
    return minimum


@inline
def factor_offset() -> int:
    """Where the factor stands in a block."""
    if TYPE == Q2_K:
        offset = 80
    elif TYPE == Q3_K:
        offset = 108
    elif TYPE == Q6_K:
        offset = 208
    else:
        offset = 0
    return offset
