"""The olmo2 architecture: no norm before a branch but one after it, and one over all of q and of k.

OLMo 3 is an OLMo 2 with a window in three of four layers, in which the rotation is not scaled.
"""

from __future__ import annotations

from ostinato.models.blocks import Block, Blueprint, decoder
from ostinato.ops.program import Op, Program


def build(model: Blueprint) -> Program:
    """Return the program of an OLMo 2 or 3 model."""
    local, everywhere = model.window_rotation(), model.rotation()

    def layer(block: Block) -> list[Op]:
        return [
            *block.project("x"),
            block.norm("attn_q_norm", "q", "q"),
            block.norm("attn_k_norm", "k", "k"),
            *block.rotate(local if block.window else everywhere),
            *block.attend(),
            block.linear("attn_output", "attended", "branch"),
            block.norm("post_attention_norm", "branch", "x", add=True),
            *block.feed_forward("x", "branch", add=False),
            block.norm("post_ffw_norm", "branch", "x", add=True),
        ]

    return decoder(model, layer, window_pattern=4)
