"""From a model file to a Program: one small file per architecture, and the table that chooses among them."""

from __future__ import annotations

from collections.abc import Callable

from ostinato.errors import UnsupportedModelError
from ostinato.models import gemma2, gemma3, granite, llama, olmo2, phi3, qwen2, qwen3, smollm3
from ostinato.models.blocks import Blueprint
from ostinato.models.check import check_tensors
from ostinato.models.keys import architecture
from ostinato.ops.program import Program
from ostinato.weights.tensors import ModelFile

ARCHITECTURES: dict[str, Callable[[Blueprint], Program]] = {
    "gemma2": gemma2.build,
    "gemma3": gemma3.build,
    "granite": granite.build,
    "llama": llama.build,
    "olmo2": olmo2.build,
    "phi3": phi3.build,
    "qwen2": qwen2.build,
    "qwen3": qwen3.build,
    "qwen3moe": qwen3.build_moe,
    "smollm3": smollm3.build,
}
"""GGUF's name of an architecture -> the function that builds its program."""


def build_program(file: ModelFile, context_length: int | None = None) -> Program:
    """Return the program of the model in `file`, every weight it names present and of the right shape.

    Args:
        context_length: the longest context that will be in use, in tokens, by default what the model was
        trained for; some models rotate otherwise where it is longer than they were first made for.

    Raises:
        UnsupportedModelError: an architecture that is not built, or tensors the program would ignore.
        ModelFileError: metadata or tensors that are missing or do not fit together.
    """
    name = architecture(file)
    if name not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise UnsupportedModelError(
            f"{file.path}: architecture '{name}' is not supported; these are: {known} (llama has Mistral and "
            "Mixtral, too)"
        )
    program = ARCHITECTURES[name](Blueprint.of(file, context_length))
    check_tensors(file, program)
    return program
