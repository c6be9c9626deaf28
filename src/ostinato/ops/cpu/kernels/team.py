"""How a team of threads runs a program: claiming work, waiting for it, and the loop in which a worker waits
for a step.

The items of an instruction are dealt out evenly, each worker's share in a few chunks. A worker claims the
chunks of its own share one by one, then those that others have not come to: on a quiet machine everybody does
its own share and touches nobody else's memory, and where one is held up the others do its work. After an
instruction that others depend on, all wait until its items are done, not until all workers have come.

Memory of a team: a few cells of two cache lines each, so that no two threads write to one line, then a cell a
worker. Steps and instructions are numbered on and on, so nothing is ever reset: a claim word holds the number
of the instruction it was last claimed for, and `done` counts items since the team began.
"""

from __future__ import annotations

from ostinato.ops.cpu.kernel import (
    COUNT,
    DIVISOR,
    FACTOR,
    INSTRUCTION_WORDS,
    KERNEL,
    LEAST,
    WAIT,
    WORD_BYTES,
    inline,
    kernel,
)
from ostinato.ops.cpu.simd import (
    atomic_add,
    atomic_exchange,
    atomic_load,
    atomic_store,
    atomic_swap,
    call,
    get_i64,
    pause,
    yield_processor,
)

CELL = 128
STEP, HEADER, DONE_BEFORE, END, WORKERS = 0, CELL, CELL + 8, 2 * CELL, 3 * CELL
"""STEP: 2n while step n may be entered, 2n + 1 when it is over. HEADER: the address of its header.
DONE_BEFORE: items done before
it. END: not zero when the team ends."""

WORKER_CELL = 2 * CELL
CLAIM, DONE, PARKED, INSIDE = 0, 8, CELL, CELL + 8
"""CLAIM: instruction number and next chunk of this worker's share. DONE: items this worker has done. PARKED:
it waits for a lock.
INSIDE: it is running a step."""

PROGRAM_WORDS = 2
"""Words of a header before the fields of the batch: its program, and how many instructions."""

CHUNKS = 16
"""The most chunks that a worker's share is cut into."""

CHUNK_BITS = 8
MAX_INSTRUCTIONS = 1 << 14
SPINS_BEFORE_YIELD = 20_000


@inline
def share(count: int, worker: int, workers: int) -> int:
    """Where a worker's share of `count` items begins; the next worker's beginning is its end."""
    return count * worker // workers


@inline
def cell_of(team: int, worker: int) -> int:
    return team + WORKERS + worker * WORKER_CELL


@inline
def wait_a_little(spins: int) -> int:
    """Spin once; after many spins let somebody else run, who may be the one waited for.

    Returns the number of spins.
    """
    pause()
    if spins >= SPINS_BEFORE_YIELD:
        yield_processor()
    return spins + 1


@inline
def claim(word: int, number: int, chunks: int) -> int:
    """Claim the next chunk of a share for an instruction; -1 if none is left or it is long over."""
    seen = atomic_load(word)
    while True:
        of, chunk = seen >> CHUNK_BITS, seen & ((1 << CHUNK_BITS) - 1)
        if of < number:
            chunk = 0
        elif of > number or chunk >= chunks:
            return -1
        was = atomic_swap(word, seen, (number << CHUNK_BITS) + chunk + 1)
        if was == seen:
            return chunk
        seen = was


@inline
def number_of_items(op: int, batch: int) -> int:
    """How many items an instruction has in this batch."""
    count = 1
    if get_i64(op + COUNT * WORD_BYTES) >= 0:
        count = get_i64(batch + get_i64(op + COUNT * WORD_BYTES) * WORD_BYTES)
    divisor = get_i64(op + DIVISOR * WORD_BYTES)
    return (count + divisor - 1) // divisor * get_i64(op + FACTOR * WORD_BYTES)


@inline
def work_on(team: int, worker: int, workers: int, batch: int, op: int, number: int, items: int) -> int:
    """Claim and run chunks of one instruction until none is left; return how many items were done."""
    done, least = 0, get_i64(op + LEAST * WORD_BYTES)
    for turn in range(workers):
        owner = (worker + turn) % workers
        begin, end = share(items, owner, workers), share(items, owner + 1, workers)
        size = max(least, (end - begin + CHUNKS - 1) // CHUNKS)
        while begin < end:
            chunk = claim(cell_of(team, owner) + CLAIM, number, (end - begin + size - 1) // size)
            if chunk < 0:
                break
            first = begin + chunk * size
            last = min(first + size, end)
            call(get_i64(op + KERNEL * WORD_BYTES), first, last, worker, batch, op)
            done += last - first
    return done


@inline
def wait_until_done(team: int, workers: int, goal: int) -> None:
    """Wait until the items that all workers have done add up to `goal`."""
    spins = 0
    while True:
        done = 0
        for worker in range(workers):
            done += atomic_load(cell_of(team, worker) + DONE)
        if done >= goal:
            break
        spins = wait_a_little(spins)


@inline
def run_step(team: int, worker: int, workers: int, step: int) -> None:
    """Work through the program of a step."""
    header, goal = atomic_load(team + HEADER), atomic_load(team + DONE_BEFORE)
    program, count = get_i64(header), get_i64(header + WORD_BYTES)
    batch = header + PROGRAM_WORDS * WORD_BYTES
    mine = cell_of(team, worker) + DONE
    done = atomic_load(mine)
    for i in range(count):
        op = program + i * INSTRUCTION_WORDS * WORD_BYTES
        items = number_of_items(op, batch)
        did = work_on(team, worker, workers, batch, op, step * MAX_INSTRUCTIONS + i + 1, items)
        if did > 0:
            done += did
            atomic_store(mine, done)
        goal += items
        if get_i64(op + WAIT * WORD_BYTES) != 0:
            wait_until_done(team, workers, goal)


@kernel
def team_start(team: int, workers: int, woken: int) -> None:
    """Open the next step. Writes an int64 a worker at `woken`: 1 where it waits for its lock."""
    done = 0
    for worker in range(workers):
        done += atomic_load(cell_of(team, worker) + DONE)
    atomic_store(team + DONE_BEFORE, done)
    atomic_add(team + STEP, 1)
    for worker in range(workers):
        atomic_store(woken + worker * WORD_BYTES, atomic_load(cell_of(team, worker) + PARKED))


@kernel
def team_lead(team: int, workers: int) -> None:
    """Run the open step, if there is one, as worker 0; close it, and wait until all are out of it."""
    step = atomic_load(team + STEP)
    if step % 2 == 1:
        return
    run_step(team, 0, workers, step // 2)
    atomic_exchange(team + STEP, step + 1)
    for worker in range(workers):
        spins = 0
        while atomic_load(cell_of(team, worker) + INSIDE) != 0:
            spins = wait_a_little(spins)


@kernel
def team_serve(worker: int, team: int, workers: int, spins: int) -> None:
    """Run steps as they open; return, marked as parked, after `spins` looks in vain, or at the end."""
    mine = cell_of(team, worker)
    atomic_store(mine + PARKED, 0)
    seen, idle = 1, 0
    while atomic_load(team + END) == 0:
        step = atomic_load(team + STEP)
        if step % 2 == 0 and step != seen:
            atomic_exchange(mine + INSIDE, 1)
            if atomic_load(team + STEP) == step:
                run_step(team, worker, workers, step // 2)
                seen, idle = step, 0
            atomic_store(mine + INSIDE, 0)
        elif idle < spins:
            pause()
            idle += 1
        else:
            atomic_exchange(mine + PARKED, 1)
            step = atomic_load(team + STEP)
            if step % 2 == 1 or step == seen:
                return
            atomic_store(mine + PARKED, 0)
            idle = 0


@kernel
def team_spin(spins: int) -> None:
    """Look at nothing `spins` times, to find out how long that takes."""
    for _ in range(spins):
        pause()


TEAM_KERNELS = (team_start, team_lead, team_serve, team_spin)
"""What a team needs besides the kernels of its programs."""
