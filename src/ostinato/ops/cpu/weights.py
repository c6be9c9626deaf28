"""The packed weights of a model: one memory for all of them, filled from the file by the team."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ostinato.errors import UnsupportedModelError
from ostinato.ops.cpu.instructions import Instruction, Items
from ostinato.ops.cpu.kernel import Kernel
from ostinato.ops.cpu.kernels.pack import PACK
from ostinato.ops.cpu.memory import Arena, padded
from ostinato.ops.cpu.packing import GROUP_COLUMNS, LAYOUTS, Layout
from ostinato.ops.cpu.simd import LANES
from ostinato.ops.program import Embed, MatMul, Program, RmsNorm, Weight
from ostinato.weights.quants import Bytes
from ostinato.weights.tensors import Tensor


@dataclass(frozen=True, slots=True)
class Matrix:
    """A packed matrix in memory."""

    address: int
    layout: Layout
    rows: int
    columns: int

    @property
    def panels(self) -> int:
        """Groups of 16 rows."""
        return -(-self.rows // LANES)

    @property
    def num_bytes(self) -> int:
        """Bytes that a product with this matrix reads."""
        return self.layout.packed_bytes(self.rows, self.columns)


class PackedWeights:
    """Every weight of a program, by the weight itself: matrices packed, vectors as float32 padded with zeros
    to 16.

    The memory is reserved here; the instructions of `packing` fill it.
    """

    def __init__(self, program: Program, tensors: Mapping[str, Tensor]) -> None:
        matrices = _matrices(program)
        vectors = {op.weight for op in program.ops if isinstance(op, RmsNorm)}
        layouts = {weight: _layout(tensors[weight.name]) for weight in matrices}
        total = sum(padded(layouts[w].packed_bytes(*_shape(tensors[w.name]))) for w in matrices)
        total += sum(padded(4 * _padded_length(tensors[w.name])) for w in vectors)
        self.arena = Arena(total, huge=True)
        self.vectors: dict[Weight, int] = {weight: self._vector(tensors[weight.name]) for weight in vectors}
        self.matrices: dict[Weight, Matrix] = {}
        self._multiplied = {op.weight for op in program.ops if isinstance(op, MatMul)}
        self._packing: dict[Weight, Instruction] = {}
        for weight in matrices:
            self._matrix(weight, tensors[weight.name], layouts[weight], program)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of weights that one token of decoding reads: every matrix that is multiplied with."""
        return sum(self.matrices[weight].num_bytes for weight in self._multiplied)

    @property
    def pack_kernels(self) -> list[Kernel]:
        """What the instructions of `packing` need."""
        return [packing.kernel for packing in self._packing.values()]

    def packing(self, tensors: Mapping[str, Tensor]) -> Iterator[list[Instruction]]:
        """Yield what fills the matrices, in lists: those from tensors that are stored as they are, then one
        list for each that is quantised while loading.

        Run a list before the next is asked for: only until then the bytes that it reads are in memory.
        """
        sources = [(tensors[weight.name], packing) for weight, packing in self._packing.items()]
        stored = [_reading(tensor.load(), packing) for tensor, packing in sources if tensor.convert is None]
        if stored:
            yield stored
        for tensor, packing in sources:
            if tensor.convert is not None:
                source = tensor.load()
                yield [_reading(source, packing)]
                del source

    def _vector(self, tensor: Tensor) -> int:
        address = self.arena.take(4 * _padded_length(tensor))
        self.arena.view(address, tensor.shape, np.float32)[:] = tensor.dequantize()
        return address

    def _matrix(self, weight: Weight, tensor: Tensor, layout: Layout, program: Program) -> None:
        rows, columns = _shape(tensor)
        matrix = Matrix(self.arena.take(layout.packed_bytes(rows, columns)), layout, rows, columns)
        self.matrices[weight] = matrix
        values = {"packed": matrix.address, "rows": rows}
        values["paired_dim"] = rows // weight.paired_heads if weight.paired_heads else 0
        if layout.quantized:
            values["groups"] = columns // GROUP_COLUMNS
        else:
            values["columns"] = columns
        self._packing[weight] = Instruction(PACK[layout], Items(matrix.panels), values)


def _reading(source: Bytes, packing: Instruction) -> Instruction:
    return replace(packing, values={**packing.values, "source": source.ctypes.data})


def _matrices(program: Program) -> list[Weight]:
    """Return the matrices of a program in the order they are used, each once."""
    return list(dict.fromkeys(op.weight for op in program.ops if isinstance(op, Embed | MatMul)))


def _layout(tensor: Tensor) -> Layout:
    layout = LAYOUTS.get(tensor.type.name)
    if layout is None:
        raise UnsupportedModelError(
            f"tensor '{tensor.name}' is of type {tensor.type.name}, which has no kernels; "
            f"there are some for {', '.join(LAYOUTS)}"
        )
    return layout


def _shape(tensor: Tensor) -> tuple[int, int]:
    rows, columns = tensor.shape
    return rows, columns


def _padded_length(tensor: Tensor) -> int:
    return -(-tensor.shape[0] // LANES) * LANES
