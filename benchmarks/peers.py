"""Ostinato and llama.cpp on the same file, threads and lengths, measured in turns in one run.

    pip install . llama-cpp-python
    python benchmarks/peers.py [MODEL] [--threads 2] [--prompt-tokens 512] [--new-tokens 128] [--rounds 7]

Prefill is one pass over a prompt of `--prompt-tokens`; decode is greedy, `--new-tokens` gaps after a prompt
of 16, with the choice of each token and its way back into the model included on both sides. Each engine runs
in a process of its own, which does nothing while the other is measured. llama.cpp runs with and without flash
attention, and each of its figures is the better of the two. Prints a table, then one JSON line with every
sample.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

SHORT_PROMPT = 16

Measure = Callable[[], tuple[float, float]]
"""Returns prefill and decode rates, in tokens per second."""


def tokens(count: int, vocab_size: int) -> list[int]:
    """Return the ids that every engine is given."""
    return [(7919 * i + 104729) % vocab_size for i in range(count)]


def ostinato_measures(path: str, threads: int, prompt: int, new: int) -> dict[str, Measure]:
    import ostinato
    from ostinato import Options, SamplingParams

    model = ostinato.load(path, threads=threads)
    greedy = SamplingParams(temperature=0.0)

    def measure() -> tuple[float, float]:
        def timings(count: int, max_tokens: int) -> Any:
            ids = tokens(count, model.tokenizer.vocab_size)
            options = Options(max_tokens=max_tokens, ignore_eos=True, use_cache=False, sampling=greedy)
            return model.generate(ids, options).timings

        return timings(prompt, 1).prefill_tps, timings(SHORT_PROMPT, new + 1).decode_tps

    return {"ostinato": measure}


def llama_cpp_measures(path: str, threads: int, prompt: int, new: int) -> dict[str, Measure]:
    import ctypes

    import llama_cpp as llama

    silent = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(silent, ctypes.c_void_p(0))
    llama_cpp_measures.keep = silent  # type: ignore[attr-defined]
    llama.llama_backend_init()
    model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
    vocab_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))

    def with_flash_attention(on: bool) -> Measure:
        params = llama.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = prompt + new + 64, max(512, prompt), 512
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = int(on)
        context = llama.llama_init_from_model(model, params)
        sampler = llama.llama_sampler_init_greedy()

        def read(ids: list[int]) -> None:
            llama.llama_memory_clear(llama.llama_get_memory(context), True)
            array = (ctypes.c_int32 * len(ids))(*ids)
            assert llama.llama_decode(context, llama.llama_batch_get_one(array, len(ids))) == 0
            llama.llama_synchronize(context)

        def measure() -> tuple[float, float]:
            ids, short = tokens(prompt, vocab_size), tokens(SHORT_PROMPT, vocab_size)
            begin = time.perf_counter()
            read(ids)
            prefill_s = time.perf_counter() - begin
            read(short)
            newest = (ctypes.c_int32 * 1)(llama.llama_sampler_sample(sampler, context, -1))
            begin = time.perf_counter()
            for _ in range(new):
                assert llama.llama_decode(context, llama.llama_batch_get_one(newest, 1)) == 0
                newest[0] = llama.llama_sampler_sample(sampler, context, -1)
            return prompt / prefill_s, new / (time.perf_counter() - begin)

        return measure

    return {
        "llama.cpp": with_flash_attention(False),
        "llama.cpp, flash attention": with_flash_attention(True),
    }


ENGINES = {"ostinato": ostinato_measures, "llama.cpp": llama_cpp_measures}


def work(engine: str, arguments: argparse.Namespace) -> None:
    """Be the process of one engine: measure each time a line comes in, answer with a line."""
    measures = ENGINES[engine](
        arguments.model, arguments.threads, arguments.prompt_tokens, arguments.new_tokens
    )
    print(json.dumps("ready"), flush=True)
    for _ in sys.stdin:
        print(json.dumps({name: measure() for name, measure in measures.items()}), flush=True)


@contextmanager
def worker(engine: str, python: str, command: list[str]) -> Iterator[Callable[[], Any]]:
    """Start the process of an engine, and yield what asks it for a round of measurements."""
    process = subprocess.Popen(
        [python, __file__, *command, "--worker", engine],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if engine == "llama.cpp" else None,
        text=True,
        bufsize=1,
    )
    assert process.stdin is not None and process.stdout is not None

    def answer() -> Any:
        line = process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            sys.exit(f"{engine} ended with code {process.wait()}: is it installed for {python}?")
        return json.loads(line)

    def ask() -> Any:
        process.stdin.write("\n")  # type: ignore[union-attr]
        return answer()

    answer()
    try:
        yield ask
    finally:
        process.stdin.close()
        process.wait(timeout=60)


def measure_in_turns(
    arguments: argparse.Namespace, command: list[str]
) -> dict[str, list[tuple[float, float]]]:
    """Return the samples of each engine, (prefill, decode) a round; a first round does not count."""
    samples: dict[str, list[tuple[float, float]]] = {}
    with (
        worker("ostinato", sys.executable, command) as ours,
        worker("llama.cpp", arguments.llama_python, command) as theirs,
    ):
        for round_number in range(arguments.rounds + 1):
            for ask in (ours, theirs):
                for name, rates in ask().items():
                    if round_number:
                        samples.setdefault(name, []).append(tuple(rates))
    return samples


def report(samples: dict[str, list[tuple[float, float]]], arguments: argparse.Namespace) -> None:
    """Print the table, and the JSON line."""
    lengths = (arguments.prompt_tokens, arguments.new_tokens)
    result: dict[str, Any] = {"model": arguments.model, "threads": arguments.threads, "lengths": lengths}
    for column, work_name in enumerate(("prefill", "decode")):
        print(f"{work_name}, {lengths[column]} tokens, {arguments.threads} threads")
        medians = {}
        for name, rounds in samples.items():
            rates = [r[column] for r in rounds]
            medians[name] = median(rates)
            print(f"  {name:28} {medians[name]:8.1f} tok/s   ({min(rates):.1f} to {max(rates):.1f})")
        best = max(rate for name, rate in medians.items() if name != "ostinato")
        print(f"  {'ratio to the better peer':28} {medians['ostinato'] / best:8.2f}")
        result[f"{work_name}_ratio"] = medians["ostinato"] / best
    print(json.dumps({**result, "samples": samples}))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="smollm2", help="a built-in name or a path")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--llama-python", default=sys.executable, help="interpreter that has llama-cpp-python"
    )
    parser.add_argument("--worker", choices=ENGINES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker, arguments)
        return
    import ostinato

    arguments.model = str(ostinato.describe(arguments.model, pull=True).path)
    command = [arguments.model]
    for name in ("threads", "prompt_tokens", "new_tokens"):
        command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    report(measure_in_turns(arguments, command), arguments)


if __name__ == "__main__":
    main()
