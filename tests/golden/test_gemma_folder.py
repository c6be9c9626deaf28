"""Gemma 3 as a GGUF file, and as a folder of safetensors made of it: the same model by both routes. (B66)

The folder is as its makers publish it: norm weights less the one that is added to them, other names, the two
bases of the rotation and the layers with a window in config.json.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from models import model_path
from numpy.typing import NDArray
from scoring import NUM_BLOCKS, golden_texts, log_softmax, logits_of

from ostinato.models import build_program
from ostinato.ops.cpu.executor import CpuExecutor
from ostinato.weights.opened import open_model
from ostinato.weights.quantize import FORMATS, quantized
from ostinato.weights.tensors import ModelFile

NUM_PROMPTS, PROMPT_LEN = 20, 50
KL_BOUND = 0.05
"""Mean divergence in nats of the folder, in floats or eight bits, from the file."""
CONFIG = {
    "model_type": "gemma3_text",
    "hidden_size": 640,
    "intermediate_size": 2048,
    "num_hidden_layers": 18,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "sliding_window": 512,
    "layer_types": ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(18)],
    "hidden_activation": "gelu_pytorch_tanh",
    "vocab_size": 262144,
}
NAMES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def published_name(name: str) -> str:
    """Return the name of one of GGUF's tensors in a folder."""
    layer, own = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", name).groups()  # type: ignore[union-attr]
    return f"model.{f'layers.{layer}.' if layer else ''}{NAMES[own]}.weight"


def write_folder(file: ModelFile, folder: Path) -> Path:
    """Write the model as published, in float16, norm weights in float32."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    header, end = {}, 0
    for tensor in file.tensors.values():
        kind, size = ("F32", 4) if len(tensor.shape) == 1 else ("F16", 2)
        begin, end = end, end + size * tensor.num_elements
        header[published_name(tensor.name)] = {
            "dtype": kind,
            "shape": tensor.shape,
            "data_offsets": [begin, end],
        }
    raw = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as out:
        out.write(struct.pack("<Q", len(raw)) + raw)
        for tensor in file.tensors.values():
            numbers = tensor.dequantize()
            out.write((numbers - 1 if numbers.ndim == 1 else numbers.astype(np.float16)).tobytes())
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ModelFile, ModelFile]]:
    """The file, and the folder made of it."""
    path = model_path("gemma3-270m")
    if path is None:
        pytest.skip("gemma3-270m is not on this machine: pull it, or set OSTINATO_TEST_MODELS")
    with open_model(path) as file:
        folder = write_folder(file, tmp_path_factory.mktemp("gemma"))
        with open_model(folder) as made:
            (folder / "model.safetensors").unlink()
            yield file, made


def test_norms_have_their_one_once(files: tuple[ModelFile, ModelFile]) -> None:
    file, folder = files
    assert file.tensors.keys() == folder.tensors.keys()
    for name, tensor in file.tensors.items():
        if name.endswith("norm.weight"):
            np.testing.assert_allclose(folder.tensors[name].dequantize(), tensor.dequantize(), rtol=1e-5)


def last_logprobs(file: ModelFile, prompts: list[list[int]]) -> list[NDArray[np.float64]]:
    """Return the log-probabilities of what follows each prompt."""
    executor = CpuExecutor(build_program(file), file.tensors, num_blocks=NUM_BLOCKS, threads=2)
    found = [log_softmax(next(logits_of(executor, prompt))[-1]) for prompt in prompts]
    executor.close()
    return found


def test_both_routes_give_one_distribution(files: tuple[ModelFile, ModelFile]) -> None:
    ids = [token_id for text in golden_texts("gemma3-270m").values() for token_id in text["ids"]]
    starts = np.linspace(0, len(ids) - PROMPT_LEN, NUM_PROMPTS).astype(int)
    prompts = [ids[start : start + PROMPT_LEN] for start in starts]
    file, folder = files
    exact = last_logprobs(file, prompts)
    for other in (folder, quantized(folder, FORMATS["q8_0"])):
        got = last_logprobs(other, prompts)
        divergence = np.mean([np.sum(np.exp(p) * (p - q)) for p, q in zip(exact, got, strict=True)])
        print(f"mean divergence {divergence:.4f}")
        assert divergence < KL_BOUND
        assert [q.argmax() for q in got] == [p.argmax() for p in exact]
