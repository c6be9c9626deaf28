"""Rotation: how fast each pair of dimensions turns with the position, and what longer contexts change in it.

Frequencies are in radians a position. Sources: RoFormer, arXiv 2104.09864; YaRN, arXiv 2309.00071; LongRoPE,
arXiv 2402.13753; the model card of Llama 3.1 for its scaling. GGUF gives the factors of Llama 3 and LongRoPE,
which divide the frequencies, as tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ostinato.errors import ModelFileError, UnsupportedModelError
from ostinato.models.keys import Keys

FACTOR_TENSORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
"""Tensors that are read here, when the program is built, and by no op."""

Frequencies = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Rotation:
    """Frequencies for the first pairs of a head, and what the rotated numbers are multiplied with."""

    frequencies: Frequencies
    magnitude: float = 1.0


def rope_frequencies(base: float, dimensions: int) -> Frequencies:
    """Return base^(-2i/D) for the D/2 pairs of `dimensions`."""
    return tuple(base ** (-i / dimensions) for i in range(0, dimensions, 2))


def read_rotation(keys: Keys, head_dim: int, context_length: int) -> Rotation:
    """Return the rotation that a model file asks for.

    Args:
        context_length: the longest context that will be in use, in tokens; LongRoPE has one set of factors up
        to the context it extends, and another beyond.

    Raises:
        UnsupportedModelError: a kind of scaling that is not built.
    """
    kind = keys.text("rope.scaling.type", "linear")
    if kind not in SCALINGS:
        known = ", ".join(sorted(SCALINGS))
        raise UnsupportedModelError(
            f"{keys.file.path}: rope scaling '{kind}' is not supported; these are: {known}"
        )
    frequencies = rope_frequencies(keys.number("rope.freq_base", 10000.0), rotated_dimensions(keys, head_dim))
    rotation = SCALINGS[kind](keys, frequencies)
    factors = _factors(keys, len(frequencies), context_length)
    return Rotation(
        tuple(f / factor for f, factor in zip(rotation.frequencies, factors, strict=True)),
        rotation.magnitude * keys.number("rope.scaling.attn_factor", 1.0),
    )


def rotated_dimensions(keys: Keys, head_dim: int) -> int:
    """Return how many of a head's dimensions, from the first, are rotated."""
    dimensions = keys.integer("rope.dimension_count", head_dim)
    if dimensions % 2 or dimensions > head_dim:
        raise keys.fault("rope.dimension_count", f"is {dimensions}; expected an even number to {head_dim}")
    return dimensions


def _unscaled(keys: Keys, frequencies: Frequencies) -> Rotation:
    return Rotation(frequencies)


def _linear(keys: Keys, frequencies: Frequencies) -> Rotation:
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0))
    return Rotation(tuple(f / factor for f in frequencies))


def _llama3(keys: Keys, frequencies: Frequencies) -> Rotation:
    """Slow down what turns `low` times or less in the original context, keep what turns `high` or more."""
    factor, original = keys.number("rope.scaling.factor"), _original_length(keys)
    low, high = keys.number("rope.scaling.low_freq_factor"), keys.number("rope.scaling.high_freq_factor")
    if low >= high:
        raise keys.fault("rope.scaling.low_freq_factor", f"is {low}; expected less than {high}")

    def scaled(frequency: float) -> float:
        turns = original * frequency / (2 * math.pi)
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        return frequency * (kept + (1 - kept) / factor)

    return Rotation(tuple(map(scaled, frequencies)))


def _yarn(keys: Keys, frequencies: Frequencies) -> Rotation:
    """Blend from kept to slowed-down between the pairs that turn `beta_fast` and `beta_slow` times."""
    factor, original = keys.number("rope.scaling.factor"), _original_length(keys)
    base, dimensions = keys.number("rope.freq_base", 10000.0), 2 * len(frequencies)

    def pair_turning(times: float) -> float:
        return dimensions * math.log(original / (times * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(pair_turning(keys.number("rope.scaling.yarn_beta_fast", 32.0))), 0)
    high = min(math.ceil(pair_turning(keys.number("rope.scaling.yarn_beta_slow", 1.0))), dimensions - 1)
    span = max(high - low, 0.001)
    slowed = [min(max((i - low) / span, 0.0), 1.0) for i in range(len(frequencies))]
    return Rotation(
        tuple(f * (s / factor + 1 - s) for f, s in zip(frequencies, slowed, strict=True)),
        yarn_magnitude(factor),
    )


def yarn_magnitude(factor: float) -> float:
    """Return what YaRN multiplies queries and keys with. Source: arXiv 2309.00071, section 3.4."""
    return 0.1 * math.log(factor) + 1 if factor > 1 else 1.0


SCALINGS = {"none": _unscaled, "linear": _linear, "llama3": _llama3, "yarn": _yarn, "longrope": _unscaled}
"""Kind of scaling -> what it makes of plain frequencies; the factors of `longrope` come from tensors."""


def _factors(keys: Keys, count: int, context_length: int) -> list[float]:
    """Return what the frequencies are to be divided by."""
    tensors, (freqs, short, long) = keys.file.tensors, FACTOR_TENSORS
    name = freqs
    if short in tensors or long in tensors:
        name = long if context_length > _original_length(keys) else short
    elif freqs not in tensors:
        return [1.0] * count
    tensor = tensors.get(name)
    if tensor is None or tensor.shape != (count,):
        found = "missing" if tensor is None else f"of shape {tensor.shape}"
        raise ModelFileError(f"{keys.file.path}: tensor '{name}' is {found}; expected {count} numbers")
    factors: list[float] = tensor.dequantize().tolist()
    if not all(math.isfinite(factor) and factor > 0 for factor in factors):
        raise ModelFileError(f"{keys.file.path}: tensor '{name}' holds factors that are not positive")
    return factors


def _original_length(keys: Keys) -> int:
    return keys.integer("rope.scaling.original_context_length", keys.integer("context_length"))
