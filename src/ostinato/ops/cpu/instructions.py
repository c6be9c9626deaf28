"""Instructions: a kernel, its operands and its items; and programs of them as one array of words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ostinato.ops.cpu.kernel import (
    BATCH_FIELDS,
    COUNT,
    DIVISOR,
    FACTOR,
    HEADER_WORDS,
    INSTRUCTION_WORDS,
    KERNEL,
    LEAST,
    WAIT,
    Kernel,
)
from ostinato.ops.cpu.kernels.team import MAX_INSTRUCTIONS


@dataclass(frozen=True, slots=True)
class Items:
    """How many pieces of work an instruction has: ceil(count / divisor) · factor.

    `count` names a field of the batch header, or is None for 1. `least`: items in a chunk that is worth
    claiming.
    """

    factor: int = 1
    count: str | None = None
    divisor: int = 1
    least: int = 1


@dataclass(frozen=True, slots=True)
class Instruction:
    """One kernel, its operands, and its items, which the team shares out.

    `reads` and `writes` name buffers, to place barriers.
    """

    kernel: Kernel
    items: Items
    values: Mapping[str, int | float]
    reads: frozenset[str] = field(default_factory=frozenset)
    writes: frozenset[str] = field(default_factory=frozenset)


def barriers(instructions: Sequence[Instruction]) -> list[bool]:
    """Return for each instruction whether the team must wait after it.

    It must where the next one reads what somebody may still be writing, or writes what somebody may still be
    using; and at the end.
    """
    after = [False] * len(instructions)
    reads, writes = set[str](), set[str]()
    for i, instruction in enumerate(instructions):
        if instruction.reads & writes or instruction.writes & (reads | writes):
            after[i - 1] = True
            reads, writes = set(), set()
        reads |= instruction.reads
        writes |= instruction.writes
    if after:
        after[-1] = True
    return after


def encode(instructions: Sequence[Instruction], addresses: Mapping[str, int]) -> NDArray[np.int64]:
    """Return the words of a program (n, INSTRUCTION_WORDS), as kernels/team.py reads them."""
    assert len(instructions) < MAX_INSTRUCTIONS, len(instructions)
    words = np.zeros((len(instructions), INSTRUCTION_WORDS), np.int64)
    for row, instruction, wait in zip(words, instructions, barriers(instructions), strict=True):
        kernel = instruction.kernel
        assert instruction.values.keys() == set(kernel.fields), (
            kernel.name,
            instruction.values.keys(),
            kernel.fields,
        )
        count = -1 if instruction.items.count is None else BATCH_FIELDS.index(instruction.items.count)
        row[KERNEL], row[WAIT], row[COUNT] = addresses[kernel.name], wait, count
        items = instruction.items
        row[DIVISOR], row[FACTOR], row[LEAST] = items.divisor, items.factor, items.least
        for i, name in enumerate(kernel.fields):
            value = instruction.values[name]
            row[HEADER_WORDS + i] = np.float64(value).view(np.int64) if name in kernel.floats else value
    return words
