"""A real model in floats, and quantised while loading: how much worse it predicts a text. (B67)"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from models import model_path
from tiny import TYPES, TinyFile

from ostinato.models import build_program
from ostinato.ops.batch import ForwardBatch
from ostinato.ops.cpu.executor import CpuExecutor
from ostinato.weights.gguf import open_gguf
from ostinato.weights.quantize import FORMATS, quantized
from ostinato.weights.tensors import ModelFile, Tensor

DATA = Path(__file__).parents[1] / "data" / "logits_smollm2.json"
PROSE = json.loads(DATA.read_text())["prose"]
IDS: list[int] = PROSE["ids"]

PERPLEXITY_BOUND = {"q8_0": 1.05, "q4_1": 1.3}
"""Of the quantised model, over that of the same model in float16."""


@pytest.fixture(scope="module")
def floats() -> ModelFile:
    """SmolLM2 with float16 matrices; it has no output matrix of its own."""
    path = model_path("smollm2")
    if path is None:
        pytest.skip("smollm2 is not on this machine: pull it, or set OSTINATO_TEST_MODELS")
    file = open_gguf(path)
    assert "output.weight" not in file.tensors
    return TinyFile(file.metadata, {name: in_float16(tensor) for name, tensor in file.tensors.items()}, path)


def in_float16(tensor: Tensor) -> Tensor:
    if len(tensor.shape) == 1:
        return tensor
    data = tensor.dequantize().astype(np.float16).view(np.uint8).reshape(-1)
    return replace(tensor, type=TYPES["F16"], data=data)


def nll(file: ModelFile) -> float:
    """Return the mean negative log-likelihood of the text."""
    executor = CpuExecutor(build_program(file), file.tensors, num_blocks=len(IDS) // 32 + 1, threads=2)
    blocks, likelihoods = list(range(executor.num_blocks)), list[float]()
    for start in range(0, len(IDS), 256):
        part = IDS[start : start + 256]
        x = executor.forward(ForwardBatch.single(part, start, blocks, list(range(len(part))))).astype(
            np.float64
        )
        x -= np.log(np.exp(x).sum(axis=-1, keepdims=True))
        following = IDS[start + 1 : start + 257]
        likelihoods += x[np.arange(len(following)), following].tolist()
    executor.close()
    return -float(np.mean(likelihoods))


def test_perplexity(floats: ModelFile) -> None:
    in_floats = nll(floats)
    ratios = {name: np.exp(nll(quantized(floats, FORMATS[name])) - in_floats) for name in FORMATS}
    print(f"perplexity {np.exp(in_floats):.3f} in float16, and times {ratios}")
    assert abs(in_floats - PROSE["nll"]) < 2e-3
    for name, ratio in ratios.items():
        assert 0.9 < ratio < PERPLEXITY_BOUND[name], name
