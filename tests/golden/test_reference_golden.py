"""Real models of other architectures: the reference executor against another implementation in float32, the
fast one against it.

Of the larger model all but one text are left out, since they take minutes; `OSTINATO_TEST_LONG=1` asks for
them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

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
from ostinato.ops.reference import ReferenceExecutor
from ostinato.weights.opened import open_model

MODELS = ("gemma3-270m", "qwen2.5-coder-1.5b")
SLOW = {("qwen2.5-coder-1.5b", text) for text in ("code", "list", "long")} | {("gemma3-270m", "long")}

KL_BOUND = 0.0057
"""Mean divergence of the fast executor from the reference over a text, in nats."""


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Iterator[tuple[str, ReferenceExecutor, CpuExecutor]]:
    path = model_path(request.param)
    if path is None:
        pytest.skip(f"{request.param} is not on this machine: pull it, or set OSTINATO_TEST_MODELS")
    with open_model(path) as file:
        program = build_program(file)
        reference = ReferenceExecutor(program, file.tensors, num_blocks=NUM_BLOCKS)
        cpu = CpuExecutor(program, file.tensors, num_blocks=NUM_BLOCKS, threads=2)
        yield request.param, reference, cpu
        cpu.close()


@pytest.mark.parametrize("text", golden_texts(MODELS[0]))
def test_log_probabilities_and_continuation(
    model: tuple[str, ReferenceExecutor, CpuExecutor], text: str
) -> None:
    name, executor, cpu = model
    if (name, text) in SLOW and not os.environ.get("OSTINATO_TEST_LONG"):
        pytest.skip("takes minutes: set OSTINATO_TEST_LONG to run it")
    golden = golden_texts(name)[text]
    ids, listed = golden["ids"], dict(zip(golden["positions"], golden["top10"], strict=True))
    errors, likelihoods, divergences = list[float](), list[float](), list[float]()
    start = 0
    for logits, fast in zip(logits_of(executor, ids), logits_of(cpu, ids), strict=True):
        p, q = log_softmax(logits), log_softmax(fast)
        divergences += np.sum(np.exp(p) * (p - q), axis=-1).tolist()
        for position, row in enumerate(p, start):
            errors += [abs(float(row[token_id]) - want) for token_id, want in listed.get(position, [])]
            likelihoods += [float(row[token_id]) for token_id in ids[position + 1 : position + 2]]
        start, first = start + len(logits), int(logits[-1].argmax())
    assert len(errors) == 10 * len(golden["positions"])
    assert max(errors) <= LOGPROB_BOUND
    assert abs(-float(np.mean(likelihoods)) - golden["nll"]) <= NLL_BOUND
    assert np.mean(divergences) <= KL_BOUND
    assert continuation(executor, ids, first, len(golden["greedy24"])) == golden["greedy24"]
