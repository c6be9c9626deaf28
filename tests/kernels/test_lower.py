"""From programs to instructions: which kernels, over which memory, fused where nobody else looks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tiny import TinyFile, TinyShape, random_tensor, tiny_llama

from ostinato.errors import UnsupportedModelError
from ostinato.models import build_program
from ostinato.models.rope import rope_frequencies
from ostinato.ops.batch import BLOCK_TOKENS
from ostinato.ops.cpu.buffers import Buffers, KVPool, RopeTable
from ostinato.ops.cpu.instructions import Instruction, barriers
from ostinato.ops.cpu.kernels import attention
from ostinato.ops.cpu.lower import Memory, lower
from ostinato.ops.cpu.memory import Arena
from ostinato.ops.cpu.tiles import Tiles
from ostinato.ops.cpu.weights import PackedWeights
from ostinato.ops.program import (
    LOGITS,
    Embed,
    GatedUnit,
    KVShape,
    MatMul,
    Op,
    Program,
    RmsNorm,
    Rope,
    StoreKV,
    TakeRows,
    Weight,
)
from ostinato.weights.tensors import Tensor

TILES = Tiles(8, 4, 2)
FREQUENCIES = rope_frequencies(1e4, 16)


def memory_for(program: Program, tensors: dict[str, Tensor]) -> Memory:
    """Reserve what the executor would, for 20 tokens and 4 blocks."""
    size = attention.scratch_bytes(16, program.kv.head_dim)
    ropes = {(op.frequencies, op.magnitude) for op in program.ops if isinstance(op, Rope)}
    return Memory(
        weights=PackedWeights(program, tensors),
        buffers=Buffers(program, 20, spare_rows=8),
        kv=KVPool(program.kv, 4),
        rope_tables={turn: RopeTable(*turn, 4 * BLOCK_TOKENS) for turn in ropes},
        scratch=Arena(2 * size),
        scratch_bytes=size,
        states=Arena(4096),
    )


def lowered(file: TinyFile) -> list[Instruction]:
    program = build_program(file)
    return lower(program, memory_for(program, dict(file.tensors)), TILES)


def names(instructions: Sequence[Instruction]) -> list[str]:
    return [instruction.kernel.name for instruction in instructions]


LAYER_Q4 = [
    "rms_norm_quantize",
    "matmul_q4_t8",
    "matmul_q4_t8",
    "matmul_q4_t8",
    "rope",
    "store_kv",
    "attention_q4_g2_k2_v1",
    "quantize",
    "matmul_q4_t8",
    "rms_norm_quantize",
    "matmul_q4_t8",
    "matmul_q4_t8",
    "gated_silu_quantize",
    "matmul_q4_t8",
]
WAITS_Q4 = [1, 0, 0, 1, 0, 1, 1, 1, 1, 1, 0, 1, 1, 1]


@pytest.mark.parametrize("tied", [True, False])
def test_quantised_llama(tied: bool) -> None:
    """Norms and gated units write int8 at once; keys are rotated while they are stored."""
    instructions = lowered(tiny_llama(TinyShape(tied=tied)))
    last = ["take_rows", "rms_norm_quantize", "matmul_q4_t4"]
    assert names(instructions) == ["embed_q4", *LAYER_Q4, *LAYER_Q4, *last]
    assert barriers(instructions) == [bool(w) for w in (1, *WAITS_Q4, *WAITS_Q4, 1, 1, 1)]


def test_llama_of_floats() -> None:
    """Nothing is quantised where no product asks for it."""
    instructions = lowered(tiny_llama(TinyShape(layers=1, type="F16")))
    assert names(instructions) == [
        "embed_f16",
        "rms_norm",
        *["matmul_f16_t8"] * 3,
        "rope",
        "store_kv",
        "attention_q4_g2_k2_v1",
        "matmul_f16_t8",
        "rms_norm",
        *["matmul_f16_t8"] * 2,
        "gated_silu",
        "matmul_f16_t8",
        "take_rows",
        "rms_norm",
        "matmul_f16_t4",
    ]


def test_llama_of_many_types() -> None:
    """Where some products want floats and some int8, both are there, each made once."""
    types = {"attn_q": "F32", "attn_k": "Q8_0", "attn_v": "Q4_1", "attn_output": "BF16", "ffn_down": "F16"}
    instructions = lowered(tiny_llama(TinyShape(layers=1, types={**types, "ffn_up": "F16"})))
    assert names(instructions) == [
        "embed_q4",
        "rms_norm_quantize",
        "rms_norm",
        "matmul_f32_t8",
        "matmul_q8_t8",
        "matmul_q4m_t8",
        "rope",
        "store_kv",
        "attention_q4_g2_k2_v1",
        "matmul_bf16_t8",
        "rms_norm_quantize",
        "rms_norm",
        "matmul_q4_t8",
        "matmul_f16_t8",
        "gated_silu",
        "matmul_f16_t8",
        "take_rows",
        "rms_norm_quantize",
        "matmul_q4_t4",
    ]


def test_items_and_rows() -> None:
    """After TakeRows an op works on the rows whose logits are wanted; before it, on all tokens."""
    for instruction in lowered(tiny_llama()):
        name, count = instruction.kernel.name, instruction.items.count
        if name.startswith("matmul"):
            assert count is None
            assert instruction.values["by_rows"] == int(name.endswith("t4"))
    counts = [instruction.items.count for instruction in lowered(tiny_llama())]
    assert counts[-3:] == ["num_rows", "num_rows", None]
    assert "num_rows" not in counts[:-3]


# -- programs that no architecture builds yet ----------------------------------------------------------------


def program_of(ops: list[Op], **tensors: tuple[str, int, int]) -> tuple[Program, dict[str, Tensor]]:
    """Return a program over buffers of 64 floats, and its tensors: a type, rows and columns each."""
    rng = np.random.default_rng(0)
    made = {name: random_tensor(name, kind, tuple(shape), rng) for name, (kind, *shape) in tensors.items()}
    made["norm"] = random_tensor("norm", "F32", (64,), rng)
    widths = dict.fromkeys(("x", "y", "z", "k", "v", LOGITS), 64)
    return Program(tuple(ops), widths, KVShape(1, 4, 16), 64, 128), made


def kernels_of(ops: list[Op], **tensors: tuple[str, int, int]) -> list[str]:
    program, made = program_of(ops, **tensors)
    return names(lower(program, memory_for(program, made), TILES))


Q4 = ("Q4_0", 64, 64)
F16 = ("F16", 64, 64)


def test_a_buffer_is_quantised_once_until_it_changes() -> None:
    ops: list[Op] = [
        Embed("x", Weight("a")),
        MatMul("x", "y", Weight("a")),
        MatMul("x", "z", Weight("a")),
        MatMul("y", "x", Weight("a"), accumulate=True),
        MatMul("x", "y", Weight("a")),
    ]
    product = "matmul_q4_t8"
    assert kernels_of(ops, a=Q4) == ["embed_q4", "quantize", product, *[product, "quantize"] * 2, product]


def test_a_rotation_that_no_store_follows() -> None:
    ops: list[Op] = [Embed("x", Weight("a")), Rope("x", 4, 16, FREQUENCIES), MatMul("x", "y", Weight("a"))]
    assert kernels_of(ops, a=Q4) == ["embed_q4", "rope", "quantize", "matmul_q4_t8"]
    ops = [Embed("x", Weight("a")), Rope("x", 4, 16, FREQUENCIES), StoreKV("y", "x", 0)]
    assert kernels_of(ops, a=Q4) == ["embed_q4", "rope", "store_kv"]


def test_a_norm_that_nobody_reads_is_made_as_floats() -> None:
    ops: list[Op] = [Embed("x", Weight("a")), RmsNorm("x", "y", Weight("norm"), 1e-5), TakeRows("y", LOGITS)]
    assert kernels_of(ops, a=F16) == ["embed_f16", "rms_norm", "take_rows"]


@pytest.mark.parametrize(
    "made",
    [RmsNorm("x", "y", Weight("norm"), 1e-5), GatedUnit("x", "z", "y")],
    ids=["norm", "gated unit"],
)
def test_what_is_added_to_is_made_as_floats(made: Op) -> None:
    """y feeds a quantised product, whose result is added to y: its floats are needed too."""
    ops: list[Op] = [
        Embed("x", Weight("a")),
        Embed("z", Weight("a")),
        made,
        MatMul("y", "z", Weight("a")),
        MatMul("z", "y", Weight("a"), accumulate=True),
    ]
    assert {"rms_norm", "gated_silu"} & set(kernels_of(ops, a=Q4))


def test_keys_rotated_while_stored_are_quantised_anew() -> None:
    ops: list[Op] = [
        Embed("k", Weight("a")),
        Embed("v", Weight("a")),
        MatMul("k", "x", Weight("a")),
        Rope("k", 4, 16, FREQUENCIES),
        StoreKV("k", "v", 0),
        MatMul("k", "y", Weight("a")),
    ]
    assert kernels_of(ops, a=Q4).count("quantize") == 2


def test_a_type_without_kernels_is_an_error() -> None:
    program, tensors = program_of([Embed("x", Weight("a"))], a=F16)
    kind = type(tensors["a"].type)("IQ3_S", 21, 256, 110)
    tensors["a"] = Tensor("a", (64, 64), kind, tensors["a"].data, 0)
    with pytest.raises(UnsupportedModelError, match=r"tensor 'a' is of type IQ3_S"):
        PackedWeights(program, tensors)


# -- memory --------------------------------------------------------------------------------------------------


ODD = TinyShape(type="F32", width=40, hidden=23, vocab=7, tied=True)


@pytest.mark.parametrize("shape", [TinyShape(), ODD])
def test_operands_lie_within_their_memory(shape: TinyShape) -> None:
    file = tiny_llama(shape)
    program = build_program(file)
    memory = memory_for(program, dict(file.tensors))
    arenas = [memory.weights.arena, memory.buffers.arena, memory.kv.arena, memory.scratch]
    arenas += [table.arena for table in memory.rope_tables.values()]
    sources = [range(t.data.ctypes.data, t.data.ctypes.data + 1) for t in file.tensors.values()]
    inside = [range(arena.address, arena.address + len(arena.bytes)) for arena in arenas] + sources
    packing = [instruction for part in memory.weights.packing(file.tensors) for instruction in part]
    for instruction in [*packing, *lower(program, memory, TILES)]:
        for name, value in instruction.values.items():
            if isinstance(value, int) and value > 1 << 20:
                assert any(value in addresses for addresses in inside), (instruction.kernel.name, name)


@pytest.mark.parametrize("width", [1, 15, 16, 17, 31, 32, 33, 64, 1000])
def test_buffers_do_not_overlap(width: int) -> None:
    program = Program((), {"a": width, "b": width, LOGITS: 3}, KVShape(1, 1, 16), 3, 128)
    buffers = Buffers(program, 5, spare_rows=8)
    runs = []
    for name in program.widths:
        buffer = buffers[name]
        groups, q = -(-buffer.width // 32), buffer.quantized
        assert buffer.stride % 16 == 0 and 0 <= buffer.stride - buffer.width < 16
        runs.append((buffer.address, 13 * 4 * buffer.stride))
        runs.append((q.values, 13 * 32 * groups))
        runs += [(address, 13 * 4 * groups) for address in (q.scales, q.scaled_sums)]
        runs.append((q.integer_sums, 13 * 8 * groups))
    runs.sort()
    ends = [start + size for start, size in runs]
    assert all(end <= start for end, (start, _) in zip(ends, runs[1:], strict=False))
    assert runs[0][0] >= buffers.arena.address
    assert ends[-1] <= buffers.arena.address + len(buffers.arena.bytes)
    assert all(start % 128 == 0 for start, _ in runs)


def test_an_arena_does_not_give_more_than_it_has() -> None:
    arena = Arena(5000)
    assert not arena.bytes.any()
    with pytest.raises(AssertionError):
        arena.take(len(arena.bytes) + 1)


def test_rotary_tables_grow_as_positions_are_reached() -> None:
    table = RopeTable(FREQUENCIES, 1.0, 3000)
    angles = np.arange(3000)[:, None] * 1e4 ** (-np.arange(0, 16, 2) / 16)
    want = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    filled = 0
    for positions in (1, 511, 513, 2900, 3000, 3000):
        table.reach(positions)
        assert table._filled >= max(positions, filled)
        filled = table._filled
        np.testing.assert_array_equal(table._table[:filled], want[:filled])
        assert not table._table[filled:].any()
