"""Kernels for 64-bit ARM processors: compiled for them and looked at; none may be here to run them."""

from __future__ import annotations

import re
from functools import cache

import pytest
from harness import environment_kept

from ostinato.ops.cpu import host
from ostinato.ops.cpu.codegen.compile import Compiler
from ostinato.ops.cpu.kernels import find

PROCESSORS = ("neoverse-n1", "apple-m1")
EIGHT_BITS = ("matmul_q8_t1", "matmul_iq4nl_t4", "matmul_mxfp4_t1")
FEW_BITS = ("matmul_q4_t1", "matmul_q4k_t8", "matmul_q6k_t1")
OTHERS = ("attention_q6_g3_k1_v1", "store_kv", "rms_norm_quantize", "pack_q6k", "embed_q4k", "team_serve")


@cache
def assembly(processor: str, kernel: str) -> str:
    """Return the assembly of a kernel for an ARM processor."""
    with environment_kept():
        return Compiler(host.arm_target(processor)).assembly(find(kernel))


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("kernel", [*EIGHT_BITS, *FEW_BITS])
def test_products_of_bytes_are_dot_products(processor: str, kernel: str) -> None:
    """Eight groups of four columns of sixteen rows: 32 instructions for each token of a tile at least."""
    tokens = int(kernel.partition("_t")[2])
    dots = re.findall(r"\tsdot\tv\d+\.4s, v\d+\.16b, v\d+\.(?:16b|4b\[\d\])", assembly(processor, kernel))
    assert len(dots) >= 32 * tokens


@pytest.mark.parametrize("kernel", EIGHT_BITS[1:])
def test_tables_are_looked_up(kernel: str) -> None:
    assert len(re.findall(r"\ttbl\t", assembly(PROCESSORS[0], kernel))) >= 32


@pytest.mark.parametrize("kernel", [*EIGHT_BITS, *FEW_BITS, *OTHERS])
def test_kernels_call_nothing(kernel: str) -> None:
    """But for the C library's functions that a kernel may call anywhere."""
    text = assembly(PROCESSORS[0], kernel)
    called = set(re.findall(r"\tbl\t([\w.$]+)", text)) - set(re.findall(r"^([\w.$]+):", text, re.M))
    assert called <= {"sched_yield", "memset", "memcpy", "memmove"}
