"""The kernels that work row by row, on every path, against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from harness import FUSED_PATHS, PATHS, Array, Floats, Guarded, Runner, runner, same_bits
from tiny import TYPES, random_bytes

from ostinato.ops import reference
from ostinato.ops.cpu.kernels import rows
from ostinato.ops.cpu.kernels.common import GROUP
from ostinato.ops.cpu.kernels.pack import PACK
from ostinato.ops.cpu.packing import LAYOUTS
from ostinato.ops.cpu.simd import LANES

NORM_BOUND = 2.0**-20
"""Of a norm, relative: its mean square is a sum of up to a thousand squares, then four roundings."""

SILU_BOUND = 2.0**-24
"""Of silu(gate) · up, relative, times 8 + |gate|: the exponent is rounded, and a few ordinary numbers."""

SILU_SMALL = 1e-37
"""Of silu(gate) · up, relative to gate · up: the exponent ends before that of the smallest numbers does."""

WIDTHS = (16, 32, 33, 64, 576, 1000)
EPS = 1e-5

GELU_BOUND = 2.0**-24
"""Of gelu(gate) · up, relative, times 8 + 8 |u|: u and the exponent 2u are rounded a few times each."""

TANH_BOUND = 2e-7
"""Of a soft-cap, relative to the cap; that of tanh."""

NORMS = [rows.rms_norm, rows.rms_norm_quantize]
UNITS = [*rows.GATED.values(), *rows.GATED_QUANTIZE.values(), rows.softcap]


@pytest.fixture(params=PATHS)
def run(request: pytest.FixtureRequest) -> Runner:
    made = runner(request.param)
    made.load([*rows.EMBED.values(), *PACK.values(), *NORMS, *UNITS, rows.take_rows, rows.quantize])
    return made


def padded(x: Floats, stride: int) -> Floats:
    """Rows as buffers have them: filled up with zeros."""
    return np.pad(x, ((0, 0), (0, stride - x.shape[-1])))


def random_rows(count: int, width: int, seed: int = 0) -> Floats:
    rng = np.random.default_rng([seed, width])
    return (rng.standard_normal((count, width)) * 10.0 ** rng.integers(-4, 5, (count, 1))).astype(np.float32)


class Quantised:
    """Memory for the quantised twin of rows of whole groups."""

    def __init__(self, guarded: Guarded, count: int, width: int) -> None:
        groups = width // GROUP
        self.values = guarded.empty((count, groups, GROUP), np.int8)
        self.scales, self.scaled_sums = (guarded.empty((count, groups)) for _ in range(2))
        self.integer_sums = guarded.empty((count, groups, 2), np.int32)

    def fields(self) -> dict[str, Array]:
        return {name: getattr(self, name) for name in ("values", "scales", "scaled_sums", "integer_sums")}

    def same_as(self, other: Quantised) -> bool:
        return all(same_bits(array, getattr(other, name)) for name, array in self.fields().items())


def quantised(run: Runner, x: Floats) -> Quantised:
    """Return what the kernel `quantize` makes of rows of whole groups."""
    guarded, (count, width) = Guarded(), x.shape
    twin = Quantised(guarded, count, width)
    groups = width // GROUP
    run(rows.quantize, count * groups, x=guarded.copy(x), stride=width, groups=groups, **twin.fields())
    guarded.check()
    return twin


# -- embedding and choice of rows ----------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [1, 3, 5])
@pytest.mark.parametrize("type_name", LAYOUTS)
def test_an_embedding_is_the_file_s_row(run: Runner, type_name: str, blocks: int) -> None:
    """Bit for bit as the decoder of the tensor's type gives it, times a scale."""
    vocabulary, layout, guarded = 50, LAYOUTS[type_name], Guarded()
    columns = blocks * layout.columns
    if not layout.quantized:
        columns -= 9
    raw = random_bytes(type_name, vocabulary * columns, np.random.default_rng(columns))
    packed = np.zeros(layout.packed_bytes(vocabulary, columns), np.uint8)
    size = {"groups": columns // GROUP} if layout.quantized else {"columns": columns}
    run(PACK[type_name], 4, source=raw, packed=packed, rows=vocabulary, paired_dim=0, **size)
    token_ids = np.array([0, 49, 1, 15, 16, 17, 49, *range(50)], np.int32)
    stride = -(-columns // LANES) * LANES
    x = guarded.empty((len(token_ids), stride))
    batch = {"token_ids": token_ids}
    if layout.quantized:
        size |= {"scratch": guarded.empty(64), "scratch_bytes": 0}
    numbers = TYPES[type_name].dequantize(raw, (vocabulary, columns))
    for scale in (1.0, 24.5):
        values = {"weights": packed, "x": x, "stride": stride, "scale": scale, **size}
        run(rows.EMBED[layout], len(token_ids), batch=batch, **values)
        guarded.check()
        assert same_bits(x[:, :columns].copy(), numbers[token_ids] * np.float32(scale))


def test_rows_are_taken_as_they_are(run: Runner) -> None:
    guarded, chosen = Guarded(), np.array([4, 0, 0, 2], np.int32)
    x, y = guarded.copy(random_rows(5, 48)), guarded.empty((4, 48))
    x[4, 7] = np.nan
    run(rows.take_rows, 4, batch={"logits_rows": chosen}, x=x, y=y, stride=48)
    guarded.check()
    assert same_bits(y, x[chosen])


# -- norm ----------------------------------------------------------------------------------------------------


def normed(run: Runner, x: Floats, weight: Floats, before: Floats | None = None) -> Floats:
    """Return the norm of rows, or `before` + that."""
    guarded, (count, width) = Guarded(), x.shape
    stride = -(-width // LANES) * LANES
    y = guarded.empty((count, stride)) if before is None else guarded.copy(padded(before, stride))
    run(
        rows.rms_norm,
        count,
        x=guarded.copy(padded(x, stride)),
        weight=guarded.copy(padded(weight[None], stride)),
        y=y,
        stride=stride,
        heads=1,
        part=stride,
        width=width,
        eps=EPS,
        accumulate=int(before is not None),
    )
    guarded.check()
    assert not y[:, width:].any()
    return y[:, :width].copy()


def normed_quantised(run: Runner, x: Floats, weight: Floats) -> Quantised:
    guarded, (count, width) = Guarded(), x.shape
    twin = Quantised(guarded, count, width)
    run(
        rows.rms_norm_quantize,
        count,
        x=guarded.copy(x),
        weight=guarded.copy(weight),
        stride=width,
        width=width,
        eps=EPS,
        **twin.fields(),
    )
    guarded.check()
    return twin


@pytest.mark.parametrize("width", WIDTHS)
def test_norm(run: Runner, width: int) -> None:
    x, weight = random_rows(9, width), random_rows(1, width, seed=1)[0]
    x[0], x[1, 1:] = 0, 0
    y = normed(run, x, weight)
    np.testing.assert_allclose(y, reference.rms_norm(x, weight, EPS), rtol=NORM_BOUND)
    before = random_rows(9, width, seed=2)
    assert same_bits(normed(run, x, weight, before), before + y)


@pytest.mark.parametrize("width", [width for width in WIDTHS if width % GROUP == 0])
def test_norm_then_quantised(run: Runner, width: int) -> None:
    """The fused kernel gives the bits of the two that it stands for."""
    x, weight = random_rows(9, width), random_rows(1, width, seed=1)[0]
    x[2, 5], x[3, 6] = np.nan, np.inf
    fused = normed_quantised(run, x, weight)
    apart = quantised(run, normed(run, np.delete(x, [2, 3], axis=0), weight))
    for name, array in apart.fields().items():
        assert same_bits(np.delete(getattr(fused, name), [2, 3], axis=0), array), name
    assert np.isnan(fused.scales[2]).all()
    assert np.isnan(fused.scales[3, 0])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_norm_of_no_number_is_none(run: Runner, bad: float) -> None:
    x, weight = random_rows(20, 48), random_rows(1, 48)[0]
    clean = normed(run, x, weight)
    x[np.arange(16), np.arange(16) * 3] = bad
    got = normed(run, x, weight)
    assert np.isnan(got[np.arange(16), np.arange(16) * 3]).all()
    assert same_bits(got[16:], clean[16:])


def test_norms_have_the_same_bits_on_all_paths_that_fuse() -> None:
    x, weight = random_rows(9, 1000), random_rows(1, 1000, seed=1)[0]
    first, *others = (normed(runner(simd), x, weight) for simd in FUSED_PATHS or PATHS[:1])
    assert all(same_bits(first, other) for other in others)


# -- gated unit ----------------------------------------------------------------------------------------------


def gated(run: Runner, gate: Floats, up: Floats, activation: str = "silu") -> Floats:
    guarded, (count, stride) = Guarded(), gate.shape
    y = guarded.empty(gate.shape)
    items = count * stride // LANES
    run(rows.GATED[activation], items, gate=guarded.copy(gate), up=guarded.copy(up), y=y)
    guarded.check()
    return y


def gelu(x: Array) -> tuple[Array, Array]:
    """Return gelu(x) in float64, and u: the form without a difference of numbers near 1."""
    x = x.astype(np.float64)
    u = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-2 * u)), u


def gates() -> tuple[Floats, Floats]:
    """Gates of all sizes, and what they are multiplied with."""
    rng = np.random.default_rng(8)
    gate = np.linspace(-120, 120, 64 * 96).reshape(64, 96)
    gate[::2] /= 10.0 ** rng.integers(0, 9, (32, 96))
    return gate.astype(np.float32), rng.standard_normal((64, 96)).astype(np.float32)


def test_gated_unit(run: Runner) -> None:
    gate, up = gates()
    exact = reference.silu(gate.astype(np.float64)) * up
    error = np.abs(gated(run, gate, up) - exact)
    bound = SILU_BOUND * (8 + np.abs(gate)) * np.abs(exact) + SILU_SMALL * np.abs(gate * up)
    assert (error <= bound).all()


def test_gelu_unit(run: Runner) -> None:
    """Small gates, where most of its shape is, and large ones whose cube overflows."""
    gate, up = gates()
    gate[:32] /= 12
    gate[0, :4] = 1e13, -1e13, 1e30, -1e30
    exact, u = gelu(gate)
    error = np.abs(gated(run, gate, up, "gelu") - exact * up)
    bound = GELU_BOUND * (8 + 8 * np.minimum(np.abs(u), 45)) * np.abs(exact * up)
    assert (error <= bound + SILU_SMALL * np.abs(gate * up.astype(np.float64))).all()


def test_the_reference_s_gelu_is_the_same_function() -> None:
    x = np.linspace(-8, 8, 10_001)
    np.testing.assert_allclose(reference.gelu(x), gelu(x)[0], rtol=0, atol=1e-7)


@pytest.mark.parametrize("activation", rows.GATED)
def test_gated_unit_then_quantised(run: Runner, activation: str) -> None:
    """The fused kernel gives the bits of the two that it stands for."""
    gate, up = gates()
    guarded = Guarded()
    twin = Quantised(guarded, 64, 96)
    fields = {"gate": guarded.copy(gate), "up": guarded.copy(up), "stride": 96, "groups": 3}
    run(rows.GATED_QUANTIZE[activation], 64 * 3, **fields, **twin.fields())
    guarded.check()
    assert twin.same_as(quantised(run, gated(run, gate, up, activation)))


def test_softcap(run: Runner) -> None:
    guarded = Guarded()
    x = guarded.copy(np.linspace(-200, 200, 64 * 96, dtype=np.float32).reshape(64, 96))
    x[0, 0] = np.nan
    want = 30 * np.tanh(x.astype(np.float64) / 30)
    run(rows.softcap, x.size // LANES, x=x, cap=30.0)
    guarded.check()
    np.testing.assert_allclose(x, want, atol=30 * TANH_BOUND)


@pytest.mark.parametrize("accumulate", [0, 1])
def test_norms_of_heads(run: Runner, accumulate: int) -> None:
    """In place or not, each head is normed on its own; `accumulate` adds."""
    guarded, heads = Guarded(), 3
    x, weight = random_rows(5, heads * 32), random_rows(1, 32)[0]
    parts = x.reshape(5, heads, 32).astype(np.float64)
    want = (parts / np.sqrt((parts**2).mean(-1, keepdims=True) + EPS) * weight).reshape(5, -1)
    before = random_rows(5, heads * 32, 1)
    common = {"weight": guarded.copy(weight), "stride": heads * 32, "heads": heads, "part": 32, "width": 32}
    y = guarded.copy(before)
    run(rows.rms_norm, 5, x=guarded.copy(x), y=y, eps=EPS, accumulate=accumulate, **common)
    np.testing.assert_allclose(
        y, want + (before if accumulate else 0), rtol=1e-6, atol=1e-6 * np.abs(want).max()
    )
    in_place = guarded.copy(x)
    run(rows.rms_norm, 5, x=in_place, y=in_place, eps=EPS, accumulate=0, **common)
    guarded.check()
    np.testing.assert_allclose(in_place, want, rtol=1e-6)


@pytest.mark.parametrize("activation", rows.GATED)
def test_a_gate_of_no_number_is_none(run: Runner, activation: str) -> None:
    gate, up = gates()
    gate[1, 3:7] = 1
    clean = gated(run, gate, up, activation)
    gate[1, 3], up[1, 4], gate[1, 5], up[1, 6] = np.nan, np.nan, np.inf, np.inf
    got = gated(run, gate, up, activation)
    assert not np.isfinite(got[1, 3:7]).any()
    got[1, 3:7] = clean[1, 3:7]
    assert same_bits(got, clean)


@pytest.mark.parametrize("activation", rows.GATED)
def test_gated_units_have_the_same_bits_on_all_paths_that_fuse(activation: str) -> None:
    first, *others = (gated(runner(simd), *gates(), activation) for simd in FUSED_PATHS or PATHS[:1])
    assert all(same_bits(first, other) for other in others)
