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
    products,
    runner,
    same_bits,
    tiles_of,
)
from tiny import FACTORS, TYPES, random_bytes

from ostinato.ops.cpu.kernels.common import GROUP
from ostinato.ops.cpu.kernels.matmul import MATMUL, TILES
from ostinato.ops.cpu.kernels.pack import PACK
from ostinato.ops.cpu.kernels.prepared import PREPARED_BYTES
from ostinato.ops.cpu.packing import LAYOUTS
from ostinato.ops.cpu.simd import LANES
from ostinato.ops.reference import pairs_to_halves

ROWS = (1, 15, 16, 17, 50)
VALUES = {"Q4_1": (4, 20), "Q5_1": (4, 24), "Q2_K": (16, 80), "Q4_K": (16, 144), "Q5_K": (16, 176)}
"""Where the values lie in a block of the types that have minima."""

SPARE = TILES[-1]
"""Rows behind the last token that a tile may read, and write garbage to."""


@pytest.fixture(params=PATHS)
def simd(request: pytest.FixtureRequest) -> str:
    runner(request.param).load([*products(request.param), *PACK.values()])
    return str(request.param)


class Matrix:
    """A random matrix: its numbers, the sizes of what they are sums of, and its packed bytes."""

    def __init__(
        self, simd: str, type_name: str, rows: int, columns: int, seed: int = 0, paired_heads: int = 0,
        raw: Array | None = None,
    ) -> None:  # fmt: skip
        rng, guarded = np.random.default_rng([seed, rows, columns]), Guarded()
        self.layout, self.rows, self.columns = LAYOUTS[type_name], rows, columns
        self.raw = random_bytes(type_name, rows * columns, rng) if raw is None else raw
        self.numbers = TYPES[type_name].dequantize(self.raw, (rows, columns)).astype(np.float64)
        self.sizes = np.abs(self.numbers)
        if type_name in VALUES:
            minima = self._minima(type_name)
            self.sizes = np.abs(self.numbers - minima) + np.abs(minima)
        if paired_heads:
            self.numbers = pairs_to_halves(self.numbers, paired_heads)
            self.sizes = pairs_to_halves(self.sizes, paired_heads)
        self.packed = guarded.copy(np.zeros(self.layout.packed_bytes(rows, columns), np.uint8))
        count = {"groups": columns // GROUP} if self.layout.quantized else {"columns": columns}
        runner(simd)(
            PACK[type_name],
            self.panels,
            source=guarded.copy(self.raw, shift=1 if self.layout.quantized else 2),
            packed=self.packed,
            rows=rows,
            paired_dim=rows // paired_heads if paired_heads else 0,
            **count,
        )
        guarded.check()

    def _minima(self, type_name: str) -> Array:
        """The numbers that values of 0 would stand for."""
        kind, (begin, end) = TYPES[type_name], VALUES[type_name]
        blocks = self.raw.reshape(-1, kind.block_bytes).copy()
        blocks[:, begin:end] = 0
        return kind.dequantize(blocks.reshape(-1), (self.rows, self.columns)).astype(np.float64)

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
        halves = self.values.reshape(*self.values.shape[:2], 2, 16).sum(axis=-1, dtype=np.int32)
        sums = halves.sum(axis=-1, dtype=np.int32)
        return {
            "values": with_spare(self.values, -128),
            "scales": with_spare(self.scales, np.nan),
            "scaled_sums": with_spare(self.scales * sums.astype(np.float32), np.nan),
            "integer_sums": with_spare(halves, 77),
        }


def multiply(
    simd: str, matrix: Matrix, x: Activations, tile: int, before: Floats | None = None, by_rows: bool = False,
    bias: Floats | None = None, scale: float = 1.0,
) -> Floats:  # fmt: skip
    """Return scale · (y + bias) (tokens, panels · 16), or `before` + …; check that nothing else is hit."""
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
        bias=0 if bias is None else bias,
        scale=scale,
        **scratch(matrix),
        **count,
        **x.fields(),
    )
    guarded.check()
    assert same_bits(y[-(-tokens // tile) * tile :], untouched)
    return y[:tokens].copy()


def scratch(matrix: Matrix) -> dict[str, int | Array]:
    """Return the scratch memory of one worker."""
    size = matrix.columns // GROUP * PREPARED_BYTES
    return {"scratch": np.zeros(size, np.uint8), "scratch_bytes": size} if matrix.layout.quantized else {}


def bound(matrix: Matrix, x: Activations) -> Array:
    """The error allowed of each product: a rounding per term and addition, of the sum of all sizes."""
    terms = matrix.columns // GROUP * 2 if matrix.layout.quantized else matrix.columns
    return (terms + 4) * HALF_ULP * (np.abs(x.numbers) @ matrix.sizes.T) + 1e-44


def largest(simd: str, type_name: str) -> int:
    """The largest tile that is tested of a type."""
    return tiles_of(simd, type_name)[-1]


def wide(type_name: str) -> int:
    """The fewest columns of a quantised type, and 32 of others."""
    return LAYOUTS[type_name].columns


def shapes(type_name: str) -> Iterator[tuple[int, int, int]]:
    """Rows, columns and tokens: all values of each, in changing company."""
    layout = LAYOUTS[type_name]
    widths = [layout.columns * g for g in range(1, 6)] if layout.quantized else [1, 7, 33, 40, 96]
    widths = widths[: 3 if layout.groups > 1 else 5]
    for i, (rows, columns) in enumerate(product(ROWS, widths)):
        yield rows, columns, i % 9 + 1


@pytest.mark.parametrize("type_name", LAYOUTS)
def test_products(simd: str, type_name: str) -> None:
    for tile, (rows, columns, tokens) in product(tiles_of(simd, type_name), shapes(type_name)):
        matrix = Matrix(simd, type_name, rows, columns)
        x = Activations.random(tokens, columns, matrix.layout.quantized)
        y = multiply(simd, matrix, x, tile)
        exact = x.numbers @ matrix.numbers.T
        where = f"{rows} rows, {columns} columns, {tokens} tokens in tiles of {tile}"
        assert (np.abs(y[:, :rows] - exact) <= bound(matrix, x)).all(), where
        assert not y[:, rows:].any(), f"lanes without a row: {where}"
        before = np.random.default_rng(rows).standard_normal(y.shape).astype(np.float32)
        assert same_bits(multiply(simd, matrix, x, tile, before), before + y), where


@pytest.mark.parametrize("type_name", LAYOUTS)
def test_every_number_of_tokens(simd: str, type_name: str) -> None:
    """Alone or in company, first or last of a tile of any size, a token has the same bits."""
    columns = 3 * wide(type_name)
    matrix = Matrix(simd, type_name, 50, columns)
    x = Activations.random(9, columns, matrix.layout.quantized)
    whole = multiply(simd, matrix, x, largest(simd, type_name))
    for tile, tokens in product(tiles_of(simd, type_name), range(1, 10)):
        part = Activations.random(9, columns, matrix.layout.quantized)
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
        matrix = Matrix(simd, type_name, 50, 5 * wide(type_name))
        x = Activations.random(9, matrix.columns, matrix.layout.quantized)
        results.append(multiply(simd, matrix, x, TILES[-1]))
    assert all(same_bits(results[0], other) for other in results[1:])


@pytest.mark.parametrize("type_name", LAYOUTS)
def test_items_can_be_dealt_out(simd: str, type_name: str) -> None:
    """Each panel on its own gives what all at once do, and touches only its own columns."""
    columns = 2 * wide(type_name)
    matrix = Matrix(simd, type_name, 50, columns)
    x = Activations.random(3, columns, matrix.layout.quantized)
    tile = largest(simd, type_name)
    whole = multiply(simd, matrix, x, tile)
    y = np.zeros((tile + SPARE, matrix.panels * LANES), np.float32)
    count = {"groups": columns // GROUP} if matrix.layout.quantized else {"columns": columns}
    common = {"by_rows": 0, "weights": matrix.packed, "y": y, "y_stride": y.shape[1], "accumulate": 0}
    common |= {"bias": 0, "scale": 1.0} | scratch(matrix)
    for panel in (2, 0, 3, 1):
        untouched = np.delete(y, np.s_[panel * LANES : (panel + 1) * LANES], axis=1)
        runner(simd).part(
            MATMUL[matrix.layout, tile],
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
    columns = 2 * wide(type_name)
    matrix = Matrix(simd, type_name, 50, columns)
    x = Activations.random(8, columns, matrix.layout.quantized)
    clean = multiply(simd, matrix, x, largest(simd, type_name))
    x.floats[3, 5] = x.scales[3, 1] = bad
    y = multiply(simd, matrix, x, largest(simd, type_name))
    assert not np.isfinite(y[3, : matrix.rows]).any()
    assert same_bits(np.delete(y, 3, axis=0), np.delete(clean, 3, axis=0))


@pytest.mark.parametrize("type_name", LAYOUTS)
def test_bias_and_scale(simd: str, type_name: str) -> None:
    matrix = Matrix(simd, type_name, 50, wide(type_name))
    x = Activations.random(3, matrix.columns, matrix.layout.quantized)
    tile = largest(simd, type_name)
    plain = multiply(simd, matrix, x, tile)
    bias = np.random.default_rng(1).standard_normal(plain.shape[1]).astype(np.float32)
    want = (plain + bias) * np.float32(0.3)
    assert same_bits(multiply(simd, matrix, x, tile, bias=bias, scale=0.3), want)
    assert same_bits(multiply(simd, matrix, x, tile, before=plain, bias=bias, scale=0.3), plain + want)


@pytest.mark.parametrize("type_name", QUANTIZED)
def test_no_sum_of_bytes_overflows(simd: str, type_name: str) -> None:
    """All weights and activations at the ends of their ranges."""
    kind, columns = TYPES[type_name], wide(type_name)
    for weight, activation in product((0x00, 0x7F, 0x80, 0xFF), (-127, 127)):
        raw = np.full((16, kind.block_bytes), weight, np.uint8)
        if type_name in FACTORS:
            begin, count = FACTORS[type_name].begin, FACTORS[type_name].count
            raw[:, begin : begin + 2 * count] = np.array([1, 0][:count], np.float16).view(np.uint8)
        else:
            raw[:, 0] = 128
        matrix = Matrix(simd, type_name, 16, columns, raw=raw.reshape(-1))
        values = np.full((8, columns // GROUP, GROUP), activation, np.int8)
        ones = np.ones(values.shape[:2], np.float32)
        x = Activations(True, values.reshape(8, columns).astype(np.float64), ones, values, ones)
        for tile in tiles_of(simd, type_name):
            error = np.abs(multiply(simd, matrix, x, tile) - x.numbers @ matrix.numbers.T)
            assert (error <= bound(matrix, x)).all(), (weight, activation, tile)


# -- packing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_name", LAYOUTS)
def test_rotary_pairs_become_halves(simd: str, type_name: str) -> None:
    for heads, head_dim in ((3, 16), (2, 80), (1, 2), (5, 6)):
        columns = 2 * wide(type_name)
        matrix = Matrix(simd, type_name, heads * head_dim, columns, paired_heads=heads)
        x = Activations.random(2, columns, matrix.layout.quantized)
        y = multiply(simd, matrix, x, largest(simd, type_name))
        error = np.abs(y[:, : matrix.rows] - x.numbers @ matrix.numbers.T)
        assert (error <= bound(matrix, x)).all()


@pytest.mark.parametrize("type_name", LAYOUTS)
def test_packed_weights_take_hardly_more_than_the_file_s(type_name: str) -> None:
    """6-bit sub-scales become bytes; nothing else grows."""
    kind, layout = TYPES[type_name], LAYOUTS[type_name]
    packed = layout.packed_bytes(16, 256) * 8 / (16 * 256)
    assert packed <= kind.block_bytes * 8 / kind.block_size + 0.125
    assert packed <= {"Q4_K": 4.65, "Q6_K": 6.6}.get(type_name, 32)


@pytest.mark.parametrize("type_name", FLOATING)
def test_packed_floats_hold_the_bits_of_the_file(simd: str, type_name: str) -> None:
    matrix, width = Matrix(simd, type_name, 17, 33), TYPES[type_name].block_bytes
    by_row = matrix.packed.reshape(2, 33, LANES, width).transpose(0, 2, 1, 3).reshape(2 * LANES, 33 * width)
    assert by_row[:17].tobytes() == matrix.raw.tobytes()
    assert not by_row[17:].any()
