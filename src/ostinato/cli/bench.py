"""`ostinato bench`: prefill and decode rates of a model on this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ostinato.cli import terminal
from ostinato.cli.flags import Json, ModelName, PreTokenizer, Quantize, Threads
from ostinato.config import DEFAULT_MODEL

if TYPE_CHECKING:
    from ostinato.lab.bench import BenchResult


def bench(
    model: ModelName = DEFAULT_MODEL,
    prompt_tokens: Annotated[
        int, typer.Option("--prompt-tokens", "-p", min=1, help="Tokens to prefill.")
    ] = 512,
    new_tokens: Annotated[int, typer.Option("--new-tokens", "-n", min=1, help="Tokens to decode.")] = 128,
    repetitions: Annotated[int, typer.Option("--repetitions", "-r", min=1, help="Runs that count.")] = 5,
    threads: Threads = None,
    pre_tokenizer: PreTokenizer = None,
    quantize: Quantize = None,
    json: Json = False,
) -> None:
    """Measure how fast a model reads and how fast it writes: medians of several runs, nothing cached."""
    from ostinato.lab.bench import bench as measure

    with terminal.load(model, threads, pre_tokenizer=pre_tokenizer, quantize=quantize) as loaded:
        result = measure(loaded, prompt_tokens, new_tokens, repetitions)
    if json:
        terminal.show_json(asdict(result))
    else:
        terminal.show(_table(result))


def _table(result: BenchResult) -> str:
    limit = f"{100 * result.decode_bandwidth_share:.0f} % of the memory's {result.read_gbps:.1f} GB/s"
    decode = _row(result.decode_tps, result.decode_samples_tps)
    return (
        f"{result.model} on {result.processor}, {result.simd}, {result.threads} threads\n"
        f"prefill {result.prompt_tokens:5} tokens  {_row(result.prefill_tps, result.prefill_samples_tps)}\n"
        f"decode  {result.new_tokens:5} tokens  {decode}  {limit}\n"
    )


def _row(median_tps: float, samples: tuple[float, ...]) -> str:
    return f"{median_tps:8.1f} tok/s  ({min(samples):.1f} to {max(samples):.1f} in {len(samples)} runs)"
