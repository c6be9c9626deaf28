"""Ostinato and its peers on the same files, threads and lengths, measured in turns in one run.

    pip install . llama-cpp-python openvino-genai
    python benchmarks/peers.py [MODEL ...] [--prefill 512 2048] [--depth 0 4096] [--new-tokens 128]
        [--rounds 5] [--threads 2] [--peers llama.cpp openvino] [--llama-python P] [--openvino-python P]

Prefill is one pass over a prompt of which nothing is cached; each round has another one. Decode is greedy,
gaps after a prompt of 16 tokens (depth 0) or of so many, with the choice of each token and its way back into
the model included on all sides; reading the prompt does not count. Each engine runs in a process of its own
(engines.py), which does nothing while another is measured; within a round all engines do the same work one
after the other, each round begun by another. llama.cpp runs with and without flash attention, OpenVINO GenAI
with and without paged attention, and each figure of a peer is the better of its two. A first round does not
count. Prints a table a model, then one JSON line with every sample. A peer that refuses a file is left out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import ostinato

MODELS = ("smollm2", "gemma3-270m", "qwen2.5-coder-1.5b")
PEERS = ("llama.cpp", "openvino")
SHORT_PROMPT = 16

Samples = dict[str, dict[str, list[float]]]
"""Rates in tokens per second: by work, then by engine and setting."""


@dataclass(frozen=True)
class Work:
    """What is measured: a prefill of `prompt` tokens, or, with `new_tokens`, the decode after it."""

    name: str
    prompt: int
    new_tokens: int = 0

    def ids(self, vocab_size: int, round_number: int) -> list[int]:
        """Return the prompt of a round: scattered over the vocabulary, another each time for a prefill."""
        begin = 104729 * (1 if self.new_tokens else round_number + 1)
        return [(7919 * i + begin) % vocab_size for i in range(self.prompt)]


@dataclass(frozen=True)
class Worker:
    """The process of an engine."""

    engine: str
    version: str
    vocab_size: int | None
    process: subprocess.Popen[str]

    def measure(self, ids: list[int], new_tokens: int) -> dict[str, float]:
        """Return the rate of each of the engine's settings."""
        assert self.process.stdin is not None
        print(json.dumps([ids, new_tokens]), file=self.process.stdin, flush=True)
        rates: dict[str, float] = answer(self.engine, self.process)
        return rates


def answer(engine: str, process: subprocess.Popen[str]) -> Any:
    """Read a line of an engine's process."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        sys.exit(
            f"{engine} ended with code {process.wait()}: is it installed for its interpreter? "
            "--llama-python and --openvino-python name others, --peers leaves an engine out"
        )
    return json.loads(line)


@contextmanager
def worker(engine: str, python: str, path: Path, threads: int, longest: int) -> Iterator[Worker | None]:
    """Start the process of an engine; None if it refuses the file."""
    script = Path(__file__).with_name("engines.py")
    command = [python, str(script), engine, str(path), str(threads), str(longest)]
    quiet = None if engine == "ostinato" else subprocess.DEVNULL
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=quiet, text=True, bufsize=1
    )
    try:
        ready = answer(engine, process)
        if "refused" in ready:
            refusal = f"{engine} refuses {path.name}: {ready['refused'][:200]}"
            if engine == "ostinato":
                sys.exit(refusal)
            print(refusal, file=sys.stderr)
            yield None
        else:
            yield Worker(engine, ready["version"], ready["vocab_size"], process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=60)


def works(arguments: argparse.Namespace) -> list[Work]:
    """Return what was asked for."""
    new = arguments.new_tokens
    decodes = [
        Work(f"decode {new} at depth {depth}", depth or SHORT_PROMPT, new) for depth in arguments.depth
    ]
    return [*(Work(f"prefill {count}", count) for count in arguments.prefill), *decodes]


def measure_in_turns(workers: Sequence[Worker], asked: Sequence[Work], rounds: int) -> Samples:
    """Return the samples of each work, engine and setting."""
    vocab_size = min(worker.vocab_size for worker in workers if worker.vocab_size is not None)
    samples: Samples = {work.name: {} for work in asked}
    for work in asked:
        for round_number in range(rounds + 1):
            ids, first = work.ids(vocab_size, round_number), round_number % len(workers)
            for one in (*workers[first:], *workers[:first]):
                for name, rate in one.measure(ids, work.new_tokens).items():
                    if round_number:
                        samples[work.name].setdefault(name, []).append(rate)
            print(f"{work.name}: round {round_number} of {rounds}", file=sys.stderr)
    return samples


def ratios(rates: Mapping[str, list[float]], peers: Sequence[str]) -> dict[str, float]:
    """Return the median of Ostinato over that of the better setting of each peer."""
    medians = {name: median(samples) for name, samples in rates.items()}
    found = {}
    for peer in peers:
        theirs = [rate for name, rate in medians.items() if name.lower().startswith(peer)]
        if theirs:
            found[peer] = medians["ostinato"] / max(theirs)
    return found


def table(samples: Samples, peers: Sequence[str]) -> str:
    """Return medians, least and most, and ratios."""
    lines = []
    for work_name, rates in samples.items():
        lines.append(work_name)
        for name, tps in sorted(rates.items(), key=lambda item: item[0] != "ostinato"):
            lines.append(f"  {name:28} {median(tps):8.1f} tok/s   ({min(tps):.1f} to {max(tps):.1f})")
        for peer, ratio in ratios(rates, peers).items():
            lines.append(f"  {f'ratio to {peer} at its best':28} {ratio:8.2f}")
    return "\n".join(lines)


def compare(model: str, arguments: argparse.Namespace) -> None:
    """Measure one model, and print its table and JSON line."""
    path, asked = ostinato.describe(model, pull=True).path, works(arguments)
    longest = max(work.prompt + work.new_tokens for work in asked) + 64
    pythons = {"llama.cpp": arguments.llama_python, "openvino": arguments.openvino_python}
    engines = {"ostinato": sys.executable, **{peer: pythons[peer] for peer in arguments.peers}}
    with ExitStack() as stack:
        started = [
            stack.enter_context(worker(engine, python, path, arguments.threads, longest))
            for engine, python in engines.items()
        ]
        workers = [one for one in started if one is not None]
        versions = {one.engine: one.version for one in workers}
        samples = measure_in_turns(workers, asked, arguments.rounds)
    machine = ostinato.measure_machine(arguments.threads)
    described = ", ".join(f"{engine} {version}" for engine, version in versions.items())
    print(f"{path.name}, {arguments.threads} threads of {machine.processor}; {described}")
    print(table(samples, arguments.peers))
    result = {"model": model, "file": path.name, "threads": arguments.threads, "versions": versions}
    result |= {"processor": machine.processor, "read_gbps": machine.read_gbps, "samples": samples}
    result["ratios"] = {name: ratios(rates, arguments.peers) for name, rates in samples.items()}
    print(json.dumps(result), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=MODELS, help="built-in names or paths")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prefill", type=int, nargs="*", default=[512, 2048], help="lengths of prompts")
    parser.add_argument("--depth", type=int, nargs="*", default=[0, 4096], help="depths to decode at")
    parser.add_argument("--new-tokens", type=int, default=128, help="tokens to decode")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS)
    parser.add_argument("--llama-python", default=sys.executable, help="interpreter with llama-cpp-python")
    parser.add_argument("--openvino-python", default=sys.executable, help="interpreter with openvino-genai")
    arguments = parser.parse_args()
    if not (arguments.prefill or arguments.depth):
        parser.error("nothing to measure: give lengths to --prefill or --depth")
    if min([*arguments.prefill, arguments.new_tokens, arguments.rounds, arguments.threads]) < 1:
        parser.error("lengths, rounds and threads are 1 or more")
    for model in arguments.models:
        compare(model, arguments)


if __name__ == "__main__":
    main()
