"""CpuExecutor: packs the weights of a model, and runs its program on a team of threads."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import UnsupportedModelError
from ostinato.ops.batch import BLOCK_TOKENS, Float32, ForwardBatch
from ostinato.ops.cpu import host
from ostinato.ops.cpu.buffers import Buffers, KVPool, RopeTable
from ostinato.ops.cpu.instructions import encode
from ostinato.ops.cpu.kernel import BATCH_FIELDS, Kernel
from ostinato.ops.cpu.kernels import attention, matmul
from ostinato.ops.cpu.kernels.team import PROGRAM_WORDS, TEAM_KERNELS
from ostinato.ops.cpu.library import Report, library
from ostinato.ops.cpu.lower import Memory, lower
from ostinato.ops.cpu.memory import Arena, padded
from ostinato.ops.cpu.simd import LANES
from ostinato.ops.cpu.team import Team
from ostinato.ops.cpu.tiles import SPLIT_TOKENS, Tiles, TileSizes
from ostinato.ops.cpu.weights import PackedWeights
from ostinato.ops.program import LOGITS, Attention, Program, Rope
from ostinato.weights.tensors import Tensor


class CpuExecutor:
    """Runs a program on the CPU; see `ops.batch.Executor`."""

    def __init__(
        self,
        program: Program,
        tensors: Mapping[str, Tensor],
        *,
        num_blocks: int,
        threads: int | None = None,
        max_batch_tokens: int = 512,
        simd: str | None = None,
        report: Report | None = None,
    ) -> None:
        """Compile what is missing, start the team, pack the weights.

        Args:
            program: the model; `tensors` holds its weights, which are not needed after this returns.
            num_blocks: KV blocks to reserve, of 32 tokens each; an untouched block takes no memory.
            threads: size of the team; by default the cores this process may use.
            max_batch_tokens: the longest batch, in tokens.
            simd: the path to use, by default the best of this processor.
            report: told of the progress of compilation.
        """
        self.program = program
        self.vocab_size = program.vocab_size
        self.max_batch_tokens = max_batch_tokens
        self.num_blocks = num_blocks
        self.threads = host.usable_cores() if threads is None else threads
        assert self.threads >= 1, threads
        self.library = library(host.target(simd))
        self._sizes = TileSizes.of(_heads_per_kv(program), self.library.target.simd)
        self.memory = _memory(program, tensors, self._sizes, num_blocks, max_batch_tokens, self.threads)
        self._batch = _BatchMemory(max_batch_tokens, num_blocks)
        self._logits = self.memory.buffers.floats(LOGITS, max_batch_tokens)
        self._addresses = self.library.load(self._kernels(), report)
        self._programs: dict[Tiles, NDArray[np.int64]] = {}
        self._team = Team(self.threads, self.library)
        for instructions in self.memory.weights.packing(tensors):
            self._run(encode(instructions, self._addresses))

    def forward(self, batch: ForwardBatch) -> Float32:
        """Run the batch and return its logits (R, vocab_size), a view that the next call overwrites.

        The caller vouches for the batch: at most `max_batch_tokens` tokens, ids within the vocabulary,
        positions within the blocks of its tables.
        """
        num_tokens = len(batch.token_ids)
        longest, largest_id = int(batch.context_lens.max()), int(batch.token_ids.max())
        assert 0 < num_tokens <= self.max_batch_tokens, num_tokens
        assert longest <= self.num_blocks * BLOCK_TOKENS, (longest, self.num_blocks)
        assert 0 <= largest_id < self.vocab_size, (largest_id, self.vocab_size)
        for table in self.memory.rope_tables.values():
            table.reach(longest)
        self._batch.fill(batch)
        self._run(self._program(self._sizes.for_batch(batch)))
        return self._logits[: len(batch.logits_rows)]

    def close(self) -> None:
        """End the threads. Calling it twice is harmless."""
        self._team.close()

    def _kernels(self) -> list[Kernel]:
        """Return whatever any batch can need, so that no request has to wait for a compiler."""
        lowered = [i for tiles in self._sizes.all() for i in lower(self.program, self.memory, tiles)]
        packing = self.memory.weights.pack_kernels
        return [*TEAM_KERNELS, *packing, *(instruction.kernel for instruction in lowered)]

    def _program(self, tiles: Tiles) -> NDArray[np.int64]:
        if tiles not in self._programs:
            self._programs[tiles] = encode(lower(self.program, self.memory, tiles), self._addresses)
        return self._programs[tiles]

    def _run(self, program: NDArray[np.int64]) -> None:
        self._batch.header[:PROGRAM_WORDS] = program.ctypes.data, len(program)
        self._team.run(self._batch.address)


class _BatchMemory:
    """The header that kernels read, and the arrays of a ForwardBatch at fixed addresses."""

    def __init__(self, max_tokens: int, max_blocks: int) -> None:
        words = PROGRAM_WORDS + len(BATCH_FIELDS)
        lengths = dict.fromkeys(("token_ids", "positions", "slot_of_token", "logits_rows"), max_tokens)
        lengths["block_tables"] = max_tokens * max_blocks
        self._arena = Arena(padded(8 * words) + sum(padded(4 * length) for length in lengths.values()))
        self.address = self._arena.take(8 * words)
        self.header = self._arena.view(self.address, (words,), np.int64)
        self._arrays = {}
        for name, length in lengths.items():
            address = self._arena.take(4 * length)
            self._arrays[name] = self._arena.view(address, (length,), np.int32)
            self.header[PROGRAM_WORDS + BATCH_FIELDS.index(name)] = address
        self._counts = [
            PROGRAM_WORDS + BATCH_FIELDS.index(name)
            for name in ("num_tokens", "num_rows", "table_width", "num_segments", "num_parts")
        ]

    def fill(self, batch: ForwardBatch) -> None:
        """Copy a batch in."""
        for name, array in self._arrays.items():
            source = getattr(batch, name).reshape(-1)
            array[: len(source)] = source
        num_tokens, width = len(batch.token_ids), batch.block_tables.shape[1]
        segments = int(batch.positions.max()) // attention.SEGMENT + 1
        self.header[self._counts] = num_tokens, len(batch.logits_rows), width, segments, num_tokens * segments


def _heads_per_kv(program: Program) -> int:
    """Return how many query heads share a KV head."""
    (attention_op, *_) = (op for op in program.ops if isinstance(op, Attention))
    if attention_op.head_dim % LANES:
        raise UnsupportedModelError(
            f"heads of {attention_op.head_dim} dimensions have no kernels; a multiple of {LANES} is needed"
        )
    return attention_op.heads // attention_op.kv_heads


def _memory(
    program: Program,
    tensors: Mapping[str, Tensor],
    sizes: TileSizes,
    num_blocks: int,
    max_batch_tokens: int,
    threads: int,
) -> Memory:
    """Reserve everything the instructions of a program point to."""
    queries = sizes.attention * _heads_per_kv(program)
    scratch_bytes = padded(
        max(
            attention.scratch_bytes(queries, program.kv.head_dim),
            matmul.scratch_bytes(max(program.widths.values())),
        )
    )
    scratch = Arena(threads * scratch_bytes)
    positions = num_blocks * BLOCK_TOKENS
    segments = -(-positions // attention.SEGMENT)
    heads = program.kv.heads * _heads_per_kv(program)
    turns = {(op.frequencies, op.magnitude) for op in program.ops if isinstance(op, Rope)}
    return Memory(
        weights=PackedWeights(program, tensors),
        buffers=Buffers(program, max_batch_tokens, spare_rows=sizes.products[-1]),
        kv=KVPool(program.kv, num_blocks),
        rope_tables={turn: RopeTable(*turn, positions) for turn in turns},
        scratch=scratch,
        scratch_bytes=scratch_bytes,
        states=Arena(attention.states_bytes(SPLIT_TOKENS, segments, heads, program.kv.head_dim)),
    )
