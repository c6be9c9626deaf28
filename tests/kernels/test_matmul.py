"""Packing and products: every layout, tile and path, against sums in float64 over the file's own blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from harness import (
    FLOATING,
    FUSED_PATHS,
    HALF_ULP,
    PATHS,
    QUANTIZED,
    Array,
    Floats,
    Guarded,
    runner,
    same_bits,
)
from tiny import TYPES, random_bytes

from ostinato.ops.cpu.kernels.common import GROUP
from ostinato.ops.cpu.kernels.matmul import MATMUL, TILES
from ostinato.ops.cpu.kernels.pack import PACK
from ostinato.ops.cpu.packing import LAYOUTS
from ostinato.ops.cpu.simd import LANES
from ostinato.ops.reference import pairs_to_halves

ROWS = (1, 15, 16, 17, 50)
SPARE = TILES[-1]
"""Rows behind the last token that a tile may read, and write garbage to."""


@pytest.fixture(params=PATHS)
def simd(request: pytest.FixtureRequest) -> str:
    runner(request.param).load([*MATMUL.values(), *PACK.values()])
    return str(request.param)


class Matrix:
    """A random matrix: its numbers, the sizes of what they are sums of, and its packed bytes."""

    def __init__(
        self, simd: str, type_name: str, rows: int, columns: int, seed: int = 0, paired_heads: int = 0
    ) -> None:
        rng, guarded = np.random.default_rng([seed, rows, columns]), Guarded()
        self.layout, self.rows, self.columns = LAYOUTS[type_name], rows, columns
        self.raw = random_bytes(type_name, rows * columns, rng)
        self.numbers = TYPES[type_name].dequantize(self.raw, (rows, columns)).astype(np.float64)
        if paired_heads:
            self.numbers = pairs_to_halves(self.numbers, paired_heads)
        self.sizes = np.abs(self.numbers)
        if self.layout.minima:
            minima = self.raw.reshape(-1, 20)[:, 2:4].copy().view(np.float16).astype(np.float64)
            self.sizes += 2 * np.abs(minima).repeat(GROUP, axis=1).reshape(rows, columns)
        self.packed = guarded.copy(np.zeros(self.layout.packed_bytes(rows, columns), np.uint8))
        count = {"groups": columns // GROUP} if self.layout.quantized else {"columns": columns}
        runner(simd)(
            PACK[self.layout],
            self.panels,
            source=guarded.copy(self.raw, shift=1 if self.layout.quantized else 2),
            packed=self.packed,
            rows=rows,
            paired_dim=rows // paired_heads if paired_heads else 0,
            **count,
        )
        guarded.check()

    @property
    def panels(self) -> int:
        return -(-self.rows // LANES)


@dataclass(frozen=True)
class Activations:
    """Random activations of some tokens as a product reads them: float32, or quantised in groups of 32."""

    quantized: bool
    numbers: Array
    floats: Floats
    values: Array
    scales: Floats

    @staticmethod
    def random(tokens: int, columns: int, quantized: bool, seed: int = 0) -> Activations:
        rng = np.random.default_rng([seed, columns])
        floats = rng.standard_normal((tokens, columns)).astype(np.float32)
        groups = columns // GROUP
        values = rng.integers(-127, 128, (tokens, groups, GROUP)).astype(np.int8)
        scales = (rng.standard_normal((tokens, groups)) ** 2 / 64).astype(np.float32)
        numbers = floats.astype(np.float64)
        if quantized:
            numbers = (values * scales[..., None].astype(np.float64)).reshape(tokens, -1)
        return Activations(quantized, numbers, floats, values, scales)

    def fields(self) -> dict[str, int | Array]:
        """The operands, with rows of NaN for a tile to run into."""

        def with_spare(x: Array, garbage: float) -> Array:
            return np.concatenate([x, np.full((SPARE, *x.shape[1:]), garbage, x.dtype)])

        if not self.quantized:
            return {"x": with_spare(self.floats, np.nan), "x_stride": self.floats.shape[1]}
        sums = self.values.sum(axis=-1, dtype=np.int32)
        return {
            "values": with_spare(self.values, -128),
            "scales": with_spare(self.scales, np.nan),
            "scaled_sums": with_spare(self.scales * sums.astype(np.float32), np.nan),
            "integer_sums": with_spare(sums, 77),
        }


def multiply(
    simd: str, matrix: Matrix, x: Activations, tile: int, before: Floats | None = None, by_rows: bool = False
) -> Floats:
    """Return y (tokens, panels · 16), or `before` + y; check that nothing else was written."""
    tokens, guarded = len(x.numbers), Guarded()
    y = guarded.empty((tokens + 2 * SPARE, matrix.panels * LANES))
    if before is not None:
        y[:tokens] = before
    untouched = y[-(-tokens // tile) * tile :].copy()
    count = {"groups": matrix.columns // GROUP} if matrix.layout.quantized else {"columns": matrix.columns}
    runner(simd)(
        MATMUL[matrix.layout, tile],
        matrix.panels,
        batch={"num_rows": tokens, "num_tokens": 1} if by_rows else {"num_rows": 1, "num_tokens": tokens},
        by_rows=int(by_rows),
        weights=matrix.packed,
        y=y,
        y_stride=y.shape[1],
        accumulate=int(before is not None),
        **count,
        **x.fields(),
    )
    guarded.check()
    assert same_bits(y[-(-tokens // tile) * tile :], untouched)
    return y[:tokens].copy()


def bound(matrix: Matrix, x: Activations) -> Array:
    """The error allowed of each product: a rounding per term and addition, of the sum of all sizes."""
    terms = matrix.columns // GROUP * 2 if matrix.layout.quantized else matrix.columns
    return (terms + 4) * HALF_ULP * (np.abs(x.numbers) @ matrix.sizes.T) + 1e-44


def shapes(type_name: str) -> Iterator[tuple[int, int, int]]:
    """Rows, columns and tokens: all values of each, in changing company."""
    widths = [GROUP * g for g in range(1, 6)] if LAYOUTS[type_name].quantized else [1, 7, 33, 40, 96]
    for i, (rows, columns) in enumerate(product(ROWS, widths)):
        yield rows, columns, i % 9 + 1


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("type_name", LAYOUTS)
def test_products(simd: str, type_name: str, tile: int) -> None:
    for rows, columns, tokens in shapes(type_name):
        matrix = Matrix(simd, type_name, rows, columns)
        x = Activations.random(tokens, columns, matrix.layout.quantized)
        y = multiply(simd, matrix, x, tile)
        exact = x.numbers @ matrix.numbers.T
        where = f"{rows} rows, {columns} columns, {tokens} tokens"
        assert (np.abs(y[:, :rows] - exact) <= bound(matrix, x)).all(), where
        assert not y[:, rows:].any(), f"lanes without a row: {where}"
        before = np.random.default_rng(rows).standard_normal(y.shape).astype(np.float32)
        assert same_bits(multiply(simd, matrix, x, tile, before), before + y), where


@pytest.mark.parametrize("type_name", LAYOUTS)
def test_every_number_of_tokens(simd: str, type_name: str) -> None:
    """Alone or in company, first or last of a tile of any size, a token has the same bits."""
    matrix = Matrix(simd, type_name, 50, 96)
    x = Activations.random(9, 96, matrix.layout.quantized)
    whole = multiply(simd, matrix, x, TILES[-1])
    for tile, tokens in product(TILES, range(1, 10)):
        part = Activations.random(9, 96, matrix.layout.quantized)
        first = 9 - tokens
        part = Activations(
            part.quantized, *(a[first:] for a in (part.numbers, part.floats, part.values, part.scales))
        )
        assert same_bits(multiply(simd, matrix, part, tile), whole[first:]), (tile, tokens)
        assert same_bits(multiply(simd, matrix, part, tile, by_rows=True), whole[first:]), (tile, tokens)


@pytest.mark.parametrize("type_name", LAYOUTS)
def test_bits_are_the_same_on_all_paths_that_fuse(type_name: str) -> None:
    results = []
    for simd in FUSED_PATHS or PATHS[:1]:
        matrix = Matrix(simd, type_name, 50, 160)
        results.append(multiply(simd, matrix, Activations.random(9, 160, matrix.layout.quantized), TILES[-1]))
    assert all(same_bits(results[0], other) for other in results[1:])


@pytest.mark.parametrize("type_name", LAYOUTS)
def test_items_can_be_dealt_out(simd: str, type_name: str) -> None:
    """Each panel on its own gives what all at once do, and touches only its own columns."""
    matrix = Matrix(simd, type_name, 50, 64)
    x = Activations.random(3, 64, matrix.layout.quantized)
    whole = multiply(simd, matrix, x, 4)
    y = np.zeros((4 + SPARE, matrix.panels * LANES), np.float32)
    count = {"groups": 2} if matrix.layout.quantized else {"columns": 64}
    common = {"by_rows": 0, "weights": matrix.packed, "y": y, "y_stride": y.shape[1], "accumulate": 0}
    for panel in (2, 0, 3, 1):
        untouched = np.delete(y, np.s_[panel * LANES : (panel + 1) * LANES], axis=1)
        runner(simd).part(
            MATMUL[matrix.layout, 4],
            panel,
            panel + 1,
            batch={"num_tokens": 3},
            **common,
            **count,
            **x.fields(),
        )
        assert same_bits(np.delete(y, np.s_[panel * LANES : (panel + 1) * LANES], axis=1), untouched)
    assert same_bits(y[:3], whole)


@pytest.mark.parametrize("type_name", LAYOUTS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_token_that_is_no_number_spoils_only_itself(simd: str, type_name: str, bad: float) -> None:
    matrix = Matrix(simd, type_name, 50, 64)
    x = Activations.random(8, 64, matrix.layout.quantized)
    clean = multiply(simd, matrix, x, 8)
    x.floats[3, 5] = x.scales[3, 1] = bad
    y = multiply(simd, matrix, x, 8)
    assert not np.isfinite(y[3, : matrix.rows]).any()
    assert same_bits(np.delete(y, 3, axis=0), np.delete(clean, 3, axis=0))


@pytest.mark.parametrize("type_name", QUANTIZED)
def test_extreme_values_are_exact(simd: str, type_name: str) -> None:
    """All weights and activations at the ends of their ranges: no sum of bytes may saturate."""
    kind, layout = TYPES[type_name], LAYOUTS[type_name]
    for weight, activation in product((0x00, 0x7F, 0x80, 0xFF), (-127, 127)):
        raw = np.full((16, kind.block_bytes), weight, np.uint8)
        raw[:, :2] = np.array([1.0], np.float16).view(np.uint8)
        if layout.minima:
            raw[:, 2:4] = 0
        matrix = Matrix(simd, type_name, 16, GROUP)
        runner(simd)(
            PACK[layout],
            1,
            source=raw,
            packed=matrix.packed,
            rows=16,
            groups=1,
            paired_dim=0,
        )
        numbers = kind.dequantize(raw.reshape(-1), (16, GROUP)).astype(np.float64)
        values = np.full((8, 1, GROUP), activation, np.int8)
        x = Activations(
            True, values.reshape(8, GROUP), np.zeros((8, 1), np.float32), values, np.ones((8, 1), "f4")
        )
        for tile in TILES:
            y = multiply(simd, matrix, x, tile)
            np.testing.assert_array_equal(y, x.numbers @ numbers.T)


# -- packing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_name", LAYOUTS)
def test_rotary_pairs_become_halves(simd: str, type_name: str) -> None:
    for heads, head_dim in ((3, 16), (2, 80), (1, 2), (5, 6)):
        matrix = Matrix(simd, type_name, heads * head_dim, 64, paired_heads=heads)
        x = Activations.random(2, 64, matrix.layout.quantized)
        error = np.abs(multiply(simd, matrix, x, 4)[:, : matrix.rows] - x.numbers @ matrix.numbers.T)
        assert (error <= bound(matrix, x)).all()


@pytest.mark.parametrize("type_name", QUANTIZED)
def test_packed_groups_hold_the_bits_of_the_file(simd: str, type_name: str) -> None:
    matrix, groups = Matrix(simd, type_name, 17, 96), 3
    layout, size = matrix.layout, TYPES[type_name].block_bytes
    heads = 2 + 2 * layout.minima
    blocks = matrix.raw.reshape(17, groups, size)
    packed = matrix.packed.reshape(2, groups, layout.group_bytes)
    registers = packed[..., : 64 * layout.bits].reshape(2, groups, layout.bits, LANES, 4)
    by_row = registers.transpose(0, 3, 1, 2, 4).reshape(2 * LANES, groups, 4 * layout.bits)
    flip = 0x80 if layout.bits == 8 else 0
    assert same_bits(by_row[:17] ^ np.uint8(flip), np.ascontiguousarray(blocks[..., heads:]))
    factors = packed[..., 64 * layout.bits :].reshape(2, groups, -1, LANES, 2)
    by_row = factors.transpose(0, 3, 1, 2, 4).reshape(2 * LANES, groups, heads)
    assert same_bits(np.ascontiguousarray(by_row[:17]), np.ascontiguousarray(blocks[..., :heads]))
    assert not by_row[17:].any()


@pytest.mark.parametrize("type_name", FLOATING)
def test_packed_floats_hold_the_bits_of_the_file(simd: str, type_name: str) -> None:
    matrix, width = Matrix(simd, type_name, 17, 33), TYPES[type_name].block_bytes
    by_row = matrix.packed.reshape(2, 33, LANES, width).transpose(0, 2, 1, 3).reshape(2 * LANES, 33 * width)
    assert by_row[:17].tobytes() == matrix.raw.tobytes()
    assert not by_row[17:].any()
