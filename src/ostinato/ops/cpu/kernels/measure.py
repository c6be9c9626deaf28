"""What this processor can do at most: reading memory, and multiplying bytes. For `doctor`."""

from __future__ import annotations

from ostinato.ops.cpu.kernel import kernel
from ostinato.ops.cpu.simd import dot4, load_i32, multiply_pairs, registers, splat_i32, static, store_i32

PIECE = 1 << 16
"""Bytes of one item of `read_memory`."""

PAIRS = 0
"""Put in before compilation: whether the target multiplies in pairs of bytes."""

ROUNDS = 1000
"""Rounds of 16 dot products in one item of `multiply_bytes`."""


@kernel
def read_memory(first: int, last: int, worker: int, source: int, sink: int) -> None:
    """Read pieces of memory in two streams, which is as fast as one core can. An item is PIECE bytes."""
    acc = registers(8, splat_i32(0))
    half = (last - first) * PIECE // 2
    for address in range(source + first * PIECE, source + first * PIECE + half, 4 * 64):
        for j in static(4):
            acc[j] = acc[j] ^ load_i32(address + 64 * j)
            acc[j + 4] = acc[j + 4] ^ load_i32(address + half + 64 * j)
    for j in static(8):
        store_i32(sink + (worker * 8 + j) * 64, acc[j])


@kernel
def multiply_bytes(first: int, last: int, worker: int, sink: int) -> None:
    """Multiply and add bytes in registers, 16 independent sums. An item is ROUNDS rounds."""
    acc = registers(16, splat_i32(0))
    x, y = splat_i32(first), splat_i32(last)
    for _ in range((last - first) * ROUNDS):
        for j in static(16):
            if PAIRS:
                acc[j % 4] = multiply_pairs(acc[j % 4], y)
            else:
                acc[j] = dot4(acc[j], x, y)
    for j in static(16):
        store_i32(sink + (worker * 16 + j) * 64, acc[j])


MEASURE_KERNELS = (read_memory, multiply_bytes)
