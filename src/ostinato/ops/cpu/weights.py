"""The packed weights of a model: one memory for all of them, filled from the file by the team."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ostinato.errors import UnsupportedModelError
from ostinato.ops.cpu.instructions import Instruction, Items
from ostinato.ops.cpu.kernel import Kernel
from ostinato.ops.cpu.kernels.pack import PACK
from ostinato.ops.cpu.memory import Arena, padded
from ostinato.ops.cpu.packing import GROUP_COLUMNS, LAYOUTS, Layout
from ostinato.ops.cpu.simd import LANES
from ostinato.ops.program import Embed, Experts, MatMul, Program, RmsNorm, Weight
from ostinato.ops.reference import pairs_to_halves
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
        matrices, vectors = _matrices(program), _vectors(program)
        layouts = {weight: _layout(tensors[weight.name]) for weight in matrices}
        total = sum(padded(layouts[w].packed_bytes(*_shape(w, tensors[w.name]))) for w in matrices)
        total += sum(padded(4 * _padded_length(w, tensors[w.name])) for w in vectors)
        self.arena = Arena(total, huge=True)
        self.vectors: dict[Weight, int] = {w: self._vector(w, tensors[w.name]) for w in vectors}
        self.matrices: dict[Weight, Matrix] = {}
        self._multiplied = {op.weight for op in program.ops if isinstance(op, MatMul)}
        self._experts = [op for op in program.ops if isinstance(op, Experts)]
        self._packing: dict[Weight, Instruction] = {}
        for weight in matrices:
            self._matrix(weight, tensors[weight.name], layouts[weight], program)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of weights that one token of decoding reads: every matrix that is multiplied with, of experts
        only the chosen."""
        experts = sum(self._chosen_bytes(op) for op in self._experts)
        return sum(self.matrices[weight].num_bytes for weight in self._multiplied) + experts

    def stacked(self, weights: Sequence[Weight]) -> tuple[Matrix, int]:
        """Return the first of equally shaped matrices that lie one after another, and bytes from one to the
        next.
        """
        matrices = [self.matrices[weight] for weight in weights]
        apart = padded(matrices[0].num_bytes)
        for number, matrix in enumerate(matrices):
            if (matrix.layout, matrix.address) != (matrices[0].layout, matrices[0].address + number * apart):
                raise UnsupportedModelError(
                    f"tensor '{weights[number].name}' is of another type than that of the first expert; "
                    "the matrices of all experts must be of one type"
                )
        return matrices[0], apart

    def _chosen_bytes(self, op: Experts) -> int:
        """Bytes that one token reads of a mixture of experts."""
        matrices = (self.matrices[weights[0]] for weights in (op.gate, op.up, op.down))
        return op.chosen * sum(matrix.num_bytes for matrix in matrices)

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

    def _vector(self, weight: Weight, tensor: Tensor) -> int:
        values = tensor.dequantize()[slice(*(weight.rows or (None,)))]
        if weight.paired_heads:
            values = pairs_to_halves(values[:, None], weight.paired_heads)[:, 0]
        address = self.arena.take(4 * _padded_length(weight, tensor))
        self.arena.view(address, values.shape, np.float32)[:] = values
        return address

    def _matrix(self, weight: Weight, tensor: Tensor, layout: Layout, program: Program) -> None:
        rows, columns = _shape(weight, tensor)
        first = weight.rows[0] if weight.rows else 0
        matrix = Matrix(self.arena.take(layout.packed_bytes(rows, columns)), layout, rows, columns)
        self.matrices[weight] = matrix
        values = {"packed": matrix.address, "rows": rows, "source": first * tensor.type.num_bytes((columns,))}
        values["paired_dim"] = rows // weight.paired_heads if weight.paired_heads else 0
        if layout.quantized:
            values["groups"] = columns // GROUP_COLUMNS
        else:
            values["columns"] = columns
        self._packing[weight] = Instruction(PACK[tensor.type.name], Items(matrix.panels), values)


def _reading(tensor: Bytes, packing: Instruction) -> Instruction:
    """Return an instruction whose source is where it is in the tensor, with where it is in memory."""
    source = tensor.ctypes.data + int(packing.values["source"])
    return replace(packing, values={**packing.values, "source": source})


def _matrices(program: Program) -> list[Weight]:
    """Return the matrices of a program in the order they are used, each once."""
    found: list[Weight] = []
    for op in program.ops:
        if isinstance(op, Embed | MatMul):
            found.append(op.weight)
        elif isinstance(op, Experts):
            found += [*op.gate, *op.up, *op.down]
    return list(dict.fromkeys(found))


def _layout(tensor: Tensor) -> Layout:
    layout = LAYOUTS.get(tensor.type.name)
    if layout is None:
        raise UnsupportedModelError(
            f"tensor '{tensor.name}' is of type {tensor.type.name}, which has no kernels; "
            f"there are some for {', '.join(LAYOUTS)}"
        )
    return layout


def _vectors(program: Program) -> list[Weight]:
    """Return the norms and biases of a program, each once."""
    norms = [op.weight for op in program.ops if isinstance(op, RmsNorm)]
    biases = [op.bias for op in program.ops if isinstance(op, MatMul) and op.bias]
    return list(dict.fromkeys(norms + biases))


def _rows(weight: Weight, tensor: Tensor) -> int:
    """Return how many rows a weight has: those it names, or all of the tensor."""
    return weight.rows[1] - weight.rows[0] if weight.rows else math.prod(tensor.shape[:-1] or tensor.shape)


def _shape(weight: Weight, tensor: Tensor) -> tuple[int, int]:
    return _rows(weight, tensor), tensor.shape[-1]


def _padded_length(weight: Weight, tensor: Tensor) -> int:
    return -(-_rows(weight, tensor) // LANES) * LANES
