"""Mixture of experts: which experts a token goes to, the tokens of each expert, and the sum of what they say.

A pair is a token and one of its chosen experts; pair `token · chosen + rank` is the expert of that rank. The
products in between are matmul.py's, over the pairs of each expert.
"""

from __future__ import annotations

from ostinato.ops.cpu.kernel import kernel
from ostinato.ops.cpu.kernels.common import LOG2_E, exp2
from ostinato.ops.cpu.simd import (
    LANES,
    f32,
    fma,
    get_f32,
    get_i32,
    load_f32,
    load_splat,
    max_lanes,
    maximum,
    set_f32,
    set_i32,
    splat,
    store_f32,
    sum_lanes,
)

MINUS_INFINITY = float("-inf")


@kernel
def choose_experts(
    first: int, last: int, scores: int, stride: int, experts: int, chosen: int, normalized: int,
    experts_of: int, shares: int,
) -> None:  # fmt: skip
    """The experts of a token with the highest scores, ties to the lowest number, and their shares.

    An item is a token. Rows of scores are changed: they become powers, and 0 where an expert is chosen. A NaN
    among the scores makes the shares NaN.
    """
    for t in range(first, last):
        row = scores + 4 * t * stride
        largest = splat(f32(MINUS_INFINITY))
        for e in range(experts, stride):
            set_f32(row + 4 * e, f32(MINUS_INFINITY))
        for i in range(0, 4 * stride, 4 * LANES):
            largest = maximum(load_f32(row + i), largest)
        top = splat(max_lanes(largest))
        powers = splat(f32(0.0))
        for i in range(0, 4 * stride, 4 * LANES):
            power = exp2((load_f32(row + i) - top) * splat(f32(LOG2_E)))
            store_f32(row + i, power)
            powers = powers + power
        total = f32(0.0)
        for rank in range(chosen):
            best = 0
            for e in range(1, experts):
                if get_f32(row + 4 * e) > get_f32(row + 4 * best):
                    best = e
            pair = 4 * (t * chosen + rank)
            set_i32(experts_of + pair, best)
            set_f32(shares + pair, get_f32(row + 4 * best))
            total = total + get_f32(row + 4 * best)
            set_f32(row + 4 * best, f32(-1.0))
        whole = sum_lanes(powers)
        if normalized != 0 and whole == whole:
            whole = total
        for rank in range(chosen):
            pair = 4 * (t * chosen + rank)
            set_f32(shares + pair, get_f32(shares + pair) / whole)


@kernel
def group_pairs(
    first: int, last: int, num_tokens: int, experts: int, chosen: int, experts_of: int, starts: int,
    pairs: int,
) -> None:  # fmt: skip
    """List the pairs expert by expert: those of e begin at pairs[starts[e]]."""
    for _ in range(first, last):
        count = num_tokens * chosen
        for e in range(experts + 2):
            set_i32(starts + 4 * e, 0)
        for p in range(count):
            place = starts + 4 * (get_i32(experts_of + 4 * p) + 2)
            set_i32(place, get_i32(place) + 1)
        for e in range(2, experts + 2):
            set_i32(starts + 4 * e, get_i32(starts + 4 * e) + get_i32(starts + 4 * e - 4))
        for p in range(count):
            place = starts + 4 * (get_i32(experts_of + 4 * p) + 1)
            set_i32(pairs + 4 * get_i32(place), p)
            set_i32(place, get_i32(place) + 1)


@kernel
def add_experts(first: int, last: int, y: int, stride: int, pair_rows: int, chosen: int, shares: int) -> None:
    """y += the rows of a token's pairs times their shares, rank by rank. An item is a token."""
    for t in range(first, last):
        for i in range(0, 4 * stride, 4 * LANES):
            total = splat(f32(0.0))
            for rank in range(chosen):
                pair = t * chosen + rank
                total = fma(load_splat(shares + 4 * pair), load_f32(pair_rows + 4 * pair * stride + i), total)
            store_f32(y + 4 * t * stride + i, load_f32(y + 4 * t * stride + i) + total)
