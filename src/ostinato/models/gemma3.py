"""The gemma3 architecture (text): five layers with a window and a rotation of their own, then one without."""

from __future__ import annotations

from ostinato.models.blocks import Block, Blueprint, decoder
from ostinato.models.gemma2 import attention_scale
from ostinato.ops.program import Op, Program

LAYERS_OF_27B = 62


def build(model: Blueprint) -> Program:
    """Return the program of a Gemma 3 model."""
    keys, config = model.keys, model.config
    local, everywhere = model.window_rotation(10000.0), model.rotation()
    scale = attention_scale(model, LAYERS_OF_27B)
    softcap = keys.number("attn_logit_softcapping", 0.0, or_zero=True)

    def layer(block: Block) -> list[Op]:
        return [
            block.norm("attn_norm"),
            *block.project(),
            *block.norm_heads(),
            *block.rotate(local if block.window else everywhere),
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
        window_pattern=6,
        embedding_scale=config.width**0.5,
        softcap=keys.number("final_logit_softcapping", 0.0, or_zero=True),
    )
