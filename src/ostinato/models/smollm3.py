"""The smollm3 architecture: a llama in which every fourth layer rotates nothing."""

from __future__ import annotations

from ostinato.models.blocks import Block, Blueprint, decoder
from ostinato.ops.program import Op, Program


def build(model: Blueprint) -> Program:
    """Return the program of a SmolLM 3 model."""
    rotation, layers = model.rotation(), model.config.num_layers
    rotates = model.keys.flags("rope.layers", layers) or tuple((i + 1) % 4 != 0 for i in range(layers))

    def layer(block: Block) -> list[Op]:
        return [
            block.norm("attn_norm"),
            *block.project(paired=True),
            *(block.rotate(rotation) if rotates[block.index] else []),
            *block.attend(),
            block.linear("attn_output", "attended", "x", add=True),
            block.norm("ffn_norm"),
            *block.feed_forward(),
        ]

    return decoder(model, layer)
