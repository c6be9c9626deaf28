"""Rotary frequencies: how fast each pair of dimensions turns with the position, in radians a position."""

from __future__ import annotations


def rope_frequencies(base: float, dimensions: int) -> tuple[float, ...]:
    """Return base^(-2i/D) for the D/2 pairs of `dimensions`. Source: RoFormer, arXiv 2104.09864."""
    return tuple(base ** (-i / dimensions) for i in range(0, dimensions, 2))
