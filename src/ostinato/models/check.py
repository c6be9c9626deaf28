"""Check that a model file holds the weights of a program, all of them, in the right shapes, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from ostinato.errors import ModelFileError, UnsupportedModelError
from ostinato.models.rope import FACTOR_TENSORS
from ostinato.ops.program import Embed, Experts, MatMul, Program, RmsNorm, Weight
from ostinato.weights.tensors import ModelFile

Shape: TypeAlias = tuple[int, ...]

MAX_LISTED = 20
"""How many names an error lists; a whole layer's fit."""


def check_tensors(file: ModelFile, program: Program) -> None:
    """Raise where a needed tensor is missing or misshapen, or where the file holds one without a use.

    Raises:
        ModelFileError: missing or misshapen.
        UnsupportedModelError: without a use: running the model without it would give wrong answers.
    """
    shapes = weight_shapes(program)
    missing = [name for name in shapes if name not in file.tensors]
    unused = [name for name in file.tensors if name not in shapes and name not in FACTOR_TENSORS]
    without_use = f"{len(unused)} have no use in this architecture: {_listed(unused)}"
    if missing:
        also = f"; {without_use}" if unused else ""
        raise ModelFileError(f"{file.path}: {len(missing)} tensors are missing: {_listed(missing)}{also}")
    for name, expected in shapes.items():
        shape = file.tensors[name].shape
        if shape != expected:
            raise ModelFileError(f"{file.path}: tensor '{name}' has shape {shape}; expected {expected}")
    if unused:
        raise UnsupportedModelError(f"{file.path}: of the tensors, {without_use}")


def weight_shapes(program: Program) -> dict[str, Shape]:
    """Return the shape that each tensor of a program must have, slowest axis first."""
    shapes: dict[str, Shape] = {}
    for weight, shape in _uses(program):
        if weight.rows is not None and len(shape) == 2:
            shape = (max(weight.rows[1], *shapes.get(weight.name, (0,))[:1]), shape[1])
        shapes[weight.name] = shape
    return shapes


def _uses(program: Program) -> Iterator[tuple[Weight, Shape]]:
    """Yield each weight of a program and the shape its op wants."""
    widths = program.widths
    for op in program.ops:
        match op:
            case Embed(out, weight):
                yield weight, (program.vocab_size, widths[out])
            case RmsNorm(x, _, weight):
                yield weight, (widths[x] // op.heads,)
            case MatMul(x, out, weight):
                yield weight, (widths[out], widths[x])
                if op.bias is not None:
                    yield op.bias, (widths[out],)
            case Experts():
                hidden = _num_rows(op.gate[0])
                for matrices, columns in (
                    (op.gate, widths[op.x]),
                    (op.up, widths[op.x]),
                    (op.down, hidden),
                ):
                    yield from _expert_uses(matrices, columns)


def _expert_uses(matrices: tuple[Weight, ...], columns: int) -> Iterator[tuple[Weight, Shape]]:
    """A matrix an expert, or one tensor with an axis of experts."""
    shape: Shape = (_num_rows(matrices[0]), columns)
    if len({weight.name for weight in matrices}) == 1:
        yield matrices[0], (len(matrices), *shape)
    else:
        yield from ((weight, shape) for weight in matrices)


def _num_rows(weight: Weight) -> int:
    assert weight.rows is not None, f"the matrix of an expert names its rows: {weight}"
    return weight.rows[1] - weight.rows[0]


def _listed(names: list[str]) -> str:
    return ", ".join(names[:MAX_LISTED]) + (", …" if len(names) > MAX_LISTED else "")
