"""The gemma2 architecture: norms before and after each branch, soft caps, every other layer with a window."""

from __future__ import annotations

from ostinato.models.blocks import Block, Blueprint, decoder
from ostinato.ops.program import Op, Program

LAYERS_OF_27B = 46
"""Gemma 2 27B scales scores by the share of a head in the width; GGUF has no key that says so."""


def build(model: Blueprint) -> Program:
    """Return the program of a Gemma 2 model."""
    keys, config = model.keys, model.config
    rotation, scale = model.rotation(), attention_scale(model, LAYERS_OF_27B)
    softcap = keys.number("attn_logit_softcapping", 50.0, or_zero=True)

    def layer(block: Block) -> list[Op]:
        return [
            block.norm("attn_norm"),
            *block.project(),
            *block.rotate(rotation),
            *block.attend(scale=scale, softcap=softcap),
            block.linear("attn_output", "attended", "branch"),
            block.norm("post_attention_norm", "branch", "x", add=True),
            block.norm("ffn_norm"),
            *block.feed_forward(out="branch", activation="gelu", add=False),
            block.norm("post_ffw_norm", "branch", "x", add=True),
        ]

    return decoder(
        model,
        layer,
        window_pattern=2,
        embedding_scale=config.width**0.5,
        softcap=keys.number("final_logit_softcapping", 30.0, or_zero=True),
    )


def attention_scale(model: Blueprint, layers_of_27b: int) -> float:
    """Return what scores are multiplied with, by the file or by which Gemma this is."""
    config = model.config
    head = config.width / config.num_heads if config.num_layers == layers_of_27b else config.head_dim
    return model.keys.number("attention.scale", head**-0.5)
