"""The phi3 architecture: Phi 3, 3.5 and 4, with one matrix for q, k and v, and one for gate and up."""

from __future__ import annotations

from ostinato.models.blocks import Block, Blueprint, decoder
from ostinato.ops.program import GatedUnit, MatMul, Op, Program


def build(model: Blueprint) -> Program:
    """Return the program of a Phi 3 model."""
    config, rotation = model.config, model.rotation()
    q, kv, hidden = config.heads_width, config.kv_width, config.hidden_width

    def layer(block: Block) -> list[Op]:
        def part(name: str, out: str, first: int, count: int) -> Op:
            return MatMul("normed", out, block.weight(name, rows=(first, first + count)))

        return [
            block.norm("attn_norm"),
            part("attn_qkv.weight", "q", 0, q),
            part("attn_qkv.weight", "k", q, kv),
            part("attn_qkv.weight", "v", q + kv, kv),
            *block.rotate(rotation),
            *block.attend(),
            block.linear("attn_output", "attended", "x", add=True),
            block.norm("ffn_norm"),
            part("ffn_up.weight", "gate", 0, hidden),
            part("ffn_up.weight", "up", hidden, hidden),
            GatedUnit("gate", "up", "hidden"),
            block.linear("ffn_down", "hidden", "x", add=True),
        ]

    return decoder(model, layer)
