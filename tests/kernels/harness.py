"""What the tests of the CPU kernels share: the paths of this processor, kernels called on NumPy arrays from
Python, and memory that notices who writes beside it.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.ops.batch import ForwardBatch
from ostinato.ops.cpu import host
from ostinato.ops.cpu.instructions import Instruction, Items, encode
from ostinato.ops.cpu.kernel import BATCH_FIELDS, Kernel
from ostinato.ops.cpu.kernels.matmul import MATMUL, TILES
from ostinato.ops.cpu.library import Library, library, write_object
from ostinato.ops.cpu.packing import LAYOUTS

PATHS = host.available()
FUSED_PATHS = [simd for simd in PATHS if host.target(simd).fma]
"""The paths whose bits are the same, because each of their multiply-adds rounds once."""

QUANTIZED = [name for name, layout in LAYOUTS.items() if layout.quantized]
FLOATING = [name for name, layout in LAYOUTS.items() if not layout.quantized]
"""The tensor types that have kernels."""

TURNS = dict(zip(LAYOUTS, cycle(TILES), strict=False))
"""A tile size for each tensor type, so that each size has its turn."""

HALF_ULP = 2.0**-24
"""The largest relative error of one rounding of a float32."""

Array = NDArray[Any]
Floats = NDArray[np.float32]
Value = int | float | Array
Entry = Callable[[int, int, int, int, int], None]

_ENTRY = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)


def tiles_of(simd: str, type_name: str) -> tuple[int, ...]:
    """Return the tile sizes whose products are tested: all; on the generic path, where each takes seconds to
    compile and nothing but instructions differs from the others, one a type.
    """
    return (TURNS[type_name],) if simd == "generic" and PATHS != ["generic"] else TILES


def products(simd: str) -> list[Kernel]:
    """Return the kernels of these products."""
    return [MATMUL[layout, tile] for name, layout in LAYOUTS.items() for tile in tiles_of(simd, name)]


@contextmanager
def environment_kept() -> Iterator[None]:
    """Undo what the compiler writes into this process's environment."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def own_kernel(function: Callable[..., None], **constants: int) -> Kernel:
    """Return a test's own kernel, without entering it into the product's registry."""
    return Kernel(function.__name__, function, constants)  # type: ignore[arg-type]


def linked(simd: str, kernels: Sequence[Kernel]) -> Library:
    """Return a library of its own with a test's kernels, compiled in this process, and the product's."""
    from ostinato.ops.cpu.codegen.compile import Compiler

    target = host.target(simd)
    made = Library(target)
    with tempfile.TemporaryDirectory() as folder, environment_kept():
        made.folder = Path(folder)
        compiler = Compiler(target)
        for kernel in kernels:
            write_object(made.folder, kernel.name, compiler.object(kernel))
        made.load(kernels)
    made.folder = library(target).folder
    return made


class Runner:
    """Calls kernels of one path on NumPy arrays."""

    def __init__(self, simd: str, own: Sequence[Kernel] = ()) -> None:
        self.simd = simd
        self.library = linked(simd, own) if own else library(host.target(simd))

    def load(self, kernels: Iterable[Kernel]) -> None:
        """Compile what is missing of these kernels at once, in as many processes as there are cores."""
        self.library.load(kernels)

    def __call__(
        self, kernel: Kernel, items: int, *, batch: Mapping[str, Value] | None = None, **values: Value
    ) -> None:
        """Run all items of a kernel; an array stands for its address."""
        self.part(kernel, 0, items, batch=batch, **values)

    def part(
        self,
        kernel: Kernel,
        first: int,
        last: int,
        *,
        worker: int = 0,
        batch: Mapping[str, Value] | None = None,
        **values: Value,
    ) -> None:
        """Run the items from `first` to `last` as some worker."""
        addresses = self.library.load([kernel])
        fields = {name: _word(value) for name, value in values.items()}
        words = encode([Instruction(kernel, Items(), fields)], addresses)
        header = np.array([_word((batch or {}).get(name, 0)) for name in BATCH_FIELDS], np.int64)
        entry: Entry = _ENTRY(addresses[kernel.name])
        entry(first, last, worker, header.ctypes.data, words.ctypes.data)


@cache
def runner(simd: str) -> Runner:
    """Return the product's kernels of a path."""
    return Runner(simd)


def _word(value: Value) -> int | float:
    return value.ctypes.data if isinstance(value, np.ndarray) else value


class Guarded:
    """Makes arrays between canaries; `check` fails if anything was written beside them."""

    MARGIN, CANARY = 256, 0xA5

    def __init__(self) -> None:
        self._guards: list[tuple[NDArray[np.uint8], NDArray[np.uint8]]] = []

    def empty(self, shape: int | tuple[int, ...], dtype: Any = np.float32, shift: int = 0) -> Any:
        """Return an array filled with canaries, `shift` bytes off a cache line."""
        num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        raw = np.full(num_bytes + 3 * self.MARGIN, self.CANARY, np.uint8)
        start = self.MARGIN + (-raw.ctypes.data) % 64 + shift
        self._guards.append((raw[:start], raw[start + num_bytes :]))
        return raw[start : start + num_bytes].view(dtype).reshape(shape)

    def copy(self, values: Any, shift: int = 0) -> Any:
        """Return a guarded copy of an array."""
        made = self.empty(np.shape(values), np.asarray(values).dtype, shift)
        made[...] = values
        return made

    def check(self) -> None:
        """Fail if a canary has changed."""
        for guards in self._guards:
            assert all((guard == self.CANARY).all() for guard in guards), "memory beside an array was written"


def same_bits(a: Array, b: Array) -> bool:
    """Return whether two arrays hold the same bytes, NaN and the sign of zero included."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def batch_fields(batch: ForwardBatch) -> dict[str, Value]:
    """Return the words of a batch's header."""
    return {
        "num_tokens": len(batch.token_ids),
        "num_rows": len(batch.logits_rows),
        "token_ids": np.ascontiguousarray(batch.token_ids),
        "positions": np.ascontiguousarray(batch.positions),
        "slot_of_token": np.ascontiguousarray(batch.slot_of_token),
        "block_tables": np.ascontiguousarray(batch.block_tables),
        "table_width": batch.block_tables.shape[1],
        "logits_rows": np.ascontiguousarray(batch.logits_rows),
    }
