"""A real model: the reference executor against another implementation in float32, the fast one against it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from models import model_path
from scoring import (
    LOGPROB_BOUND,
    NLL_BOUND,
    NUM_BLOCKS,
    continuation,
    golden_texts,
    log_softmax,
    logits_of,
)

from ostinato.models import build_program
from ostinato.ops.cpu.executor import CpuExecutor
from ostinato.ops.program import Program
from ostinato.ops.reference import ReferenceExecutor
from ostinato.weights.gguf import open_gguf
from ostinato.weights.tensors import ModelFile

GOLDEN = golden_texts("smollm2")

KL_BOUND = 0.0035
"""Mean divergence of the fast executor from the reference in nats: of positions in a text, then of texts."""


@dataclass(frozen=True)
class Model:
    """The model's file, its program and both executors."""

    file: ModelFile
    program: Program
    reference: ReferenceExecutor
    cpu: CpuExecutor


@dataclass(frozen=True)
class Measured:
    """What the executors make of a text. `listed_error`: the largest of a listed log-probability."""

    listed_error: float
    num_listed: int
    nll: float
    greedy: list[int]
    divergences: list[float]


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    path = model_path("smollm2")
    if path is None:
        pytest.skip("smollm2 is not on this machine: pull it, or set OSTINATO_TEST_MODELS")
    file = open_gguf(path)
    program = build_program(file)
    reference = ReferenceExecutor(program, file.tensors, num_blocks=NUM_BLOCKS)
    cpu = CpuExecutor(program, file.tensors, num_blocks=NUM_BLOCKS, threads=2)
    yield Model(file, program, reference, cpu)
    cpu.close()


@pytest.fixture(scope="module")
def measured(model: Model) -> dict[str, Measured]:
    return {text: measure(model, golden) for text, golden in GOLDEN.items()}


def measure(model: Model, golden: dict[str, Any]) -> Measured:
    """Run a text through both executors, and let the reference write on."""
    ids, listed = golden["ids"], dict(zip(golden["positions"], golden["top10"], strict=True))
    errors, likelihoods, divergences = list[float](), list[float](), list[float]()
    for exact, fast in zip(logits_of(model.reference, ids), logits_of(model.cpu, ids), strict=True):
        p, q = log_softmax(exact), log_softmax(fast)
        start = len(divergences)
        divergences += np.sum(np.exp(p) * (p - q), axis=-1).tolist()
        for position, row in enumerate(p, start):
            errors += [abs(float(row[token_id]) - want) for token_id, want in listed.get(position, [])]
            likelihoods += [float(row[token_id]) for token_id in ids[position + 1 : position + 2]]
        last = exact[-1]
    greedy = continuation(model.reference, ids, int(last.argmax()), len(golden["greedy24"]))
    return Measured(max(errors), len(errors), -float(np.mean(likelihoods)), greedy, divergences)


@pytest.mark.parametrize("text", GOLDEN)
def test_log_probabilities(measured: dict[str, Measured], text: str) -> None:
    assert measured[text].num_listed == 10 * len(GOLDEN[text]["positions"])
    assert measured[text].listed_error <= LOGPROB_BOUND
    assert abs(measured[text].nll - GOLDEN[text]["nll"]) <= NLL_BOUND


@pytest.mark.parametrize("text", GOLDEN)
def test_greedy_continuation(measured: dict[str, Measured], text: str) -> None:
    assert measured[text].greedy == GOLDEN[text]["greedy24"]


def test_divergence(measured: dict[str, Measured]) -> None:
    means = {text: float(np.mean(m.divergences)) for text, m in measured.items()}
    by_position = float(np.mean(np.concatenate([m.divergences for m in measured.values()])))
    print(f"mean divergence {np.mean([*means.values()]):.5f}, of all positions {by_position:.5f}, {means}")
    assert np.mean([*means.values()]) <= KL_BOUND
    assert all(divergence > -1e-9 for m in measured.values() for divergence in m.divergences)


def test_equal_bits(model: Model) -> None:
    """Whatever the chunks and the number of threads."""
    ids = GOLDEN["prose"]["ids"]
    (whole,) = (logits.copy() for logits in logits_of(model.cpu, ids))
    alone = CpuExecutor(model.program, model.file.tensors, num_blocks=NUM_BLOCKS, threads=1)
    for executor in (model.cpu, alone):
        for chunk in (1, 7, 64, len(ids)):
            parts = np.concatenate([logits.copy() for logits in logits_of(executor, ids, chunk)])
            assert parts.tobytes() == whole.tobytes(), (executor.threads, chunk)
    alone.close()
