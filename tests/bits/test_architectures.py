"""Every architecture on the CPU: close to the reference, and the same bits in any chunks on any threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
from fakes.checkpoints import NAMES, NUM_BLOCKS, TINY, answer, prompts, reference

from ostinato.models import build_program
from ostinato.ops.cpu.executor import CpuExecutor
from ostinato.weights.opened import open_model
from ostinato.weights.quantize import format_named, quantized
from ostinato.weights.tensors import ModelFile

FLOAT_BOUND = 3e-3
"""Of logits relative to the largest, where only keys and values are rounded, to float16."""

INT8_BOUND = 0.12
"""The same where weights are Q8_0 and activations int8 as well: random weights make much of little errors."""


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def files(name: str) -> Iterator[tuple[ModelFile, float]]:
    """The checkpoint as it is, and quantised while loading; with the error that its logits may have."""
    with open_model(TINY / name) as file:
        yield file, FLOAT_BOUND
        yield quantized(file, format_named("q8_0")), INT8_BOUND


def test_logits_and_their_bits(name: str) -> None:
    for file, bound in files(name):
        for prompt in prompts(name):
            length = len(prompt.ids)
            want = answer(reference(file, length), prompt)
            program = build_program(file, length)
            answers = []
            for threads, chunk in ((2, 40), (1, 40), (2, 1), (1, 7), (2, length)):
                with closing(
                    CpuExecutor(program, file.tensors, num_blocks=NUM_BLOCKS, threads=threads)
                ) as executor:
                    answers.append(answer(executor, prompt, chunk))
            assert np.abs(answers[0] - want).max() <= bound * np.abs(want).max(), (length, bound)
            assert all(a.tobytes() == answers[0].tobytes() for a in answers), (length, bound)
