"""The vocabulary of kernels: machine registers as values, and the instructions on them.

Only names, types and meanings stand here, so that importing a kernel costs nothing; `codegen/` says what each
name becomes in LLVM. A register always has 16 lanes: one AVX-512 register, two of AVX2, four of NEON. The
layout of packed weights, and every bit of a result, are therefore the same on every processor that has a
fused multiply-add.

Addresses are integers, in bytes. Nothing in a kernel checks them: bounds are the business of whoever builds
the instruction.
"""

from __future__ import annotations

from typing import NoReturn, TypeVar

T = TypeVar("T")

LANES = 16


def _outside() -> NoReturn:
    raise RuntimeError("this name has a meaning only inside a @kernel function")


class I32:
    """Sixteen 32-bit integers, or 64 bytes seen four to a lane. Arithmetic wraps; `>>` shifts zeros in."""

    def __add__(self, other: I32) -> I32:
        _outside()

    def __sub__(self, other: I32) -> I32:
        _outside()

    def __mul__(self, other: I32) -> I32:
        _outside()

    def __and__(self, other: I32) -> I32:
        _outside()

    def __or__(self, other: I32) -> I32:
        _outside()

    def __xor__(self, other: I32) -> I32:
        _outside()

    def __rshift__(self, bits: int) -> I32:
        _outside()

    def __lshift__(self, bits: int) -> I32:
        _outside()


class F32:
    """Sixteen single-precision numbers; operations round to nearest even and are never reordered."""

    def __add__(self, other: F32) -> F32:
        _outside()

    def __sub__(self, other: F32) -> F32:
        _outside()

    def __mul__(self, other: F32) -> F32:
        _outside()

    def __truediv__(self, other: F32) -> F32:
        _outside()


# -- memory: registers ---------------------------------------------------------------------------------------


def load_i32(address: int) -> I32:
    """64 bytes."""
    _outside()


def load_f32(address: int) -> F32:
    """16 float32."""
    _outside()


def load_f16(address: int) -> F32:
    """16 float16, widened."""
    _outside()


def load_bf16(address: int) -> F32:
    """16 bfloat16, widened."""
    _outside()


def load_i8(address: int) -> I32:
    """16 signed bytes, widened."""
    _outside()


def load_u8(address: int) -> I32:
    """16 unsigned bytes, widened."""
    _outside()


def load_bytes4(address: int) -> I32:
    """The same four consecutive bytes in every lane."""
    _outside()


def load_splat(address: int) -> F32:
    """The same float32 in every lane."""
    _outside()


def store_f32(address: int, value: F32) -> None:
    _outside()


def store_i32(address: int, value: I32) -> None:
    _outside()


def store_f16(address: int, value: F32) -> None:
    """16 float16, rounded to nearest even; out of range, the largest finite value of that sign."""
    _outside()


def store_i8(address: int, value: I32) -> None:
    """The low byte of each lane: 16 bytes."""
    _outside()


# -- memory: scalars -----------------------------------------------------------------------------------------


def get_i64(address: int) -> int:
    _outside()


def get_i32(address: int) -> int:
    _outside()


def get_u16(address: int) -> int:
    _outside()


def get_u8(address: int) -> int:
    _outside()


def get_f32(address: int) -> float:
    """A float32; arithmetic on it stays float32 as long as both operands are."""
    _outside()


def get_f16(address: int) -> float:
    """A float16, widened to float32."""
    _outside()


def get_f64(address: int) -> float:
    _outside()


def set_i32(address: int, value: int) -> None:
    _outside()


def set_u16(address: int, value: int) -> None:
    _outside()


def set_u8(address: int, value: int) -> None:
    _outside()


def set_f32(address: int, value: float) -> None:
    _outside()


def set_f16(address: int, value: float) -> None:
    """A float16, rounded to nearest even; beyond its range the largest finite value of that sign."""
    _outside()


# -- making and converting -----------------------------------------------------------------------------------


def f32(value: float) -> float:
    """A float32 scalar of an integer or float."""
    _outside()


def splat(value: float) -> F32:
    _outside()


def splat_i32(value: int) -> I32:
    _outside()


def lane_numbers() -> I32:
    """0, 1, … 15."""
    _outside()


def to_f32(value: I32) -> F32:
    """Lane by lane, rounded to nearest even."""
    _outside()


def to_i32(value: F32) -> I32:
    """Rounded to the nearest integer, ties to even. Values from 2^22 on have no meaning."""
    _outside()


def bits_of(value: F32) -> I32:
    _outside()


def float_of(value: I32) -> F32:
    """The float32 of these bits."""
    _outside()


# -- arithmetic ----------------------------------------------------------------------------------------------


def fma(a: F32, b: F32, c: F32) -> F32:
    """a · b + c, rounded once (twice on a processor without the instruction)."""
    _outside()


def dot4(acc: I32, weights: I32, x: I32) -> I32:
    """acc + the sum over each lane's four bytes of unsigned `weights` times signed `x`. Exact."""
    _outside()


def dot4_small(acc: I32, weights: I32, x: I32) -> I32:
    """As dot4, for weights up to 127, which are the same number signed."""
    _outside()


def dot4_signed(acc: I32, weights: I32, x: I32) -> I32:
    """As dot4, for signed weights and x above -128."""
    _outside()


def dot2(acc: I32, a: I32, b: I32) -> I32:
    """acc + the sum over each lane's two signed 16-bit numbers of a times b."""
    _outside()


def multiply_pairs(weights: I32, x: I32) -> I32:
    """Thirty-two 16-bit sums of two neighbouring bytes of unsigned `weights` times signed `x`.

    Exact where no sum reaches 2^15.
    """
    _outside()


def add_pairs(a: I32, b: I32) -> I32:
    """Thirty-two 16-bit sums; they wrap."""
    _outside()


def sum_pairs(acc: I32, pairs: I32) -> I32:
    """acc + the two signed 16-bit numbers of each lane."""
    _outside()


def in_order(value: I32) -> I32:
    """The value itself. What is computed from it comes after everything before this that is in order too.

    Where registers are few, this keeps LLVM from computing all of a loop's values before it uses one.
    """
    _outside()


def look_up(indices: I32, first: int, second: int) -> I32:
    """For each byte below 16 the byte of that number in a table of 16: those of `first`, low ones first,
    then those of `second`."""
    _outside()


def maximum(a: F32, b: F32) -> F32:
    """The larger, lane by lane; b where either is NaN."""
    _outside()


def minimum(a: F32, b: F32) -> F32:
    """The smaller, lane by lane; b where either is NaN."""
    _outside()


def where_less(i: I32, limit: int, a: F32, b: F32) -> F32:
    """a in the lanes where i < limit, else b."""
    _outside()


def where_below(a: F32, b: F32, x: F32, y: F32) -> F32:
    """x in the lanes where a < b, else y (also where either is NaN)."""
    _outside()


def sum_lanes(a: F32) -> float:
    """The sum of the lanes as a balanced tree: halves added to halves, four times. One fixed order."""
    _outside()


def max_lanes(a: F32) -> float:
    """The largest lane. Where some are NaN: NaN, or the largest of the others."""
    _outside()


def largest_magnitude(a: F32, b: F32) -> float:
    """The largest absolute value in two registers; NaN if any lane is NaN."""
    _outside()


def sum_lanes_i32(a: I32) -> int:
    _outside()


def sqrt(value: float) -> float:
    """The square root of a float32, correctly rounded."""
    _outside()


# -- threads and control -------------------------------------------------------------------------------------


def prefetch(address: int) -> None:
    """Ask for the cache line of this address; never faults."""
    _outside()


def pause() -> None:
    """Tell the processor that this is a spin loop."""
    _outside()


def yield_processor() -> None:
    """Let another thread of this machine run."""
    _outside()


def atomic_add(address: int, value: int) -> int:
    """Add to an int64 and return what it was; sequentially consistent."""
    _outside()


def atomic_load(address: int) -> int:
    """An int64; what its writer wrote before is visible after. Sequentially consistent."""
    _outside()


def atomic_store(address: int, value: int) -> None:
    """An int64; what was written before is visible to who reads it (release)."""
    _outside()


def atomic_exchange(address: int, value: int) -> int:
    """Store an int64 and return what it was; sequentially consistent."""
    _outside()


def atomic_swap(address: int, expected: int, value: int) -> int:
    """Store an int64 if it is the expected one, and return what it was; sequentially consistent."""
    _outside()


def call(kernel: int, first: int, last: int, worker: int, batch: int, op: int) -> None:
    """Run the compiled kernel at this address."""
    _outside()


# -- resolved in the syntax tree, see codegen/compile.py -----------------------------------------------------


def static(count: int) -> range:
    """`for j in static(n)`: unrolled before compilation."""
    _outside()


def registers(count: int, init: T) -> list[T]:
    """`acc = registers(n, init)`: n plain variables acc[0] … acc[n-1], each in a machine register."""
    _outside()
