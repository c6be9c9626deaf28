"""Real models in floats, and quantised while loading: how much worse they predict a text. (B67)"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from models import model_path
from scoring import CHUNK, NUM_BLOCKS, golden_texts, log_softmax, logits_of
from tiny import TYPES, TinyFile

from ostinato.models import build_program
from ostinato.ops.cpu.executor import CpuExecutor
from ostinato.weights.gguf import open_gguf
from ostinato.weights.quantize import FORMATS, quantized
from ostinato.weights.tensors import ModelFile, Tensor

MODELS = ("smollm2", "gemma3-270m", "qwen2.5-coder-1.5b")
LARGE = "qwen2.5-coder-1.5b"
FLOAT_BOUND = 2e-3
"""Of the mean negative log-likelihood in float16, from that in float32."""
PERPLEXITY_BOUND = {"q8_0": 1.05, "q4_1": 1.3}
"""Of the quantised model, over that of the same model in float16."""


def floats(name: str) -> ModelFile:
    """Return a model with float16 matrices, each decoded by its own type, fallback types included."""
    if name == LARGE and not os.environ.get("OSTINATO_TEST_LONG"):
        pytest.skip("takes minutes: set OSTINATO_TEST_LONG to run it")
    path = model_path(name)
    if path is None:
        pytest.skip(f"{name} is not on this machine: pull it, or set OSTINATO_TEST_MODELS")
    file = open_gguf(path)
    return TinyFile(file.metadata, {name: in_float16(tensor) for name, tensor in file.tensors.items()}, path)


def in_float16(tensor: Tensor) -> Tensor:
    if len(tensor.shape) == 1:
        return tensor
    data = tensor.dequantize().astype(np.float16).view(np.uint8).reshape(-1)
    return replace(tensor, type=TYPES["F16"], data=data)


def nll(file: ModelFile, ids: list[int]) -> float:
    """Return the mean negative log-likelihood of a text."""
    executor = CpuExecutor(build_program(file), file.tensors, num_blocks=NUM_BLOCKS, threads=2)
    likelihoods = list[float]()
    for start, logits in zip(range(0, len(ids), CHUNK), logits_of(executor, ids), strict=True):
        following = ids[start + 1 : start + CHUNK + 1]
        likelihoods += log_softmax(logits)[np.arange(len(following)), following].tolist()
    executor.close()
    return -float(np.mean(likelihoods))


@pytest.mark.parametrize("name", MODELS)
def test_perplexity(name: str) -> None:
    """The small models have no output matrix: their embedding serves as one, quantised or not."""
    prose, file = golden_texts(name)["prose"], floats(name)
    assert ("output.weight" in file.tensors) == (name == LARGE)
    in_floats = nll(file, prose["ids"])
    quantised = {to: nll(quantized(file, FORMATS[to]), prose["ids"]) for to in FORMATS}
    ratios = {to: np.exp(value - in_floats) for to, value in quantised.items()}
    print(f"perplexity {np.exp(in_floats):.3f} in float16, and times {ratios}")
    assert abs(in_floats - prose["nll"]) < FLOAT_BOUND
    for to, ratio in ratios.items():
        assert 0.9 < ratio < PERPLEXITY_BOUND[to], to
