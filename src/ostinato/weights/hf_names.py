"""The architectures of safetensors folders: by what names they go there, and in GGUF.

One row an architecture. Sources: the tensor names of transformers' models; the tables of the `gguf` package.
Next file: hf_config.py, for the metadata.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

_TOP: Final = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER: Final = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_POST_NORMS: Final = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_GEMMA: Final = {"tie_word_embeddings": True, "head_dim": 256, "query_pre_attn_scalar": 256}
_IN_LAYER: Final = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
_EXPERT: Final = re.compile(r"(.+\.experts)\.(\d+)\.(\w+)")
_NO_WEIGHT: Final = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
"""Buffers that old checkpoints carry; they follow from the configuration."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A row: GGUF's name; `layer`: what names of a layer's tensors differ from most others'.

    `activation`: what config.json must say. `norms_from_one`: norm weights are stored less one, as Gemma's
    are. `defaults`: what config.json means where it does not say, and others of these would mean otherwise.
    """

    name: str
    layer: Mapping[str, str] = field(default_factory=dict)
    activation: str = "silu"
    norms_from_one: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)


ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "gemma2": Architecture("gemma2", _POST_NORMS, "gelu_pytorch_tanh", True, _GEMMA),
        "gemma3_text": Architecture(
            "gemma3", _POST_NORMS, "gelu_pytorch_tanh", True, {**_GEMMA, "rope_theta": 1e6}
        ),
        "granite": Architecture("granite"),
        "llama": Architecture("llama"),
        "mistral": Architecture("llama"),
        "mixtral": Architecture(
            "llama",
            {
                "block_sparse_moe.gate": "ffn_gate_inp",
                "block_sparse_moe.experts.w1": "ffn_gate",
                "block_sparse_moe.experts.w2": "ffn_down",
                "block_sparse_moe.experts.w3": "ffn_up",
            },
            defaults={"rope_theta": 1e6},
        ),
        "olmo2": Architecture("olmo2", _POST_NORMS),
        "olmo3": Architecture("olmo2", _POST_NORMS),
        "phi3": Architecture("phi3", {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}),
        "qwen2": Architecture("qwen2"),
        "qwen3": Architecture("qwen3", defaults={"head_dim": 128}),
        "qwen3_moe": Architecture(
            "qwen3moe",
            {
                "mlp.gate": "ffn_gate_inp",
                "mlp.experts.gate_proj": "ffn_gate",
                "mlp.experts.up_proj": "ffn_up",
                "mlp.experts.down_proj": "ffn_down",
            },
            defaults={"norm_topk_prob": False},
        ),
        "smollm3": Architecture("smollm3", defaults={"tie_word_embeddings": True, "rope_theta": 2e6}),
    }
)
"""`model_type` of a config.json -> the row of its architecture."""


def gguf_name(architecture: Architecture, name: str) -> str | None:
    """Return GGUF's name of a tensor: its own name if it has no other, None if it is no weight.

    The matrices of an expert are called `blk.0.ffn_up.3.weight`, as GGUF had them before it stacked them.
    """
    if _NO_WEIGHT.fullmatch(name):
        return None
    match = _IN_LAYER.fullmatch(name)
    if match is None:
        return _TOP.get(name, name)
    layer, part, kind = match.groups()
    expert = _EXPERT.fullmatch(part)
    if expert is not None:
        part = f"{expert[1]}.{expert[3]}"
    known = architecture.layer.get(part) or _LAYER.get(part)
    if known is None:
        return name
    return f"blk.{layer}.{known}.{expert[2]}.{kind}" if expert is not None else f"blk.{layer}.{known}.{kind}"
