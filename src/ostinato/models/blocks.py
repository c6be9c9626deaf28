"""The building blocks of decoders: what the files of the architectures are written in.

A `Blueprint` is a model file as an architecture sees it; `decoder` makes the program around its layers, each
made of what a `Block` offers. Buffers: `x` the residual stream, `normed` what goes into a branch, `branch`
what comes out of one that is normed before it is added. Next file: an architecture, say llama.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ostinato.models.config import TransformerConfig
from ostinato.models.keys import MAX_LAYERS, Keys
from ostinato.models.rope import Rotation, read_rotation, rope_frequencies, rotated_dimensions
from ostinato.ops.program import (
    LOGITS,
    Activation,
    Attention,
    Embed,
    Experts,
    GatedUnit,
    KVShape,
    MatMul,
    Op,
    Program,
    RmsNorm,
    Rope,
    Softcap,
    StoreKV,
    TakeRows,
    Weight,
)
from ostinato.weights.tensors import ModelFile


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A model file and its configuration. `context_length`: the longest context that will be in use."""

    file: ModelFile
    keys: Keys
    config: TransformerConfig
    context_length: int

    @staticmethod
    def of(file: ModelFile, context_length: int | None) -> Blueprint:
        """Read a file's configuration; by default all of the context it was trained for is used."""
        config = TransformerConfig.from_file(file)
        return Blueprint(file, Keys(file), config, context_length or config.context_length)

    def rotation(self) -> Rotation:
        """Return the rotation of queries and keys that the file asks for."""
        return read_rotation(self.keys, self.config.head_dim, self.context_length)

    def window_rotation(self, base: float | None = None) -> Rotation:
        """Return that of layers with a window where it is one of their own: unscaled, by default from `base`,
        or else from the base of all layers.
        """
        base = self.keys.number("rope.freq_base", 10000.0) if base is None else base
        dimensions = rotated_dimensions(self.keys, self.config.head_dim)
        return Rotation(rope_frequencies(self.keys.number("rope.freq_base_swa", base), dimensions))

    def windows(self, pattern: int) -> tuple[int, ...]:
        """Return each layer's sliding window in tokens; 0: it sees everything.

        `pattern`: every so many-th layer sees everything, 0 means none does; a pattern in the file wins.
        """
        window, layers = self.keys.integer("attention.sliding_window", 0, least=0), self.config.num_layers
        key = "attention.sliding_window_pattern"
        slides = self.keys.flags(key, layers)
        if slides is None:
            every = self.keys.integer(key, pattern, least=0)
            slides = tuple(every == 0 or (layer + 1) % every != 0 for layer in range(layers))
        return tuple(window if sliding else 0 for sliding in slides)


@dataclass(frozen=True, slots=True)
class Block:
    """One layer of a decoder: makes its ops, knowing its weights' names. `window`: 0 or in tokens."""

    model: Blueprint
    index: int
    window: int

    def weight(self, name: str, paired_heads: int = 0, rows: tuple[int, int] | None = None) -> Weight:
        """Return a tensor of this layer by the last part of its name."""
        return Weight(f"blk.{self.index}.{name}", paired_heads, rows)

    def norm(self, name: str, x: str = "x", out: str = "normed", *, heads: int = 1, add: bool = False) -> Op:
        """Norm x, or each of its heads; with `add`, add the result to `out`."""
        weight = self.weight(f"{name}.weight")
        return RmsNorm(x, out, weight, self.model.config.norm_eps, heads, accumulate=add)

    def linear(
        self,
        name: str,
        x: str,
        out: str,
        *,
        add: bool = False,
        scale: float = 1.0,
        paired_heads: int = 0,
        bias: bool = False,
    ) -> Op:
        """Multiply with a matrix, plus its bias where there must be one (`bias`) or the file has one."""
        bias = bias or f"blk.{self.index}.{name}.bias" in self.model.file.tensors
        return MatMul(
            x,
            out,
            self.weight(f"{name}.weight", paired_heads),
            add,
            self.weight(f"{name}.bias", paired_heads) if bias else None,
            scale,
        )

    def project(self, x: str = "normed", *, paired: bool = False, bias: bool = False) -> list[Op]:
        """Make q, k and v. `paired`: GGUF stores the rows of q and k as rotary pairs in this architecture."""
        config = self.model.config
        paired = paired and not config.halves
        heads, kv_heads = (config.num_heads, config.num_kv_heads) if paired else (0, 0)
        return [
            self.linear("attn_q", x, "q", paired_heads=heads, bias=bias),
            self.linear("attn_k", x, "k", paired_heads=kv_heads, bias=bias),
            self.linear("attn_v", x, "v", bias=bias),
        ]

    def norm_heads(self) -> list[Op]:
        """Norm each head of q and k."""
        config = self.model.config
        return [
            self.norm("attn_q_norm", "q", "q", heads=config.num_heads),
            self.norm("attn_k_norm", "k", "k", heads=config.num_kv_heads),
        ]

    def rotate(self, rotation: Rotation) -> list[Op]:
        """Rotate q and k."""
        config = self.model.config
        heads = (("q", config.num_heads), ("k", config.num_kv_heads))
        return [
            Rope(x, count, config.head_dim, rotation.frequencies, rotation.magnitude) for x, count in heads
        ]

    def attend(self, *, scale: float | None = None, softcap: float = 0.0) -> list[Op]:
        """Store k and v and attend with q, scores times `scale`; by default one over the root of a head."""
        config = self.model.config
        heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        scale = head_dim**-0.5 if scale is None else scale
        return [
            StoreKV("k", "v", self.index),
            Attention("q", "attended", self.index, heads, kv_heads, head_dim, scale, self.window, softcap),
        ]

    def feed_forward(
        self,
        x: str = "normed",
        out: str = "x",
        *,
        activation: Activation = "silu",
        add: bool = True,
        scale: float = 1.0,
    ) -> list[Op]:
        """Gate, up, down."""
        return [
            self.linear("ffn_gate", x, "gate"),
            self.linear("ffn_up", x, "up"),
            GatedUnit("gate", "up", "hidden", activation),
            self.linear("ffn_down", "hidden", out, add=add, scale=scale),
        ]

    def experts(self) -> list[Op]:
        """Add to x what the chosen experts make of `normed`."""
        keys, config = self.model.keys, self.model.config
        count = keys.integer("expert_count", most=MAX_LAYERS)
        chosen = keys.integer("expert_used_count")
        if chosen > count:
            raise keys.fault("expert_used_count", f"is {chosen}; expected at most the {count} experts")
        hidden = keys.integer("expert_feed_forward_length", config.hidden_width)
        gate, up = (self._matrices(name, count, hidden) for name in ("ffn_gate", "ffn_up"))
        down = self._matrices("ffn_down", count, config.width)
        normalized = keys.flag("expert_weights_norm", True)
        return [
            self.linear("ffn_gate_inp", "normed", "scores"),
            Experts("normed", "scores", "x", gate, up, down, chosen, normalized),
        ]

    def _matrices(self, name: str, count: int, rows: int) -> tuple[Weight, ...]:
        """Return a matrix an expert: of one stacked tensor, or each a tensor of its own."""
        if f"blk.{self.index}.{name}.0.weight" in self.model.file.tensors:
            return tuple(self.weight(f"{name}.{e}.weight", rows=(0, rows)) for e in range(count))
        stacked = f"{name}_exps.weight"
        return tuple(self.weight(stacked, rows=(e * rows, (e + 1) * rows)) for e in range(count))


def decoder(
    model: Blueprint,
    layer: Callable[[Block], list[Op]],
    *,
    window_pattern: int = 0,
    embedding_scale: float = 1.0,
    logit_scale: float = 1.0,
    softcap: float = 0.0,
) -> Program:
    """Return the program of a decoder whose layers are made by `layer`; `softcap`: of the logits."""
    config = model.config
    ops: list[Op] = [Embed("x", Weight("token_embd.weight"), embedding_scale)]
    for index, window in enumerate(model.windows(window_pattern)):
        ops += layer(Block(model, index, window))
    ops += [
        TakeRows("x", "last"),
        RmsNorm("last", "last_normed", Weight("output_norm.weight"), config.norm_eps),
        MatMul("last_normed", LOGITS, Weight(config.output_weight), scale=logit_scale),
    ]
    if softcap:
        ops.append(Softcap(LOGITS, softcap))
    kv = KVShape(config.num_layers, config.num_kv_heads, config.head_dim)
    return Program(tuple(ops), _widths(model, ops), kv, config.vocab_size, config.context_length)


def _widths(model: Blueprint, ops: list[Op]) -> dict[str, int]:
    """Return the widths of the buffers that these ops write."""
    config = model.config
    widths = dict.fromkeys(("x", "normed", "branch", "last", "last_normed"), config.width)
    widths |= {"q": config.heads_width, "k": config.kv_width, "v": config.kv_width}
    widths |= {"attended": config.heads_width, LOGITS: config.vocab_size}
    widths |= dict.fromkeys(("gate", "up", "hidden"), config.hidden_width)
    widths["scores"] = model.keys.integer("expert_count", 0, least=0)
    written = {op.out for op in ops if not isinstance(op, Rope | StoreKV | Softcap)}
    return {name: width for name, width in widths.items() if name in written}
