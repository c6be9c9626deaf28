"""The tiny checkpoints of tests/data/tiny: what they must answer, and the reference's answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ostinato.models import build_program
from ostinato.ops.batch import Executor, ForwardBatch
from ostinato.ops.reference import ReferenceExecutor
from ostinato.weights.tensors import ModelFile

TINY = Path(__file__).parents[1] / "data" / "tiny"
NAMES = sorted(path.name for path in TINY.iterdir())
NUM_BLOCKS = 4


@dataclass(frozen=True)
class Prompt:
    """Token ids, and the logits expected at some positions."""

    ids: list[int]
    positions: list[int]
    logits: NDArray[np.float32]


def prompts(name: str) -> Iterator[Prompt]:
    with np.load(TINY / name / "expected.npz") as held:
        for index in range(len(held.files) // 3):
            ids, positions = (held[f"{key}_{index}"].tolist() for key in ("ids", "positions"))
            yield Prompt(ids, positions, held[f"logits_{index}"])


def reference(file: ModelFile, length: int) -> ReferenceExecutor:
    """Return the oracle of a model for contexts of this length."""
    return ReferenceExecutor(build_program(file, length), file.tensors, num_blocks=NUM_BLOCKS)


def answer(executor: Executor, prompt: Prompt, chunk: int = 40) -> NDArray[np.float32]:
    """Return the logits at the prompt's positions, run a chunk at a time."""
    found, blocks = [], [2, 0, 3, 1]
    for start in range(0, len(prompt.ids), chunk):
        part = prompt.ids[start : start + chunk]
        rows = [position - start for position in prompt.positions if start <= position < start + len(part)]
        found.append(executor.forward(ForwardBatch.single(part, start, blocks, rows)).copy())
    return np.concatenate(found)
