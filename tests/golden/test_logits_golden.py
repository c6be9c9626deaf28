"""Real models: the reference executor against another implementation in float32, the fast one against it.

What the reference takes minutes for is left out, unless `OSTINATO_TEST_LONG=1` asks for it; there the fast
executor is held against the golden log-probabilities alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from models import model_path
from scoring import (
    LOGPROB_BOUND,
    NLL_BOUND,
    NUM_BLOCKS,
    coarse_divergence,
    continuation,
    golden_texts,
    log_softmax,
    logits_at,
    logits_of,
)

from ostinato.models import build_program
from ostinato.ops.cpu.executor import CpuExecutor
from ostinato.ops.program import Program
from ostinato.ops.reference import ReferenceExecutor
from ostinato.weights.opened import open_model
from ostinato.weights.tensors import ModelFile

KL_BOUNDS = {"smollm2": 0.0035, "gemma3-270m": 0.0057, "qwen2.5-coder-1.5b": 0.0057}
"""Mean divergence of the fast executor from the reference in nats: of positions in a text, then of texts."""

TEXTS = tuple(golden_texts("smollm2"))
SLOW = {("qwen2.5-coder-1.5b", text) for text in ("code", "list", "long")}


def is_run(name: str, text: str) -> bool:
    """Return whether the reference runs this text of a model."""
    return (name, text) not in SLOW or bool(os.environ.get("OSTINATO_TEST_LONG"))


class Model:
    """A model's file, its program and both executors."""

    def __init__(self, name: str, file: ModelFile) -> None:
        self.name, self.file, self.texts = name, file, golden_texts(name)
        self.program: Program = build_program(file)
        self.reference = ReferenceExecutor(self.program, file.tensors, num_blocks=NUM_BLOCKS)
        self.cpu = CpuExecutor(self.program, file.tensors, num_blocks=NUM_BLOCKS, threads=2)
        self.measured = cache(self._measured)

    def _measured(self, text: str) -> Measured:
        if not is_run(self.name, text):
            pytest.skip("takes minutes: set OSTINATO_TEST_LONG to run it")
        return measure(self, self.texts[text])


@dataclass(frozen=True)
class Measured:
    """What the executors make of a text. `listed_error`: the largest of a listed log-probability."""

    listed_error: float
    num_listed: int
    nll: float
    greedy: list[int]
    divergences: list[float]


@pytest.fixture(scope="module", params=KL_BOUNDS)
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    path = model_path(request.param)
    if path is None:
        pytest.skip(f"{request.param} is not on this machine: pull it, or set OSTINATO_TEST_MODELS")
    with open_model(path) as file:
        made = Model(request.param, file)
        with closing(made.cpu):
            yield made


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


@pytest.mark.parametrize("text", TEXTS)
def test_log_probabilities(model: Model, text: str) -> None:
    golden, measured = model.texts[text], model.measured(text)
    assert measured.num_listed == 10 * len(golden["positions"])
    assert measured.listed_error <= LOGPROB_BOUND
    assert abs(measured.nll - golden["nll"]) <= NLL_BOUND


@pytest.mark.parametrize("text", TEXTS)
def test_greedy_continuation(model: Model, text: str) -> None:
    assert model.measured(text).greedy == model.texts[text]["greedy24"]


def test_divergence(model: Model) -> None:
    """Of all positions, from the reference."""
    divergences = {t: model.measured(t).divergences for t in TEXTS if is_run(model.name, t)}
    means = {text: float(np.mean(values)) for text, values in divergences.items()}
    print(f"{model.name}: mean divergence {np.mean([*means.values()]):.5f}, {means}")
    assert np.mean([*means.values()]) <= KL_BOUNDS[model.name]
    assert all(value > -1e-9 for values in divergences.values() for value in values)


def test_divergence_from_the_golden_data(model: Model) -> None:
    """Of all texts, from what is listed of the other implementation: ten tokens at some positions."""
    means = {}
    for text, golden in model.texts.items():
        q = log_softmax(logits_at(model.cpu, golden["ids"], golden["positions"]))
        values = [coarse_divergence(*pair) for pair in zip(golden["top10"], q, strict=True)]
        means[text] = float(np.mean(values))
    print(f"{model.name}: mean coarse divergence {np.mean([*means.values()]):.5f}, {means}")
    assert np.mean([*means.values()]) <= KL_BOUNDS[model.name]


def test_tokens_taken_as_one_diverge_no_more_than_all() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        exact = rng.normal(scale=3, size=300).astype(np.float32)
        near = exact + rng.normal(scale=0.1, size=300).astype(np.float32)
        p, q = log_softmax(exact), log_softmax(near)
        listed = [(int(i), float(p[i])) for i in np.argsort(-p)[:10]]
        assert 0 < coarse_divergence(listed, q) <= np.sum(np.exp(p) * (p - q))


def test_equal_bits(model: Model) -> None:
    """Whatever the chunks and the number of threads."""
    ids = model.texts["prose"]["ids"]
    (whole,) = (logits.copy() for logits in logits_of(model.cpu, ids))
    alone = CpuExecutor(model.program, model.file.tensors, num_blocks=NUM_BLOCKS, threads=1)
    for executor, chunk in ((model.cpu, 1), (model.cpu, 64), (alone, 7), (alone, len(ids))):
        parts = np.concatenate([logits.copy() for logits in logits_of(executor, ids, chunk)])
        assert parts.tobytes() == whole.tobytes(), (executor.threads, chunk)
    alone.close()
