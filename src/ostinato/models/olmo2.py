"""The olmo2 architecture: no norm before a branch but one after it, and one over all of q and of k."""

from __future__ import annotations

from ostinato.models.blocks import Block, Blueprint, decoder
from ostinato.ops.program import Op, Program


def build(model: Blueprint) -> Program:
    """Return the program of an OLMo 2 model."""
    rotation = model.rotation()

    def layer(block: Block) -> list[Op]:
        return [
            *block.project("x"),
            block.norm("attn_q_norm", "q", "q"),
            block.norm("attn_k_norm", "k", "k"),
            *block.rotate(rotation),
            *block.attend(),
            block.linear("attn_output", "attended", "branch"),
            block.norm("post_attention_norm", "branch", "x", add=True),
            *block.feed_forward("x", "branch", add=False),
            block.norm("post_ffw_norm", "branch", "x", add=True),
        ]

    return decoder(model, layer)
