"""The qwen2 architecture: Qwen 2 and 2.5, whose queries, keys and values have biases."""

from __future__ import annotations

from ostinato.models.blocks import Block, Blueprint, decoder
from ostinato.ops.program import Op, Program


def build(model: Blueprint) -> Program:
    """Return the program of a Qwen 2 model."""
    rotation = model.rotation()

    def layer(block: Block) -> list[Op]:
        return [
            block.norm("attn_norm"),
            *block.project(bias=True),
            *block.rotate(rotation),
            *block.attend(),
            block.linear("attn_output", "attended", "x", add=True),
            block.norm("ffn_norm"),
            *block.feed_forward(),
        ]

    return decoder(model, layer)
