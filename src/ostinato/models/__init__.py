"""From a model file to a Program: one small file per architecture, and the table that chooses among them."""

from __future__ import annotations

from collections.abc import Callable

from ostinato.errors import UnsupportedModelError
from ostinato.models import llama
from ostinato.models.config import architecture, check_tensors
from ostinato.ops.program import Embed, MatMul, Program, RmsNorm
from ostinato.weights.tensors import ModelFile

ARCHITECTURES: dict[str, Callable[[ModelFile], Program]] = {"llama": llama.build}
"""GGUF's name of an architecture -> the function that builds its program."""


def build_program(file: ModelFile) -> Program:
    """Return the program of the model in `file`, every weight it names present and of the right shape.

    Raises:
        UnsupportedModelError: an architecture that is not built, or tensors the program would ignore.
        ModelFileError: metadata or tensors that are missing or do not fit together.
    """
    name = architecture(file)
    if name not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise UnsupportedModelError(
            f"{file.path}: architecture '{name}' is not supported; these are: {known}"
        )
    program = ARCHITECTURES[name](file)
    check_tensors(file, weight_shapes(program))
    return program


def weight_shapes(program: Program) -> dict[str, tuple[int, int] | int]:
    """Return the shape each weight must have: (rows, columns) of a matrix, the length of a vector."""
    widths, shapes = program.widths, dict[str, tuple[int, int] | int]()
    for op in program.ops:
        match op:
            case Embed(out, weight):
                shapes[weight.name] = (program.vocab_size, widths[out])
            case RmsNorm(x, _, weight):
                shapes[weight.name] = widths[x]
            case MatMul(x, out, weight):
                shapes[weight.name] = (widths[out], widths[x])
    return shapes
