"""The granite architecture: a llama with scales on embeddings, branches, scores and logits."""

from __future__ import annotations

from ostinato.models.blocks import Block, Blueprint, decoder
from ostinato.ops.program import Op, Program


def build(model: Blueprint) -> Program:
    """Return the program of a Granite model."""
    keys, rotation = model.keys, model.rotation()
    branch_scale = keys.number("residual_scale", 1.0)
    score_scale = keys.number("attention.scale", model.config.head_dim**-0.5)

    def layer(block: Block) -> list[Op]:
        return [
            block.norm("attn_norm"),
            *block.project(paired=True),
            *block.rotate(rotation),
            *block.attend(scale=score_scale),
            block.linear("attn_output", "attended", "x", add=True, scale=branch_scale),
            block.norm("ffn_norm"),
            *block.feed_forward(scale=branch_scale),
        ]

    return decoder(
        model,
        layer,
        embedding_scale=keys.number("embedding_scale", 1.0),
        logit_scale=1 / keys.number("logit_scale", 1.0),
    )
