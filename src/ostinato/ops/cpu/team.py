"""A team of threads that runs programs: the caller is worker 0, the others spin for work and park when there
is none.

Compiled code runs without the GIL. A parked worker waits on a lock, so an idle process uses no processor
time. What the threads do is in `kernels/team.py`; here they are started, woken and ended.
"""

from __future__ import annotations

import ctypes
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from ostinato.ops.cpu.instructions import Instruction, Items, encode
from ostinato.ops.cpu.kernel import Kernel
from ostinato.ops.cpu.kernels import team as kernels
from ostinato.ops.cpu.library import Library
from ostinato.ops.cpu.memory import Arena, padded

SPIN_S = 0.002
"""How long a worker looks for a step before it parks: longer than a request needs between two."""

_Entry = Callable[[int, int, int, int, int], None]
_PROTOTYPE = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)


class _Call:
    """A compiled kernel with fixed fields, as worker `worker`. The GIL is released while it runs.

    `run` has no frame in Python, so that no interrupt can be raised between calling it and its first step.
    """

    def __init__(self, library: Library, kernel: Kernel, worker: int = 0, **values: int) -> None:
        addresses = library.load([kernel])
        self._words = encode([Instruction(kernel, Items(), values)], addresses)
        entry: _Entry = _PROTOTYPE(addresses[kernel.name])
        self.run = partial(entry, 0, 0, worker, 0, self._words.ctypes.data)


class _State:
    """What the threads of a team share; it does not refer to the Team, so a forgotten one can end."""

    def __init__(self, workers: int, library: Library) -> None:
        cells_bytes = kernels.WORKERS + workers * kernels.WORKER_CELL
        self._arena = Arena(padded(cells_bytes) + padded(8 * workers))
        team, woken = self._arena.take(cells_bytes), self._arena.take(8 * workers)
        self.cells = self._arena.view(team, (cells_bytes // 8,), np.int64)
        self.cells[kernels.STEP // 8] = 1
        self.woken = self._arena.view(woken, (workers,), np.int64)
        self.locks = [threading.Lock() for _ in range(workers)]
        for lock in self.locks:
            lock.acquire()
        self.start = _Call(library, kernels.team_start, team=team, workers=workers, woken=woken)
        self.lead = _Call(library, kernels.team_lead, team=team, workers=workers)
        spins = _spins_in(SPIN_S, library)
        self.serve = [
            _Call(library, kernels.team_serve, worker, team=team, workers=workers, spins=spins)
            for worker in range(workers)
        ]

    @property
    def ended(self) -> bool:
        return bool(self.cells[kernels.END // 8])


class Team:
    """`workers` threads, the calling one included.

    One call of `run` at a time; close it, or let it be collected.
    """

    def __init__(self, workers: int, library: Library) -> None:
        self._state = _State(workers, library)
        self._threads = [
            threading.Thread(target=_work, args=(self._state, worker), name=f"ostinato-{worker}", daemon=True)
            for worker in range(1, workers)
        ]
        for thread in self._threads:
            thread.start()
        self._end = weakref.finalize(self, _end, self._state, self._threads)

    def run(self, header: int) -> None:
        """Run the program named by the header at this address, on all threads; return when it is done."""
        state = self._state
        state.cells[kernels.HEADER // 8] = header
        lead = state.lead.run
        try:
            state.start.run()
            for worker in np.flatnonzero(state.woken):
                _wake(state.locks[worker])
        finally:  # an interrupt may come anywhere: a step that was opened is closed
            lead()

    def close(self) -> None:
        """End the threads."""
        self._end()


def _work(state: _State, worker: int) -> None:
    while not state.ended:
        state.serve[worker].run()
        if not state.ended:
            state.locks[worker].acquire()


def _wake(lock: threading.Lock) -> None:
    """Let the worker that waits for this lock go on; harmless where it was told already."""
    with suppress(RuntimeError):
        lock.release()


def _end(state: _State, threads: Sequence[threading.Thread]) -> None:
    state.cells[kernels.END // 8] = 1
    for lock in state.locks:
        _wake(lock)
    for thread in threads:
        if thread is not threading.current_thread():  # a worker may be the one that collects garbage
            thread.join()


def _spins_in(seconds: float, library: Library) -> int:
    """Return how many times a worker can look for work in this time."""
    trial = 20_000
    call = _Call(library, kernels.team_spin, spins=trial)
    begin = time.perf_counter()
    call.run()
    return max(1, round(trial * seconds / (time.perf_counter() - begin)))
