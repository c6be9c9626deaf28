"""The llama architecture: Llama 1 to 3, SmolLM 1 and 2, and whatever else names itself `llama` in GGUF."""

from __future__ import annotations

from ostinato.models.config import TransformerConfig
from ostinato.models.rope import rope_frequencies
from ostinato.ops.program import (
    LOGITS,
    Attention,
    Embed,
    GatedUnit,
    MatMul,
    Op,
    Program,
    RmsNorm,
    Rope,
    StoreKV,
    TakeRows,
    Weight,
)
from ostinato.weights.tensors import ModelFile


def build(file: ModelFile) -> Program:
    """Return the program of a llama model."""
    config = TransformerConfig.from_file(file)
    ops: list[Op] = [Embed("x", Weight("token_embd.weight"))]
    for layer in range(config.num_layers):
        ops += _layer(config, layer)
    ops += [
        TakeRows("x", "last"),
        RmsNorm("last", "last_normed", Weight("output_norm.weight"), config.norm_eps),
        MatMul("last_normed", LOGITS, Weight(config.output_weight)),
    ]
    return config.program(ops)


def _layer(config: TransformerConfig, layer: int) -> list[Op]:
    def weight(name: str, paired_heads: int = 0) -> Weight:
        return Weight(f"blk.{layer}.{name}.weight", paired_heads)

    heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
    frequencies = rope_frequencies(config.rope_base, head_dim)
    return [
        RmsNorm("x", "normed", weight("attn_norm"), config.norm_eps),
        MatMul("normed", "q", weight("attn_q", paired_heads=heads)),
        MatMul("normed", "k", weight("attn_k", paired_heads=kv_heads)),
        MatMul("normed", "v", weight("attn_v")),
        Rope("q", heads, head_dim, frequencies),
        Rope("k", kv_heads, head_dim, frequencies),
        StoreKV("k", "v", layer),
        Attention("q", "attended", layer, heads, kv_heads, head_dim, head_dim**-0.5),
        MatMul("attended", "x", weight("attn_output"), accumulate=True),
        RmsNorm("x", "normed", weight("ffn_norm"), config.norm_eps),
        MatMul("normed", "gate", weight("ffn_gate")),
        MatMul("normed", "up", weight("ffn_up")),
        GatedUnit("gate", "up", "hidden"),
        MatMul("hidden", "x", weight("ffn_down"), accumulate=True),
    ]
