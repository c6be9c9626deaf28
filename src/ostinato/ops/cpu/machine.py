"""What this machine can do at most: how fast it reads memory, and how fast it multiplies bytes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import numpy as np

from ostinato.errors import InvalidRequestError
from ostinato.ops.cpu import host
from ostinato.ops.cpu.instructions import Instruction, Items, encode
from ostinato.ops.cpu.kernels import measure
from ostinato.ops.cpu.kernels.team import PROGRAM_WORDS
from ostinato.ops.cpu.library import Library, Report, library
from ostinato.ops.cpu.memory import Arena
from ostinato.ops.cpu.simd import LANES
from ostinato.ops.cpu.team import Team

READ_BYTES = 256 << 20
"""Bytes read in one trial: several times any cache of a desktop."""

MULTIPLY_ITEMS = 500
TRIALS = 7
SINK_BYTES = 16 * 64


@dataclass(frozen=True, slots=True)
class Machine:
    """The processor and its limits, for all `threads` together.

    read_gbps: memory read, in 10^9 bytes per second. int8_gops: multiplications and additions of bytes, in
    10^9 per second.
    """

    processor: str
    simd: str
    threads: int
    read_gbps: float
    int8_gops: float


def measure_machine(threads: int | None = None, report: Report | None = None) -> Machine:
    """Measure this machine, in about a tenth of a second: the median of several trials after one that does
    not count.

    Args:
        threads: by default the cores this process may use.
        report: told of the progress if kernels have to be compiled.

    Raises:
        InvalidRequestError: `threads` is below 1.
    """
    target = host.target()
    threads = host.usable_cores() if threads is None else threads
    if threads < 1:
        raise InvalidRequestError(f"threads is {threads}; 1 or more are allowed", "threads")
    bench = _Bench(threads, library(target), report)
    try:
        return Machine(
            processor=host.processor_name(),
            simd=target.simd,
            threads=threads,
            read_gbps=READ_BYTES / 1e9 / bench.read_s(),
            int8_gops=MULTIPLY_ITEMS * measure.ROUNDS * 16 * 4 * LANES * 2 / 1e9 / bench.multiply_s(),
        )
    finally:
        bench.close()


class _Bench:
    """A team, and memory for it to read."""

    def __init__(self, threads: int, kernels: Library, report: Report | None) -> None:
        self._addresses = kernels.load(measure.MEASURE_KERNELS, report)
        self._source, self._sink = Arena(READ_BYTES, huge=True), Arena(threads * SINK_BYTES)
        self._source.bytes[:] = 1
        self._words = Arena(PROGRAM_WORDS * 8)
        self._header = self._words.view(self._words.address, (PROGRAM_WORDS,), np.int64)
        self._team = Team(threads, kernels)

    def read_s(self) -> float:
        """Seconds to read READ_BYTES."""
        values = {"source": self._source.address, "sink": self._sink.address}
        return self._seconds(Instruction(measure.read_memory, Items(READ_BYTES // measure.PIECE), values))

    def multiply_s(self) -> float:
        """Seconds for MULTIPLY_ITEMS."""
        values = {"sink": self._sink.address}
        return self._seconds(Instruction(measure.multiply_bytes, Items(MULTIPLY_ITEMS), values))

    def close(self) -> None:
        """End the team."""
        self._team.close()

    def _seconds(self, instruction: Instruction) -> float:
        words = encode([instruction], self._addresses)
        self._header[:] = words.ctypes.data, len(words)
        trials = []
        for _ in range(TRIALS + 1):
            begin = time.perf_counter()
            self._team.run(self._words.address)
            trials.append(time.perf_counter() - begin)
        return median(trials[1:])
