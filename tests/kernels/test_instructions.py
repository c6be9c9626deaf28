"""Where the team must wait, and how instructions become words."""

from __future__ import annotations

import numpy as np
import pytest
from harness import own_kernel
from hypothesis import given
from hypothesis import strategies as st

from ostinato.ops.cpu.instructions import Instruction, Items, barriers, encode
from ostinato.ops.cpu.kernel import (
    BATCH_FIELDS,
    COUNT,
    DIVISOR,
    FACTOR,
    HEADER_WORDS,
    INSTRUCTION_WORDS,
    KERNEL,
    REGISTRY,
    WAIT,
)
from ostinato.ops.cpu.kernels.rows import rms_norm, take_rows
from ostinato.ops.cpu.kernels.team import MAX_INSTRUCTIONS


def nothing(first: int, last: int) -> None:
    """A kernel without fields."""


NOTHING = own_kernel(nothing)
NAMES = st.frozensets(st.sampled_from("abcd"), max_size=2)


def touching(reads: frozenset[str] | str, writes: frozenset[str] | str) -> Instruction:
    return Instruction(NOTHING, Items(), {}, frozenset(reads), frozenset(writes))


def conflict(a: Instruction, b: Instruction) -> bool:
    """Whether two instructions may not run at the same time."""
    return bool(a.writes & (b.reads | b.writes) or b.writes & a.reads)


@given(st.lists(st.builds(touching, NAMES, NAMES), max_size=12))
def test_barriers_part_whatever_conflicts(program: list[Instruction]) -> None:
    """Two instructions with no wait between them never conflict; the last one is waited for."""
    waits = barriers(program)
    assert len(waits) == len(program) and waits[-1:] in ([], [True])
    for i, later in enumerate(program):
        for j, earlier in enumerate(program[:i]):
            assert any(waits[j:i]) or not conflict(earlier, later), (j, i)


@given(st.lists(st.builds(touching, NAMES, NAMES), max_size=12))
def test_no_barrier_is_in_vain(program: list[Instruction]) -> None:
    """The one after a wait conflicts with one of those that it would otherwise have run beside."""
    waits, begin = barriers(program), 0
    for i, wait in enumerate(waits[:-1]):
        if wait:
            assert any(conflict(earlier, program[i + 1]) for earlier in program[begin : i + 1])
            begin = i + 1


def test_barriers_by_example() -> None:
    read_a, read_b = touching("a", "x"), touching("b", "y")
    write_a, update_a = touching("", "a"), touching("a", "a")
    assert barriers([]) == []
    assert barriers([update_a]) == [True]
    assert barriers([read_a, read_b]) == [False, True]
    assert barriers([write_a, read_a]) == [True, True]
    assert barriers([read_a, write_a]) == [True, True]
    assert barriers([write_a, write_a]) == [True, True]
    assert barriers([write_a, read_b, read_a]) == [False, True, True]
    assert barriers([write_a, read_a, read_b, update_a]) == [True, False, True, True]


def test_words_of_a_program() -> None:
    values = {"x": 1 << 40, "weight": 2, "y": -3, "stride": 48, "width": 33, "eps": 1e-5}
    values |= {"heads": 1, "part": 48, "accumulate": 0}
    norm = Instruction(rms_norm, Items(3, "num_rows", 2), values, frozenset("x"), frozenset("y"))
    take = Instruction(take_rows, Items(7), {"stride": 5, "y": 4, "x": 3}, frozenset("y"), frozenset("z"))
    words = encode([norm, take], {"rms_norm": 1234, "take_rows": 5678, "other": 1})
    assert words.shape == (2, INSTRUCTION_WORDS) and words.dtype == np.int64 and words.flags.c_contiguous
    first, second = words.tolist()
    header = [first[i] for i in (KERNEL, WAIT, COUNT, DIVISOR, FACTOR)]
    assert header == [1234, 1, BATCH_FIELDS.index("num_rows"), 2, 3]
    fields = dict(zip(rms_norm.fields, first[HEADER_WORDS:], strict=False))
    fields["eps"] = np.int64(fields["eps"]).view(np.float64)
    assert fields == values
    assert [second[i] for i in (KERNEL, WAIT, COUNT, DIVISOR, FACTOR)] == [5678, 1, -1, 1, 7]
    assert dict(zip(take_rows.fields, second[HEADER_WORDS:], strict=False)) == {"x": 3, "y": 4, "stride": 5}


@pytest.mark.parametrize("values", [{}, {"x": 1, "y": 2}, {"x": 1, "y": 2, "stride": 3, "strode": 4}])
def test_operands_must_be_complete(values: dict[str, int]) -> None:
    with pytest.raises(AssertionError, match="take_rows"):
        encode([Instruction(take_rows, Items(), values)], {"take_rows": 1})


def test_a_program_has_fewer_instructions_than_a_step_has_numbers() -> None:
    with pytest.raises(AssertionError):
        encode([Instruction(NOTHING, Items(), {})] * MAX_INSTRUCTIONS, {"nothing": 1})
    assert len(encode([Instruction(NOTHING, Items(), {})] * (MAX_INSTRUCTIONS - 1), {"nothing": 1}))


def test_every_kernel_s_fields_fit_an_instruction() -> None:
    for kernel in REGISTRY.values():
        assert len(kernel.fields) <= INSTRUCTION_WORDS - HEADER_WORDS, kernel.name
        assert len(set(kernel.fields)) == len(kernel.fields)
        assert kernel.floats <= set(kernel.fields)
