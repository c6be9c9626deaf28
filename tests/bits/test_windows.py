"""Models with windows and soft-caps, further than a segment of attention reaches: equal bits in any chunks.

Single tokens beyond the first segment have their segments apart, and of most none but the last is seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from fakes.checkpoints import TINY
from numpy.typing import NDArray

from ostinato.models import build_program
from ostinato.ops.batch import BLOCK_TOKENS, Executor, ForwardBatch
from ostinato.ops.cpu.executor import CpuExecutor
from ostinato.ops.cpu.kernels.attention import SEGMENT
from ostinato.ops.program import Attention, Program
from ostinato.ops.reference import ReferenceExecutor
from ostinato.weights.opened import open_model

FLOAT_BOUND = 3e-3
"""Of logits relative to the largest, where only keys and values are rounded, to float16."""

WINDOWS = (8, 100, SEGMENT, 300)
LENGTH = 2 * SEGMENT + 40
NUM_BLOCKS = -(-LENGTH // BLOCK_TOKENS)
NAMES = ("gemma2", "gemma3", "mistral", "olmo3")

SCHEDULES = ([LENGTH], [7] * (LENGTH // 7), [SEGMENT - 3, *[1] * 12, 200, *[1] * 60])
"""Tokens of each step; the last of them is filled up."""


def with_window(program: Program, window: int) -> Program:
    """Return the program with windows of another length where it has windows."""
    ops = [
        replace(op, window=window) if isinstance(op, Attention) and op.window else op for op in program.ops
    ]
    assert tuple(ops) != program.ops or window == 8
    return replace(program, ops=tuple(ops))


def logits_of(executor: Executor, ids: list[int], sizes: Sequence[int]) -> NDArray[np.float32]:
    found, blocks, start = [], np.random.default_rng(3).permutation(NUM_BLOCKS).tolist(), 0
    for size in [*sizes, len(ids) - sum(sizes)]:
        if part := ids[start : start + size]:
            batch = ForwardBatch.single(part, start, blocks, list(range(len(part))))
            found.append(executor.forward(batch).copy())
        start += size
    return np.concatenate(found)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", NAMES)
def test_windows(name: str, window: int) -> None:
    with open_model(TINY / name) as file:
        program = with_window(build_program(file, LENGTH), window)
        ids = np.random.default_rng(window).integers(3, program.vocab_size, LENGTH).tolist()
        reference = ReferenceExecutor(program, file.tensors, num_blocks=NUM_BLOCKS)
        want, answers = logits_of(reference, ids, [LENGTH]), []
        for sizes, threads in zip(SCHEDULES, (2, 1, 2), strict=True):
            made = CpuExecutor(
                program, file.tensors, num_blocks=NUM_BLOCKS, threads=threads, max_batch_tokens=LENGTH
            )
            with closing(made) as executor:
                answers.append(logits_of(executor, ids, sizes))
    assert np.abs(answers[0] - want).max() <= FLOAT_BOUND * np.abs(want).max()
    assert all(answer.tobytes() == answers[0].tobytes() for answer in answers)
