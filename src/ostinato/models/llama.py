"""The llama architecture: Llama 1 to 3, SmolLM 1 and 2, Mistral, and Mixtral with its experts.

GGUF has one name for all of them.
"""

from __future__ import annotations

from ostinato.models.blocks import Block, Blueprint, decoder
from ostinato.ops.program import Op, Program


def build(model: Blueprint) -> Program:
    """Return the program of a llama model."""
    rotation = model.rotation()
    has_experts = model.keys.integer("expert_count", 0, least=0) > 0

    def layer(block: Block) -> list[Op]:
        return [
            block.norm("attn_norm"),
            *block.project(paired=True),
            *block.rotate(rotation),
            *block.attend(),
            block.linear("attn_output", "attended", "x", add=True),
            block.norm("ffn_norm"),
            *(block.experts() if has_experts else block.feed_forward()),
        ]

    return decoder(model, layer)
