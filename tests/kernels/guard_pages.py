"""Runs tiny models in memory where each run of bytes ends at a page that nobody may touch: a program that
dies of a kernel which reads or writes beside its operands. Usage: python guard_pages.py SIMD. Linux.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny import TinyFile, TinyShape, tiny_llama

from ostinato.models import build_program
from ostinato.ops.batch import BLOCK_TOKENS, ForwardBatch
from ostinato.ops.cpu import buffers, executor, team, weights

NOTHING_ALLOWED, PAGE = 0, mmap.PAGESIZE
NUM_BLOCKS, LENGTHS = 12, (1, 33, 64, 257)
SHAPES = (
    TinyShape(type="Q4_0", vocab=17),
    TinyShape(type="Q4_1", vocab=16, hidden=32, heads=3, kv_heads=1, head_dim=64),
    TinyShape(type="Q8_0", vocab=15, types={"attn": "F16", "ffn": "BF16"}),
    TinyShape(type="F32", width=33, hidden=17, vocab=1, heads=2, kv_heads=2, head_dim=80, tied=True),
)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_maps: list[mmap.mmap] = []


def guarded(num_bytes: int) -> NDArray[np.uint8]:
    """Return zeroed bytes that end at a forbidden page, with another in front of their first page."""
    size = -(-max(num_bytes, 1) // PAGE) * PAGE
    _maps.append(mmap.mmap(-1, size + 2 * PAGE))
    everything = np.frombuffer(_maps[-1], np.uint8)
    for page in (0, size + PAGE):
        assert _libc.mprotect(everything.ctypes.data + page, PAGE, NOTHING_ALLOWED) == 0
    return everything[size + PAGE - num_bytes : size + PAGE]


class GuardedArena:
    """An arena whose every piece is guarded on its own."""

    def __init__(self, num_bytes: int, **_options: object) -> None:
        self.bytes = guarded(num_bytes)
        self.address = self.bytes.ctypes.data
        self._pieces = {self.address: self.bytes}

    def take(self, num_bytes: int) -> int:
        piece = guarded(num_bytes)
        self._pieces[piece.ctypes.data] = piece
        return piece.ctypes.data

    def view(self, address: int, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self._pieces[address][:num_bytes].view(dtype).reshape(shape)


def in_guarded_memory(file: TinyFile) -> TinyFile:
    """Return the file, its tensors in guarded memory."""
    tensors = {}
    for name, tensor in file.tensors.items():
        data = guarded(tensor.data.nbytes)
        data[:] = tensor.data
        tensors[name] = replace(tensor, data=data)
    return TinyFile(file.metadata, tensors)


def exercise(file: TinyFile, simd: str, max_batch_tokens: int) -> None:
    """Run sequences in chunks of the largest batch, the last block of the pool among theirs."""
    made = executor.CpuExecutor(
        build_program(file),
        file.tensors,
        num_blocks=NUM_BLOCKS,
        threads=2,
        max_batch_tokens=max_batch_tokens,
        simd=simd,
    )
    for length in LENGTHS:
        blocks = list(range(NUM_BLOCKS))[-(-length // -BLOCK_TOKENS) :][::-1]
        for start in range(0, length, max_batch_tokens):
            ids = [(7 * p) % made.vocab_size for p in range(start, min(start + max_batch_tokens, length))]
            logits = made.forward(ForwardBatch.single(ids, start, blocks, list(range(len(ids)))))
            assert np.isfinite(logits).all()
    made.close()


def main(simd: str) -> None:
    for module in (buffers, executor, team, weights):
        module.Arena = GuardedArena  # type: ignore[attr-defined]
    for seed, shape in enumerate(SHAPES):
        file = in_guarded_memory(tiny_llama(shape, seed))
        for max_batch_tokens in (1, 5, 8, 37):
            exercise(file, simd, max_batch_tokens)


if __name__ == "__main__":
    main(sys.argv[1])
