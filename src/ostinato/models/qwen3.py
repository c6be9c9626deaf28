"""The qwen3 and qwen3moe architectures: each head of queries and keys is normed before it is rotated."""

from __future__ import annotations

from ostinato.models.blocks import Block, Blueprint, decoder
from ostinato.ops.program import Op, Program


def build(model: Blueprint) -> Program:
    """Return the program of a Qwen 3 model."""
    return decoder(model, lambda block: [*_attention(block), *block.feed_forward()])


def build_moe(model: Blueprint) -> Program:
    """Return the program of a Qwen 3 model with experts."""
    return decoder(model, lambda block: [*_attention(block), *block.experts()])


def _attention(block: Block) -> list[Op]:
    return [
        block.norm("attn_norm"),
        *block.project(),
        *block.norm_heads(),
        *block.rotate(block.model.rotation()),
        *block.attend(),
        block.linear("attn_output", "attended", "x", add=True),
        block.norm("ffn_norm"),
    ]
