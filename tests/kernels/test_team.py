"""The team of threads: every item once, in order where order was asked for; parking, waking, ending."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np
import pytest
from harness import PATHS, Array, linked, own_kernel

from ostinato.ops.cpu.instructions import Instruction, Items, encode
from ostinato.ops.cpu.kernel import BATCH_FIELDS, Kernel
from ostinato.ops.cpu.kernels import team as layout
from ostinato.ops.cpu.library import Library
from ostinato.ops.cpu.simd import (
    atomic_add,
    atomic_load,
    atomic_store,
    get_i32,
    pause,
    set_i32,
    yield_processor,
)
from ostinato.ops.cpu.team import SPIN_S, Team

WORKERS = (1, 2, 3, 5)
"""Sizes of a team, more than this machine may have processors."""

PATIENCE_S = 60.0
"""How long a test waits for what must happen before it gives up."""


def count_items(first: int, last: int, worker: int, counters: int, seen: int, idle: int) -> None:
    """Count each item at its place, and what a worker did at the worker's; now and then take some time."""
    for n in range(first, last):
        for _ in range(n * idle % 97):
            pause()
        atomic_add(counters + 8 * n, 1)
    atomic_add(seen + 8 * worker, last - first)


def gather(first: int, last: int, source: int, target: int, count: int, step: int) -> None:
    """target[n] = source[(step · n) % count] + n, with ordinary loads and stores."""
    for n in range(first, last):
        set_i32(target + 4 * n, get_i32(source + n * step % count * 4) + n)


def meet(first: int, last: int, arrived: int, wanted: int, missed: int) -> None:
    """Wait until all items have been begun, which takes as many workers as there are items."""
    atomic_add(arrived, last - first)
    rounds = 0
    while atomic_load(arrived) < wanted and rounds < 2_000_000:
        yield_processor()
        rounds += 1
    if atomic_load(arrived) < wanted:
        atomic_store(missed, 1)


COUNT_ITEMS, GATHER, MEET = own_kernel(count_items), own_kernel(gather), own_kernel(meet)


@cache
def kernels() -> Library:
    return linked(PATHS[0], [COUNT_ITEMS, GATHER, MEET])


@pytest.fixture(params=WORKERS)
def team(request: pytest.FixtureRequest) -> Iterator[Team]:
    made = Team(request.param, kernels())
    yield made
    made.close()


def size_of(team: Team) -> int:
    return len(team._threads) + 1


class Step:
    """An encoded program, to be run over batches of several sizes."""

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        self.words = encode(instructions, kernels().load([COUNT_ITEMS, GATHER, MEET]))
        self.header = np.zeros(layout.PROGRAM_WORDS + len(BATCH_FIELDS), np.int64)
        self.header[: layout.PROGRAM_WORDS] = self.words.ctypes.data, len(self.words)

    def run(self, team: Team, **batch: int) -> None:
        for name, value in batch.items():
            self.header[layout.PROGRAM_WORDS + BATCH_FIELDS.index(name)] = value
        team.run(self.header.ctypes.data)


def instruction(
    kernel: Kernel, items: Items, reads: Sequence[str] = (), writes: Sequence[str] = (), **values: int | Array
) -> Instruction:
    words = {name: v.ctypes.data if isinstance(v, np.ndarray) else v for name, v in values.items()}
    return Instruction(kernel, items, words, frozenset(reads), frozenset(writes))


def expected_items(items: Items, batch: dict[str, int]) -> int:
    count = 1 if items.count is None else batch[items.count]
    return -(-count // items.divisor) * items.factor


# -- every item once, and in order ---------------------------------------------------------------------------

PROGRAMS, BATCHES, MAX_ITEMS = 150, 8, 1200


def random_items(rng: np.random.Generator) -> Items:
    if rng.random() < 0.5:
        return Items(int(rng.choice([0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 100, 1000])))
    return Items(
        int(rng.choice([1, 2, 3, 9])), str(rng.choice(["num_tokens", "num_rows"])), int(rng.integers(1, 9))
    )


def test_every_item_once(team: Team) -> None:
    """Over random programs and batches, empty instructions among them, with and without waits."""
    rng = np.random.default_rng(size_of(team))
    seen = np.zeros(size_of(team), np.int64)
    for _ in range(PROGRAMS):
        length = int(rng.integers(1, 13))
        counters = np.zeros((length, MAX_ITEMS), np.int64)
        program = [
            instruction(
                COUNT_ITEMS,
                random_items(rng),
                writes=[str(rng.integers(0, 3))] if rng.random() < 0.5 else [],
                counters=counters[i],
                seen=seen,
                idle=int(rng.integers(0, 97)),
            )
            for i in range(length)
        ]
        step = Step(program)
        want = np.zeros_like(counters)
        for _ in range(BATCHES):
            batch = {"num_tokens": int(rng.integers(0, 41)), "num_rows": int(rng.integers(0, 9))}
            step.run(team, **batch)
            for i, one in enumerate(program):
                want[i, : expected_items(one.items, batch)] += 1
            np.testing.assert_array_equal(counters, want)
        seen -= seen  # workers outside a step write nothing
    assert not seen.any()


def test_waits_order_what_depends(team: Team) -> None:
    """Each instruction reads what all workers wrote in those before it, in every step anew."""
    rng = np.random.default_rng(size_of(team))
    for _ in range(PROGRAMS // 3):
        count, length = int(rng.choice([1, 2, 7, 64, 500])), int(rng.integers(2, 20))
        arrays = rng.integers(-1000, 1000, (3, count)).astype(np.int32)
        want, program, numbers = arrays.copy(), [], np.arange(count, dtype=np.int32)
        pairs = [rng.permutation(3)[:2] for _ in range(length)]
        steps = [int(rng.integers(1, 50)) for _ in range(length)]
        for (source, target), step in zip(pairs, steps, strict=True):
            program.append(
                instruction(
                    GATHER,
                    Items(count),
                    reads=[str(source)],
                    writes=[str(target)],
                    source=arrays[source],
                    target=arrays[target],
                    count=count,
                    step=step,
                )
            )
        encoded = Step(program)
        for _ in range(BATCHES):
            encoded.run(team)
            for (source, target), step in zip(pairs, steps, strict=True):
                want[target] = want[source][numbers * step % count] + numbers
        np.testing.assert_array_equal(arrays, want)


def test_the_caller_sees_what_was_written(team: Team) -> None:
    """And the team sees what the caller wrote between two steps."""
    source, target = np.zeros(64, np.int32), np.zeros(64, np.int32)
    step = Step([instruction(GATHER, Items(64), source=source, target=target, count=64, step=1)])
    for i in range(3000):
        source[:] = i
        step.run(team)
        assert target[0] == i and target[63] == i + 63


def test_work_is_shared() -> None:
    """A worker that is held up does not hold up the others' items: they are claimed in chunks."""
    team = Team(2, kernels())
    arrived, missed = np.zeros(1, np.int64), np.zeros(1, np.int64)
    Step([instruction(MEET, Items(2), arrived=arrived, wanted=2, missed=missed)]).run(team)
    assert arrived[0] == 2 and not missed[0]
    team.close()


# -- parking and waking --------------------------------------------------------------------------------------


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that must happen; fail if it does not."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.001)


def parked(team: Team) -> bool:
    """Whether every worker but the caller is parked."""
    cells = team._state.cells
    first = (layout.WORKERS + layout.WORKER_CELL + layout.PARKED) // 8
    return bool(cells[first :: layout.WORKER_CELL // 8].all())


def test_parked_workers_wake(team: Team) -> None:
    """All of them: each of as many items as there are workers waits until all have been begun."""
    workers = size_of(team)
    arrived, missed = np.zeros(1, np.int64), np.zeros(1, np.int64)
    step = Step([instruction(MEET, Items(workers), arrived=arrived, wanted=workers, missed=missed)])
    for _ in range(10):
        until(lambda: parked(team))
        arrived[0] = 0
        step.run(team)
        assert arrived[0] == workers and not missed[0]


def test_steps_at_the_moment_of_parking() -> None:
    """Pauses of about as long as a worker looks for work: waking and parking meet in every way."""
    team, rng = Team(3, kernels()), np.random.default_rng(1)
    counters, seen = np.zeros(40, np.int64), np.zeros(3, np.int64)
    step = Step([instruction(COUNT_ITEMS, Items(40), counters=counters, seen=seen, idle=3)])
    for i in range(400):
        end = time.perf_counter() + SPIN_S * rng.uniform(0.8, 1.3)
        while time.perf_counter() < end:
            pass
        step.run(team)
        assert (counters == i + 1).all()
    until(lambda: parked(team))
    team.close()


def test_an_idle_team_uses_no_processor_time() -> None:
    team = Team(3, kernels())
    until(lambda: parked(team))
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.05
    team.close()


# -- ending --------------------------------------------------------------------------------------------------


def test_closing_twice_is_harmless(team: Team) -> None:
    threads = team._threads
    team.close()
    assert not any(thread.is_alive() for thread in threads)
    team.close()


def test_closing_ends_a_team_in_any_state() -> None:
    counters, seen = np.zeros(8, np.int64), np.zeros(3, np.int64)
    step = Step([instruction(COUNT_ITEMS, Items(8), counters=counters, seen=seen, idle=1)])
    for steps in range(60):
        team = Team(3, kernels())
        for _ in range(steps % 4):
            step.run(team)
        if steps % 5 == 0:
            until(lambda: parked(team))  # noqa: B023
        team.close()
        assert not any(thread.is_alive() for thread in team._threads)


def test_a_forgotten_team_ends() -> None:
    before = threading.active_count()
    team = Team(3, kernels())
    threads = team._threads
    assert threading.active_count() == before + 2
    del team
    gc.collect()
    assert not any(thread.is_alive() for thread in threads)


PREAMBLE = """
    import os, sys, threading, time
    import numpy as np
    from ostinato.ops.cpu import host
    from ostinato.ops.cpu.instructions import Instruction, Items, encode
    from ostinato.ops.cpu.kernels.rows import take_rows
    from ostinato.ops.cpu.library import library
    from ostinato.ops.cpu.team import Team

    x, y, rows = np.ones((64, 16), np.float32), np.zeros((64, 16), np.float32), np.arange(64, dtype=np.int32)
    values = {"x": x.ctypes.data, "y": y.ctypes.data, "stride": 16}
    kernels = library(host.target())
    words = encode([Instruction(take_rows, Items(64), values)], kernels.load([take_rows]))
    header = np.array([words.ctypes.data, 1, 0, 0, 0, 0, 0, 0, 0, rows.ctypes.data], np.int64)
    team = Team(3, kernels)

    def step():
        y[:] = 0
        team.run(header.ctypes.data)
        assert y.all()
"""


def child(script: str, timeout: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
    """Run a script with a team of its own to its end, which must come."""
    code = textwrap.dedent(PREAMBLE) + textwrap.dedent(script)
    # Newer Pythons warn of any fork in a process with threads, which is what some of these tests are about.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


ENDINGS = {
    "new": "",
    "spinning": "step()",
    "parked": "step(); time.sleep(0.05)",
    "exit": "step(); sys.exit(0)",
    "cycle": "step(); keep = [team]; keep.append(keep); del team",
    "thread at work": "threading.Thread(target=lambda: [step() for _ in range(2000)]).start()",
    "after closing": "team.close(); step(); step()",
}


@pytest.mark.parametrize("script", ENDINGS.values(), ids=ENDINGS)
def test_the_interpreter_ends(script: str) -> None:
    """With a living team, whatever it is doing: no hang, no crash, nothing on the error stream."""
    done = child(script)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_interpreter_ends_while_a_thread_runs_steps() -> None:
    """A daemon thread, which nobody waits for: that it is cut off is no error to be reported."""
    for _ in range(10):
        done = child(
            """
            def work():
                while True:
                    team.run(header.ctypes.data)

            threading.Thread(target=work, daemon=True).start()
            time.sleep(0.02)
            """
        )
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a timer that interrupts")
def test_an_interrupt_at_any_moment_does_no_harm() -> None:
    """Ctrl-C raises KeyboardInterrupt between any two statements of the main thread."""
    done = child(
        """
        import signal

        def interrupt(number, frame):
            raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, interrupt)
        watch = threading.Timer(10, os._exit, [77])
        watch.start()
        for i in range(6000):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-5 * (3 + i % 17))
                while True:
                    team.run(header.ctypes.data)
            except KeyboardInterrupt:
                pass
        step()
        watch.cancel()
        """
    )
    if done.returncode not in (0, 77):
        raise RuntimeError(done.stderr)
    assert done.returncode == 0, "a step never ended"


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_a_forked_process_does_not_disturb_its_parent() -> None:
    done = child(
        """
        from ostinato.ops.cpu.memory import Arena

        arena = Arena(100)
        step()
        if (pid := os.fork()) == 0:
            arena.bytes[:] = 1
            os._exit(0)
        os.waitpid(pid, 0)
        print(arena.bytes.any())
        """
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    assert done.stdout == "False\n"


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_a_forked_process_runs_steps_alone() -> None:
    """Without the parent's threads, and without them noticing."""
    done = child(
        """
        step()
        if (pid := os.fork()) == 0:
            step()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        step()
        """
    )
    assert (done.returncode, done.stderr) == (0, "")
