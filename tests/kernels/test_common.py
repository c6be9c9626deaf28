"""What several kernels share: exp2, tanh, and the quantisation of 32 activations. On every path."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from harness import (
    FUSED_PATHS,
    HALF_ULP,
    PATHS,
    Array,
    Floats,
    Guarded,
    Runner,
    own_kernel,
    runner,
    same_bits,
)

from ostinato.ops.cpu.kernel import Kernel
from ostinato.ops.cpu.kernels.common import EXP2_LOWEST, GROUP, NOTHING_BELOW, exp2, tanh
from ostinato.ops.cpu.kernels.rows import quantize
from ostinato.ops.cpu.simd import LANES, load_f32, store_f32

EXP2_ULPS = 1.5
"""Units in the last place of the exact value."""

EXP2_HIGHEST = 127.0

TANH_BOUND = 2e-7
"""Of the hyperbolic tangent, absolute: near 0 it is the difference of two numbers near 1."""

ROUNDING_STEPS = 0.5 + 127 * 4 * HALF_ULP
"""Steps of a group's scale between a number and its quantised value: half of one, and what the inverse scale
and the product lose on a number of 127 steps."""


def powers(first: int, last: int, x: int, y: int) -> None:
    for n in range(first, last):
        store_f32(y + 64 * n, exp2(load_f32(x + 64 * n)))


def tangents(first: int, last: int, x: int, y: int) -> None:
    for n in range(first, last):
        store_f32(y + 64 * n, tanh(load_f32(x + 64 * n)))


POWERS, TANGENTS = own_kernel(powers), own_kernel(tangents)


@cache
def own(simd: str) -> Runner:
    return Runner(simd, [POWERS, TANGENTS])


@pytest.fixture(params=PATHS)
def simd(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def exp2_of(simd: str, x: Array) -> Floats:
    return applied(simd, POWERS, x)


def tanh_of(simd: str, x: Array) -> Floats:
    return applied(simd, TANGENTS, x)


def applied(simd: str, kernel: Kernel, x: Array) -> Floats:
    padded = np.resize(np.asarray(x, np.float32), -(-len(x) // LANES) * LANES)
    y = np.empty_like(padded)
    own(simd)(kernel, len(padded) // LANES, x=padded, y=y)
    return y[: len(x)]


def dense() -> Floats:
    """Numbers from -126 to 127, evenly and towards zero, and those beside where the exponent changes."""
    even = np.linspace(EXP2_LOWEST, EXP2_HIGHEST, 1_000_001)
    near_zero = np.geomspace(1e-40, 1, 20_001)
    beside = np.arange(-125.5, 127)[:, None] + np.linspace(-1e-5, 1e-5, 41)
    x = np.concatenate([even, near_zero, -near_zero, beside.reshape(-1)]).astype(np.float32)
    return x[(x >= EXP2_LOWEST) & (x <= EXP2_HIGHEST)]


def test_exp2_is_within_its_bound(simd: str) -> None:
    x = dense()
    exact = np.exp2(x.astype(np.float64))
    ulps = np.abs(exp2_of(simd, x) - exact) / np.spacing(exact.astype(np.float32))
    assert ulps.max() <= EXP2_ULPS, x[ulps.argmax()]


def test_exp2_at_particular_points(simd: str) -> None:
    whole = np.arange(EXP2_LOWEST, EXP2_HIGHEST + 1)
    assert same_bits(exp2_of(simd, whole), np.exp2(whole).astype(np.float32))
    assert same_bits(exp2_of(simd, np.array([0.0, -0.0, 1e-45, -1e-45])), np.ones(4, np.float32))
    below = np.nextafter(np.float32(EXP2_LOWEST), np.float32(-np.inf))
    zeros = np.array([below, -126.6, -127, -150, -1e30, -3.4e38, -np.inf], np.float32)
    assert same_bits(exp2_of(simd, zeros), np.zeros(len(zeros), np.float32))
    assert np.isnan(exp2_of(simd, np.array([np.nan, -np.nan]))).all()


def test_exp2_never_falls_by_more_than_its_error(simd: str) -> None:
    y = exp2_of(simd, np.sort(dense()))
    assert (y[1:] >= y[:-1] * np.float32(1 - 4 * EXP2_ULPS * HALF_ULP)).all()


def test_exp2_has_the_same_bits_on_all_paths_that_fuse() -> None:
    first, *others = (exp2_of(simd, dense()) for simd in FUSED_PATHS or PATHS[:1])
    assert all(same_bits(first, other) for other in others)


def tanh_points() -> Floats:
    """Numbers above 0, evenly and in all sizes, those at which the exponential ends among them."""
    even, sizes = np.linspace(0, 50, 500_001)[1:], np.geomspace(1e-45, 3.4e38, 100_001)
    return np.concatenate([even, sizes]).astype(np.float32)


def test_tanh_is_within_its_bound_and_odd(simd: str) -> None:
    x = tanh_points()
    y = tanh_of(simd, x)
    error = np.abs(y - np.tanh(x.astype(np.float64)))
    assert error.max() <= TANH_BOUND, x[error.argmax()]
    assert same_bits(np.abs(tanh_of(simd, -x)), y)
    assert (tanh_of(simd, -x) <= 0).all() and (y <= 1).all()


def test_tanh_at_particular_points(simd: str) -> None:
    ends = np.array([0.0, -0.0, np.inf, -np.inf, 3.4e38, -3.4e38, 20.0, -20.0])
    assert tanh_of(simd, ends).tolist() == [0, 0, 1, -1, 1, -1, 1, -1]
    assert np.isnan(tanh_of(simd, np.array([np.nan, -np.nan]))).all()


def test_tanh_has_the_same_bits_on_all_paths_that_fuse() -> None:
    first, *others = (tanh_of(simd, tanh_points()) for simd in FUSED_PATHS or PATHS[:1])
    assert all(same_bits(first, other) for other in others)


# -- groups of 32 --------------------------------------------------------------------------------------------


class Quantised:
    """What the kernel makes of rows of groups (n, groups · 32), beside which nothing may be written."""

    def __init__(self, simd: str, rows: Floats) -> None:
        guarded, (count, width) = Guarded(), rows.shape
        groups = width // GROUP
        self.values = guarded.empty((count, groups, GROUP), np.int8)
        self.scales, self.scaled_sums = (guarded.empty((count, groups)) for _ in range(2))
        self.sums = guarded.empty((count, groups, 2), np.int32)
        runner(simd)(
            quantize,
            count * groups,
            x=guarded.copy(rows),
            stride=width,
            groups=groups,
            values=self.values,
            scales=self.scales,
            scaled_sums=self.scaled_sums,
            integer_sums=self.sums,
        )
        guarded.check()


def ordinary_rows() -> Floats:
    """Groups of all sizes, spiky ones, ones of a single number, and numbers halfway between two steps."""
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((600, 3 * GROUP)) * 10.0 ** rng.integers(-25, 30, (600, 1))
    rows[::5] *= rng.random((120, 3 * GROUP)) ** 8
    rows[1::5] = rng.integers(-254, 255, (120, 3 * GROUP)) / 2
    rows[1::5, ::GROUP] = 127
    rows[2::50], rows[3::50] = 1.0, -7e-3
    return rows.astype(np.float32)


def test_quantised_groups(simd: str) -> None:
    rows = ordinary_rows()
    got = Quantised(simd, rows)
    groups = rows.reshape(got.values.shape)
    error = np.abs(groups.astype(np.float64) - got.values * got.scales[..., None].astype(np.float64))
    assert (error <= ROUNDING_STEPS * got.scales[..., None]).all()
    assert same_bits(got.scales, np.abs(groups).max(axis=-1) / np.float32(127))
    assert (np.abs(got.values.astype(int)).max(axis=-1) == 127).all()
    halves = got.values.reshape(*got.sums.shape, GROUP // 2)
    np.testing.assert_array_equal(got.sums, halves.sum(axis=-1, dtype=np.int32))
    assert same_bits(got.scaled_sums, got.scales * got.sums.sum(axis=-1).astype(np.float32))


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_a_number_that_is_none_shows_in_the_scale(simd: str, bad: float) -> None:
    """Wherever in the group it is, and nowhere else."""
    rows = np.random.default_rng(2).standard_normal((GROUP, 2 * GROUP)).astype(np.float32)
    clean = Quantised(simd, rows)
    rows[np.arange(GROUP), np.arange(GROUP)] = bad
    got = Quantised(simd, rows)
    assert not np.isfinite(got.scales[:, 0]).any()
    assert not np.isfinite(got.scaled_sums[:, 0]).any()
    assert same_bits(got.values[:, 1], clean.values[:, 1])
    assert same_bits(got.scales[:, 1], clean.scales[:, 1])


@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-38, NOTHING_BELOW])
def test_nothing_and_next_to_nothing_are_zeros(simd: str, size: float) -> None:
    rows = (np.random.default_rng(3).choice([-1, 1], (4, GROUP)) * size).astype(np.float32)
    got = Quantised(simd, rows)
    assert not got.values.any() and not got.sums.any() and not got.scaled_sums.any()
    assert (got.scales <= np.float32(NOTHING_BELOW)).all()


def test_the_largest_numbers_stay_finite(simd: str) -> None:
    got = Quantised(simd, np.array([[3.4e38, -3.4e38] * 16], np.float32))
    assert got.values.reshape(-1).tolist() == [127, -127] * 16
    assert np.isfinite(got.scales).all() and not got.scaled_sums.any()


def test_bits_are_the_same_on_all_paths() -> None:
    first, *others = (Quantised(simd, ordinary_rows()) for simd in PATHS)
    for other in others:
        assert same_bits(first.values, other.values) and same_bits(first.scales, other.scales)
        assert same_bits(first.scaled_sums, other.scaled_sums) and same_bits(first.sums, other.sums)
