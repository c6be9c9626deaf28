"""@kernel and @inline: mark Python functions that are compiled for the processor. Marking costs nothing; see
codegen/compile.py.

A kernel works on one instruction of a program. Its parameters are, by name:

* `first`, `last`: the items to work on, a half-open interval of those the instruction has;
* `worker`: which member of the team does it (for scratch memory, never for what is computed);
* the fields of the batch header (BATCH_FIELDS): counts, and addresses of the arrays of a ForwardBatch;
* anything else: a field of the instruction, an 8-byte word, an `int` (count or address) or a `float`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

BATCH_FIELDS = (
    "num_tokens",
    "num_rows",
    "token_ids",
    "positions",
    "slot_of_token",
    "block_tables",
    "table_width",
    "logits_rows",
    "num_segments",
    "num_parts",
)
"""The words of the batch header, in order. `num_segments`: segments of attention of the longest sequence;
`num_parts`: tokens times that."""

CALL_FIELDS = ("first", "last", "worker")

WORD_BYTES = 8
INSTRUCTION_WORDS = 24
KERNEL, WAIT, COUNT, DIVISOR, FACTOR, LEAST, HEADER_WORDS = range(7)
"""The words of an instruction before its fields: the kernel's address; whether a barrier follows; how
many items it has:
ceil(count / divisor) · factor, where the count is a word of the batch header, or 1 where COUNT is -1."""

REGISTRY: dict[str, Kernel] = {}
"""Every kernel by name, filled as the modules of `kernels/` are imported."""


@dataclass(frozen=True)
class Kernel:
    """A function to compile, the constants of this variant, and the layout of its instructions.

    `fields`: the names of the instruction's words in order; `floats`: those of them that hold a float64.
    """

    name: str
    function: FunctionType
    constants: Mapping[str, int]
    fields: tuple[str, ...] = field(init=False)
    floats: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        parameters = inspect.signature(self.function).parameters
        fields = [name for name in parameters if name not in BATCH_FIELDS and name not in CALL_FIELDS]
        floats = [name for name in fields if parameters[name].annotation in (float, "float")]
        object.__setattr__(self, "fields", tuple(fields))
        object.__setattr__(self, "floats", frozenset(floats))


def variant(function: Callable[..., None], name: str, **constants: int) -> Kernel:
    """Register `function`, specialised by compile-time constants, as the kernel `name`."""
    assert isinstance(function, FunctionType) and name not in REGISTRY, name
    made = Kernel(name, function, constants)
    REGISTRY[name] = made
    return made


def kernel(function: Callable[..., None]) -> Kernel:
    """Register a function without variants as a kernel of its own name."""
    return variant(function, function.__name__)


def inline(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function that kernels may call; it is compiled into each of them."""
    marked: Any = function
    marked.__ostinato_inline__ = True
    return function
