"""Every instruction of simd.py, on every path this processor can run, against NumPy."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from harness import PATHS, Array, Floats, Guarded, Runner, own_kernel, same_bits

from ostinato.ops.cpu import host
from ostinato.ops.cpu.simd import (
    LANES,
    add_pairs,
    atomic_add,
    atomic_exchange,
    atomic_load,
    atomic_store,
    atomic_swap,
    bits_of,
    dot2,
    dot4,
    dot4_signed,
    dot4_small,
    f32,
    float_of,
    fma,
    get_f16,
    get_f32,
    get_f64,
    get_i32,
    get_i64,
    get_u8,
    get_u16,
    in_order,
    lane_numbers,
    largest_magnitude,
    load_bf16,
    load_bytes4,
    load_f16,
    load_f32,
    load_i8,
    load_i32,
    load_splat,
    load_u8,
    look_up,
    max_lanes,
    maximum,
    minimum,
    multiply_pairs,
    pause,
    prefetch,
    registers,
    set_f16,
    set_f32,
    set_i32,
    set_u8,
    set_u16,
    splat,
    splat_i32,
    sqrt,
    static,
    store_f16,
    store_f32,
    store_i8,
    store_i32,
    sum_lanes,
    sum_lanes_i32,
    sum_pairs,
    to_f32,
    to_i32,
    where_below,
    where_less,
    yield_processor,
)

FLOAT_NAMES = (
    "add sub mul div fma maximum minimum where_below where_less sum_lanes max_lanes largest_magnitude"
)
INTEGER_NAMES = "add sub mul and or xor right_3 left_3 right left dot4 dot4_signed to_i32 bits_of sum_lanes"
FLOAT_RESULTS = [*FLOAT_NAMES.split(), "sqrt", "load_splat"]
BYTE_NAMES = "multiply_pairs add_pairs sum_pairs in_order look_up load_i8 load_u8 dot4_small dot2"
INTEGER_RESULTS = [*INTEGER_NAMES.split(), "lane_numbers", "load_bytes4", "splat_i32", "registers"]
INTEGER_RESULTS += BYTE_NAMES.split()
"""What the first two kernels below write, register after register."""

SMALL, NIBBLES = 0x7F7F7F7F, 0x0F0F0F0F
FIRST, SECOND = 0x7F01FE80_0102FF00, -0x1122334455667788
"""A table of 16 bytes."""


def float_instructions(first: int, last: int, a: int, b: int, c: int, i: int, limit: int, out: int) -> None:
    for n in range(first, last):
        x, y, z = load_f32(a + 64 * n), load_f32(b + 64 * n), load_f32(c + 64 * n)
        to = out + 14 * 64 * n
        store_f32(to, x + y)
        store_f32(to + 64, x - y)
        store_f32(to + 128, x * y)
        store_f32(to + 192, x / y)
        store_f32(to + 256, fma(x, y, z))
        store_f32(to + 320, maximum(x, y))
        store_f32(to + 384, minimum(x, y))
        store_f32(to + 448, where_below(x, y, z, x))
        store_f32(to + 512, where_less(load_i32(i + 64 * n), limit, x, y))
        store_f32(to + 576, splat(sum_lanes(x)))
        store_f32(to + 640, splat(max_lanes(x)))
        store_f32(to + 704, splat(largest_magnitude(x, y)))
        for lane in range(LANES):
            set_f32(to + 768 + 4 * lane, sqrt(get_f32(a + 64 * n + 4 * lane)))
        store_f32(to + 832, load_splat(a + 64 * n + 20))


def integer_instructions(first: int, last: int, a: int, b: int, c: int, f: int, bits: int, out: int) -> None:
    for n in range(first, last):
        x, y, acc = load_i32(a + 64 * n), load_i32(b + 64 * n), load_i32(c + 64 * n)
        number = load_f32(f + 64 * n)
        to = out + 28 * 64 * n
        store_i32(to, x + y)
        store_i32(to + 64, x - y)
        store_i32(to + 128, x * y)
        store_i32(to + 192, x & y)
        store_i32(to + 256, x | y)
        store_i32(to + 320, x ^ y)
        store_i32(to + 384, x >> 3)
        store_i32(to + 448, x << 3)
        store_i32(to + 512, x >> bits)
        store_i32(to + 576, x << bits)
        store_i32(to + 640, dot4(acc, x, y))
        store_i32(to + 704, dot4_signed(acc, x, y))
        store_i32(to + 768, to_i32(number))
        store_i32(to + 832, bits_of(float_of(x)))
        store_i32(to + 896, splat_i32(sum_lanes_i32(x)))
        store_i32(to + 960, lane_numbers())
        store_i32(to + 1024, load_bytes4(a + 64 * n + 20))
        store_i32(to + 1088, splat_i32(get_i32(a + 64 * n)))
        sums = registers(3, splat_i32(5))
        for j in static(3):
            sums[j] = sums[j] + splat_i32(j)
        store_i32(to + 1152, sums[0] * sums[1] * sums[2])
        pairs = multiply_pairs(x & splat_i32(SMALL), y)
        store_i32(to + 1216, pairs)
        store_i32(to + 1280, add_pairs(x, y))
        store_i32(to + 1344, sum_pairs(acc, y))
        store_i32(to + 1408, in_order(x))
        store_i32(to + 1472, look_up(x & splat_i32(NIBBLES), FIRST, SECOND))
        store_i32(to + 1536, load_i8(a + 64 * n + 21))
        store_i32(to + 1600, load_u8(a + 64 * n + 21))
        store_i32(to + 1664, dot4_small(acc, x & splat_i32(SMALL), y))
        store_i32(to + 1728, dot2(acc, x, y))


def conversions(
    first: int, last: int, integers: int, floats: int, halves: int, brains: int, numbers: int, widened: int,
    narrowed: int, low_bytes: int,
) -> None:  # fmt: skip
    """Registers of float16 and bfloat16 at even addresses, of bytes at odd ones."""
    for n in range(first, last):
        store_f32(floats + 64 * n, to_f32(load_i32(integers + 64 * n)))
        store_f32(widened + 128 * n, load_f16(halves + 32 * n))
        store_f32(widened + 128 * n + 64, load_bf16(brains + 32 * n))
        store_f16(narrowed + 32 * n, load_f32(numbers + 64 * n))
        store_i8(low_bytes + 16 * n, load_i32(integers + 64 * n))


def scalars(first: int, last: int, halves: int, widened: int, numbers: int, narrowed: int) -> None:
    for n in range(first, last):
        set_f32(widened + 4 * n, get_f16(halves + 2 * n))
        set_f16(narrowed + 2 * n, get_f32(numbers + 4 * n))


def unaligned(source: int, out: int) -> None:
    """Integers of a model file lie at any address; what is written does not."""
    set_i32(out, get_i32(source))
    set_u16(out + 4, get_u16(source))
    set_u8(out + 6, get_u8(source))
    set_f32(out + 8, f32(get_f64(out + 16)))
    set_i32(out + 24, get_i64(source) >> 32)
    set_i32(out + 28, get_i64(source))


def control(cell: int, out: int) -> None:
    set_i32(out, atomic_add(cell, 5))
    set_i32(out + 4, atomic_load(cell))
    set_i32(out + 8, atomic_swap(cell, 12, 20))
    set_i32(out + 12, atomic_swap(cell, 12, 21))
    set_i32(out + 16, atomic_exchange(cell, -3))
    atomic_store(cell + 8, atomic_load(cell) * 2)
    set_i32(out + 20, atomic_add(cell, -(1 << 40)) + 1)
    prefetch(out)
    prefetch(8)
    pause()
    yield_processor()


OWN = {
    function.__name__: own_kernel(function)
    for function in (
        float_instructions,
        integer_instructions,
        conversions,
        scalars,
        unaligned,
        control,
    )
}


@cache
def own(simd: str) -> Runner:
    return Runner(simd, list(OWN.values()))


@pytest.fixture(params=PATHS)
def run(request: pytest.FixtureRequest) -> Runner:
    return own(request.param)


def tree_sum(x: Floats) -> Floats:
    """The sum of the last axis, halves added to halves."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return x


def special_floats(count: int, seed: int) -> Floats:
    """Registers of floats of all sizes; in the second half with infinities, NaN, zeros and subnormals."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((count, LANES)) * 2.0 ** rng.integers(-40, 40, (count, LANES))).astype(
        np.float32
    )
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 3.4e38], np.float32)
    where = rng.random(x.shape) < 0.1
    where[: count // 2] = False
    x[where] = rng.choice(special, where.sum())
    return x


def test_float_instructions(run: Runner) -> None:
    count, guarded = 400, Guarded()
    a, b, c = (guarded.copy(special_floats(count, seed)) for seed in range(3))
    b[::7] = a[::7]  # equal lanes
    i = guarded.copy(np.random.default_rng(3).integers(-9, 9, (count, LANES)).astype(np.int32))
    out = guarded.empty((count, len(FLOAT_RESULTS), LANES))
    run(OWN["float_instructions"], count, a=a, b=b, c=c, i=i, limit=-2, out=out)
    guarded.check()
    got = dict(zip(FLOAT_RESULTS, out.swapaxes(0, 1), strict=True))
    with np.errstate(all="ignore"):
        expected = {
            "add": a + b,
            "sub": a - b,
            "mul": a * b,
            "div": a / b,
            "maximum": np.where(a > b, a, b),
            "minimum": np.where(a < b, a, b),
            "where_below": np.where(a < b, c, a),
            "where_less": np.where(i < -2, a, b),
            "sum_lanes": tree_sum(a).repeat(LANES, axis=1),
            "largest_magnitude": np.maximum(abs(a), abs(b)).max(axis=1, keepdims=True).repeat(LANES, axis=1),
            "sqrt": np.sqrt(a),
            "load_splat": a[:, 5:6].repeat(LANES, axis=1),
        }
    for name, want in expected.items():
        np.testing.assert_array_equal(got[name], want, err_msg=name)
    finite = np.isfinite(a).all(axis=1)
    np.testing.assert_array_equal(
        got["max_lanes"][finite], a[finite].max(axis=1, keepdims=True).repeat(16, 1)
    )
    for name in ("add", "sub", "mul", "maximum", "minimum", "where_below", "where_less", "load_splat"):
        numbers = ~np.isnan(expected[name])
        assert same_bits(got[name][numbers], expected[name][numbers].astype(np.float32)), name


def test_fma_rounds_once(run: Runner) -> None:
    """Where the target says so; the operands nearly cancel, so that float64 holds the exact result."""
    count, guarded = 3000, Guarded()
    rng = np.random.default_rng(4)
    a, b = (guarded.copy((1 + rng.random((count, LANES))).astype(np.float32)) for _ in range(2))
    nearly = 1 + rng.integers(-2, 3, (count, LANES)).astype(np.float32) * np.float32(2**-23)
    c = guarded.copy(-(a * b) * nearly)
    i, out = guarded.copy(np.zeros((count, LANES), np.int32)), guarded.empty((count, 14, LANES))
    run(OWN["float_instructions"], count, a=a, b=b, c=c, i=i, limit=0, out=out)
    got = out[:, FLOAT_RESULTS.index("fma")]
    once, twice = (a.astype(np.float64) * b + c).astype(np.float32), a * b + c
    assert (once != twice).mean() > 0.3
    assert same_bits(got, once if host.target(run.simd).fma else twice)


def test_max_lanes_wherever_the_largest_is(run: Runner) -> None:
    a = np.full((LANES, LANES), -np.inf, np.float32)
    np.fill_diagonal(a, np.arange(-8, 8))
    i, out = np.zeros((LANES, LANES), np.int32), np.empty((LANES, 14, LANES), np.float32)
    run(OWN["float_instructions"], LANES, a=a, b=a, c=a, i=i, limit=0, out=out)
    assert out[:, FLOAT_RESULTS.index("max_lanes"), 0].tolist() == list(range(-8, 8))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_largest_magnitude_notices_every_lane(run: Runner, value: float) -> None:
    a, b = np.ones((2 * LANES, LANES), np.float32), -np.ones((2 * LANES, LANES), np.float32)
    for lane in range(LANES):
        a[lane, lane] = b[LANES + lane, lane] = value
    i, out = np.zeros_like(a, np.int32), np.empty((len(a), 14, LANES), np.float32)
    run(OWN["float_instructions"], len(a), a=a, b=b, c=a, i=i, limit=0, out=out)
    np.testing.assert_array_equal(out[:, FLOAT_RESULTS.index("largest_magnitude"), 0], abs(value))


def bytes_of(x: Array, kind: type) -> Array:
    return x.view(kind).reshape(*x.shape, 4).astype(np.int64)


def halves_of(a: Array, b: Array) -> Array:
    """Sums of two products of 16-bit numbers."""
    return (a.view(np.int16).astype(np.int64) * b.view(np.int16)).reshape(*a.shape, 2).sum(axis=-1)


def shorts(x: Array, pairs: bool = False) -> Array:
    """16-bit numbers, or sums of two, as the lanes of registers."""
    if pairs:
        x = x.reshape(len(x), -1, 2).sum(axis=-1, dtype=np.int16)
    return np.ascontiguousarray(x).view(np.int32)


def random_words(count: int, seed: int) -> Array:
    """Registers of random bytes, the first of them all pairs of extreme ones."""
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 2**32, (count, LANES), np.uint64).astype(np.uint32)
    extremes = rng.choice(np.array([0, 1, 127, 128, 129, 255], np.uint8), (count // 2, 4 * LANES))
    words[: count // 2] = extremes.view(np.uint32)
    return words.view(np.int32)


@pytest.mark.parametrize("bits", [0, 1, 24, 31])
def test_integer_instructions(run: Runner, bits: int) -> None:
    count, guarded = 600, Guarded()
    a, b, c = (guarded.copy(random_words(count, seed)) for seed in range(3))
    c[:] >>= 4  # sums of byte products are added to it, and must not overflow by themselves here
    a[0], b[0], a[1], b[1] = -1, 0x7F7F7F7F, -1, -0x7F7F7F80  # 255 · 127, then 255 · -128
    numbers = (np.random.default_rng(5).integers(-4000, 4000, (count, LANES)) / 8).astype(np.float32)
    numbers[0] = [
        0.5,
        1.5,
        2.5,
        -0.5,
        -1.5,
        -2.5,
        126.5,
        127.5,
        -127.5,
        2**21 + 0.5,
        -(2**22) + 1,
        2**22 - 1,
        *range(4),
    ]
    f, out = guarded.copy(numbers), guarded.empty((count, len(INTEGER_RESULTS), LANES), np.int32)
    run(OWN["integer_instructions"], count, a=a, b=b, c=c, f=f, bits=bits, out=out)
    guarded.check()
    got = dict(zip(INTEGER_RESULTS, out.swapaxes(0, 1), strict=True))
    unsigned = a.view(np.uint32)
    small, table = a & SMALL, np.array([FIRST, SECOND]).view(np.uint8)
    next_bytes = a.view(np.uint8)[:, 21:37]
    with np.errstate(over="ignore"):
        expected = {
            "add": a + b,
            "sub": a - b,
            "mul": a * b,
            "and": a & b,
            "or": a | b,
            "xor": a ^ b,
            "right_3": (unsigned >> 3).view(np.int32),
            "left_3": a << 3,
            "right": (unsigned >> bits).view(np.int32),
            "left": a << bits,
            "dot4": c + (bytes_of(a, np.uint8) * bytes_of(b, np.int8)).sum(axis=-1),
            "to_i32": np.rint(numbers).astype(np.int32),
            "bits_of": a,
            "sum_lanes": np.broadcast_to(
                a.sum(axis=1, keepdims=True, dtype=np.int64).astype(np.int32), a.shape
            ),
            "lane_numbers": np.broadcast_to(np.arange(LANES), a.shape),
            "load_bytes4": a[:, 5:6].repeat(LANES, axis=1),
            "splat_i32": a[:, :1].repeat(LANES, axis=1),
            "registers": np.full_like(a, 5 * 6 * 7),
            "multiply_pairs": shorts(small.view(np.uint8).astype(np.int16) * b.view(np.int8), pairs=True),
            "add_pairs": shorts(a.view(np.int16) + b.view(np.int16)),
            "sum_pairs": c + b.view(np.int16).reshape(*b.shape, 2).sum(axis=-1, dtype=np.int32),
            "in_order": a,
            "look_up": table[(a & NIBBLES).view(np.uint8)].view(np.int32),
            "load_i8": next_bytes.view(np.int8),
            "load_u8": next_bytes,
            "dot4_small": c + (bytes_of(small, np.uint8) * bytes_of(b, np.int8)).sum(axis=-1),
            "dot2": (c + halves_of(a, b)).astype(np.int32),
        }
    for name, want in expected.items():
        np.testing.assert_array_equal(got[name], want, err_msg=name)
    allowed = (bytes_of(b, np.int8) > -128).all(axis=-1)
    dot = c + (bytes_of(a, np.int8) * bytes_of(b, np.int8)).sum(axis=-1)
    np.testing.assert_array_equal(got["dot4_signed"][allowed], dot[allowed])
    assert allowed.mean() > 0.3


def test_dot_products_wrap_around(run: Runner) -> None:
    """They never saturate: the sum of a whole row is exact modulo 2^32."""
    a, b = np.full((2, LANES), -1, np.int32), np.array([[0x7F7F7F7F] * 16, [-0x7F7F7F80] * 16], np.int32)
    c = np.array([[2**31 - 1] * 16, [-(2**31)] * 16], np.int32)
    f, out = np.zeros((2, LANES), np.float32), np.empty((2, len(INTEGER_RESULTS), LANES), np.int32)
    run(OWN["integer_instructions"], 2, a=a, b=b, c=c, f=f, bits=0, out=out)
    total = c.astype(np.int64) + np.array([[4 * 255 * 127], [4 * 255 * -128]])
    np.testing.assert_array_equal(out[:, INTEGER_RESULTS.index("dot4")], total.astype(np.int32))


# -- float16 -------------------------------------------------------------------------------------------------

ALL_HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def hard_to_round() -> Floats:
    """What lies on, halfway between, and just beside every float16; then random bits; of both signs."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    halfway = (halves[1:] + halves[:-1]) / 2
    rest = [65504.0, 65519.996, 65520.0, 65536.0, 1e9, 3.4e38, np.inf, np.nan, 2.0**-25, 2.0**-149, 0.0]
    around = [np.nextafter(halfway, np.float32(np.inf)), np.nextafter(halfway, np.float32(0))]
    random = np.random.default_rng(6).integers(0, 2**31, 1 << 16, np.int32).view(np.float32)
    positive = np.concatenate([halves, halfway, *around, np.array(rest, np.float32), random])
    both = np.concatenate([positive, -positive])
    return np.resize(both, -(-len(both) // LANES) * LANES)


def rounded(numbers: Floats) -> Array:
    return np.clip(numbers, -65504, 65504).astype(np.float16)


def assert_same_halves(got: Array, want: Array) -> None:
    numbers = ~np.isnan(want)
    assert np.isnan(got[~numbers]).all()
    assert same_bits(got[numbers], want[numbers])


def test_conversions_of_registers(run: Runner) -> None:
    numbers, guarded = hard_to_round(), Guarded()
    count = len(numbers) // LANES
    rng = np.random.default_rng(7)
    integers = rng.integers(-(2**31), 2**31, (count, LANES)).astype(np.int32)
    halves = np.resize(ALL_HALVES, (count, LANES))
    brains = rng.integers(0, 2**16, (count, LANES)).astype(np.uint16)
    widened, narrowed = (
        guarded.empty((count, 2, LANES)),
        guarded.empty((count, LANES), np.float16, shift=2),
    )
    low_bytes, floats = (
        guarded.empty((count, LANES), np.uint8, shift=1),
        guarded.empty((count, LANES), shift=4),
    )
    run(
        OWN["conversions"],
        count,
        integers=guarded.copy(integers, shift=4),
        floats=floats,
        halves=guarded.copy(halves, shift=2),
        brains=guarded.copy(brains, shift=6),
        numbers=guarded.copy(numbers, shift=12),
        widened=widened,
        narrowed=narrowed,
        low_bytes=low_bytes,
    )
    guarded.check()
    assert count * LANES >= len(ALL_HALVES)
    assert same_bits(floats, integers.astype(np.float32))
    assert same_bits(low_bytes, integers.astype(np.uint8))
    assert_same_halves(narrowed.reshape(-1), rounded(numbers))
    for got, want in (
        (widened[:, 0], halves.astype(np.float32)),
        (widened[:, 1], (brains.astype(np.uint32) << 16).view(np.float32)),
    ):
        assert_same_halves(got, want)


def test_conversions_of_scalars(run: Runner) -> None:
    numbers, guarded = hard_to_round(), Guarded()
    count = len(numbers)
    halves = np.resize(ALL_HALVES, count)
    widened, narrowed = guarded.empty(count), guarded.empty(count, np.float16)
    run(OWN["scalars"], count, halves=halves, widened=widened, numbers=numbers, narrowed=narrowed)
    guarded.check()
    assert_same_halves(widened, halves.astype(np.float32))
    assert_same_halves(narrowed, rounded(numbers))


@pytest.mark.parametrize("shift", range(8))
def test_integers_at_any_address(run: Runner, shift: int) -> None:
    raw = np.random.default_rng(shift).integers(0, 256, 16, np.uint8)
    out = np.zeros(32, np.uint8)
    out[16:24] = np.array([1.5], np.float64).view(np.uint8)
    run(OWN["unaligned"], 1, source=raw.ctypes.data + shift, out=out)
    got, want = out.tobytes(), raw[shift : shift + 8].tobytes()
    assert got[:7] == want[:4] + want[:2] + want[:1]
    assert got[8:12] == np.float32(1.5).tobytes()
    assert got[24:] == want[4:] + want[:4]


def test_atomic_instructions_and_hints(run: Runner) -> None:
    cells, out = np.array([7, 0], np.int64), np.zeros(8, np.int32)
    run(OWN["control"], 1, cell=cells, out=out)
    assert out.tolist()[:6] == [7, 12, 12, 20, 20, -2]
    assert cells.tolist() == [-3 - (1 << 40), -6]
