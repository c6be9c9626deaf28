"""Make the tiny checkpoints of tests/data/tiny with transformers: random weights, and what they must answer.

    pip install torch transformers
    python scripts/tiny_checkpoints.py [NAME ...]

Each folder gets `config.json`, safetensors, and `expected.npz`: for each of a few prompts its token ids
(`ids_0`, …), some positions in it (`positions_0`) and the float32 logits there (`logits_0`). The longer
prompts reach beyond the sliding windows and beyond the contexts that rope scaling extends.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

FOLDER = Path(__file__).parents[1] / "tests" / "data" / "tiny"
VOCAB, ORIGINAL_CONTEXT, CONTEXT = 128, 32, 128
PROMPT_LENGTHS = (5, 24, 96)
"""Within every window of 8; beyond it, within the original context; beyond that."""
MAX_POSITIONS = 12
LARGEST_SHARD = "40KB"

SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "attn_implementation": "eager",
}


def rope(kind: str, base: float = 10000.0, **scaling: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": base, "rope_type": kind, **scaling}}


def extended(kind: str, **scaling: Any) -> dict[str, Any]:
    original = {"original_max_position_embeddings": ORIGINAL_CONTEXT}
    return rope(kind, factor=CONTEXT / ORIGINAL_CONTEXT, **scaling, **original)


CHECKPOINTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "bfloat16", extended("llama3", low_freq_factor=1.0, high_freq_factor=4.0)),
    "llama-linear": (
        "llama",
        "float16",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, **rope("linear", factor=4.0)},
    ),
    "mistral": ("mistral", "bfloat16", {"sliding_window": 8}),
    "mixtral": ("mixtral", "bfloat16", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": ("qwen2", "bfloat16", {"hidden_size": 64, "tie_word_embeddings": True, **extended("yarn")}),
    "qwen3": ("qwen3", "bfloat16", rope("default", 1e6)),
    "qwen3moe": (
        "qwen3_moe",
        "bfloat16",
        {
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "norm_topk_prob": False,
            "mlp_only_layers": [],
        },
    ),
    "gemma2": (
        "gemma2",
        "bfloat16",
        {
            "sliding_window": 8,
            "query_pre_attn_scalar": 24,
            "tie_word_embeddings": True,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 8.0,
        },
    ),
    "gemma3": (
        "gemma3_text",
        "bfloat16",
        {
            "num_hidden_layers": 4,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
            "query_pre_attn_scalar": 20,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
            },
        },
    ),
    "phi3": (
        "phi3",
        "bfloat16",
        {
            "hidden_size": 64,
            "original_max_position_embeddings": ORIGINAL_CONTEXT,
            **rope(
                "longrope",
                partial_rotary_factor=0.75,
                short_factor=[1.0, 1.1, 1.2, 1.5, 1.7, 2.0],
                long_factor=[1.0, 1.5, 2.0, 3.0, 5.0, 7.0],
                original_max_position_embeddings=ORIGINAL_CONTEXT,
            ),
        },
    ),
    "olmo2": ("olmo2", "bfloat16", {"hidden_size": 64, **rope("default", 5e5)}),
    "granite": (
        "granite",
        "bfloat16",
        {
            "hidden_size": 64,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.15,
            "logits_scaling": 2.5,
            "tie_word_embeddings": True,
        },
    ),
    "smollm3": (
        "smollm3",
        "bfloat16",
        {"num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 32, "tie_word_embeddings": True},
    ),
    "olmo3": (
        "olmo3",
        "bfloat16",
        {
            "hidden_size": 64,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": extended("yarn")["rope_parameters"],
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    ),
}
"""Name -> transformers' model type, the type of the stored weights, what differs from SHAPE."""


def make(name: str, seed: int) -> None:
    """Write one checkpoint."""
    model_type, dtype, changes = CHECKPOINTS[name]
    torch.manual_seed(seed)
    config = AutoConfig.for_model(model_type, **{**SHAPE, **changes})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    draw_weights(model)
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    model.to(getattr(torch, dtype)).save_pretrained(
        folder, max_shard_size=LARGEST_SHARD if name == "qwen3" else "1GB"
    )
    (folder / "generation_config.json").unlink(missing_ok=True)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    np.savez_compressed(folder / "expected.npz", **answers(model.eval()))


def draw_weights(model: torch.nn.Module) -> None:
    """Give every weight a size at which it matters, and none a value that a wrong layout would not betray."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_()
            if "norm" in name:
                weight.mul_(0.2).add_(0 if "gemma" in model.config.model_type else 1)
            elif name.endswith("bias"):
                weight.mul_(0.3)
            elif "embed" not in name:
                sharp = any(part in name for part in ("q_proj", "k_proj", "qkv_proj", "mlp.gate.weight"))
                weight.mul_((1.6 if sharp else 1.2) * weight.shape[-1] ** -0.5)


def answers(model: torch.nn.Module) -> dict[str, np.ndarray]:
    """Return prompts and their logits."""
    rng, found = np.random.default_rng(0), {}
    for index, length in enumerate(PROMPT_LENGTHS):
        ids = rng.integers(0, VOCAB, length)
        positions = np.unique(np.linspace(0, length - 1, MAX_POSITIONS).astype(int))
        with torch.no_grad():
            logits = model(torch.tensor(ids[None]), use_cache=False).logits[0].float().numpy()
        found |= {f"ids_{index}": ids, f"positions_{index}": positions, f"logits_{index}": logits[positions]}
    return found


if __name__ == "__main__":
    for each in sys.argv[1:] or CHECKPOINTS:
        make(each, seed=list(CHECKPOINTS).index(each))
        print(each, sum(path.stat().st_size for path in (FOLDER / each).iterdir()), "bytes")
