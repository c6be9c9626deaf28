"""Random numbers that depend only on (seed, index): Philox2x64-10, a counter-based generator.

Knows integers. Must not know tokens or requests. Having no state, it needs none restored: a request that was
preempted, moved or resumed draws for its i-th token what it would have drawn, and no other request shifts it.
Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11; a test holds the
answers that its authors published. Next on the path: `filters.draw`, which spends the number.
"""

from __future__ import annotations

_MASK = 2**64 - 1
_MULTIPLIER = 0xD2B74407B1CE6E93
_KEY_STEP = 0x9E3779B97F4A7C15
_ROUNDS = 10


def philox2x64(counter: tuple[int, int], key: int) -> tuple[int, int]:
    """Return two 64-bit words for a counter of two 64-bit words and a 64-bit key."""
    left, right = counter
    for _ in range(_ROUNDS):
        product = left * _MULTIPLIER
        left, right = (product >> 64) ^ key ^ right, product & _MASK
        key = (key + _KEY_STEP) & _MASK
    return left, right


def uniform(seed: int, index: int) -> float:
    """Return a multiple of 2**-53 in [0, 1): draw number `index` under `seed`, both from 0 to 2**64 - 1."""
    word, _ = philox2x64((index, 0), seed)
    return (word >> 11) * 2.0**-53
