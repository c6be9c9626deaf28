"""Texts with golden log-probabilities, and how an executor's logits for them are scored."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.ops.batch import Executor, ForwardBatch

CHUNK, NUM_BLOCKS = 256, 64
BLOCKS = np.random.default_rng(0).permutation(NUM_BLOCKS).tolist()

LOGPROB_BOUND = 2e-3
"""Of every listed log-probability: float32 sums in another order, and four decimals in the data."""

NLL_BOUND = 1e-3
"""Of the mean negative log-likelihood of a text."""


def golden_texts(model: str) -> dict[str, dict[str, Any]]:
    """Return the golden data of a built-in model, text by text."""
    path = Path(__file__).parents[1] / "data" / f"logits_{model}.json"
    texts: dict[str, dict[str, Any]] = json.loads(path.read_text())
    return texts


def logits_of(executor: Executor, ids: list[int], chunk: int = CHUNK) -> Iterator[NDArray[np.float32]]:
    """Run a text, and yield the logits of all its tokens, a chunk at a time."""
    for start in range(0, len(ids), chunk):
        part = ids[start : start + chunk]
        yield executor.forward(ForwardBatch.single(part, start, BLOCKS, list(range(len(part)))))


def logits_at(executor: Executor, ids: list[int], positions: list[int]) -> NDArray[np.float32]:
    """Run a text, and return the logits at some of its positions, which ascend."""
    assert positions == sorted(set(positions))
    found = []
    for start in range(0, len(ids), CHUNK):
        part = ids[start : start + CHUNK]
        rows = [position - start for position in positions if start <= position < start + len(part)]
        found.append(executor.forward(ForwardBatch.single(part, start, BLOCKS, rows)).copy())
    return np.concatenate(found)


def continuation(executor: Executor, ids: list[int], token_id: int, length: int) -> list[int]:
    """Return `length` tokens, each the likeliest after those before it; the first is given."""
    written = [token_id]
    while len(written) < length:
        position = len(ids) + len(written) - 1
        written.append(int(executor.forward(ForwardBatch.single(written[-1:], position, BLOCKS))[0].argmax()))
    return written


def log_softmax(x: NDArray[np.float32]) -> NDArray[np.float64]:
    y = x.astype(np.float64)
    y -= y.max(axis=-1, keepdims=True)
    y -= np.log(np.exp(y).sum(axis=-1, keepdims=True))
    return y


def coarse_divergence(listed: Sequence[tuple[int, float]], q: NDArray[np.float64]) -> float:
    """Return how far log-probabilities q diverge from listed ones in nats, all other tokens taken as one.

    Never more than the divergence of all tokens is, but for the rounding of what is listed.
    """
    ids, p = [token_id for token_id, _ in listed], np.array([logprob for _, logprob in listed])
    others = [max(1 - float(np.exp(x).sum()), 1e-9) for x in (p, q[ids])]
    rest = others[0] * np.log(others[0] / others[1])
    return float(np.sum(np.exp(p) * (p - q[ids])) + rest)
