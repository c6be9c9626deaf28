"""The two rates of a model on this machine, never mixed: prefill of a long prompt, decode after a short one.

Every repetition measures prefill, decode and the memory's read bandwidth one after the other, so that a
machine that is slower for a while is slower for all of them. Nothing is cached between repetitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from ostinato import Model, Options, SamplingParams, measure_machine

if TYPE_CHECKING:
    from ostinato import Machine

SHORT_PROMPT = 16
"""Tokens of the prompt before the decode that is measured."""


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Medians, in tokens per second, and every sample they were taken from.

    decode_bandwidth_share: bytes of weights a token reads, times decode_tps, over the memory bandwidth
    measured in the same repetitions: 1 is what the memory allows.
    """

    model: str
    processor: str
    simd: str
    threads: int
    prompt_tokens: int
    new_tokens: int
    prefill_tps: float
    decode_tps: float
    decode_bandwidth_share: float
    read_gbps: float
    prefill_samples_tps: tuple[float, ...]
    decode_samples_tps: tuple[float, ...]
    read_samples_gbps: tuple[float, ...]


def bench(model: Model, prompt_tokens: int, new_tokens: int, repetitions: int) -> BenchResult:
    """Measure a model, after a repetition that does not count.

    Raises:
        ContextLengthError: a length does not fit the model's context.
    """
    prompt = some_tokens(model, prompt_tokens)
    short = some_tokens(model, SHORT_PROMPT)
    prefill, decode, machines = list[float](), list[float](), list["Machine"]()
    for _ in range(repetitions + 1):
        prefill.append(_prefill_tps(model, prompt))
        decode.append(_decode_tps(model, short, new_tokens))
        machines.append(measure_machine(model.threads))
    reads = [machine.read_gbps for machine in machines[1:]]
    decode_tps = median(decode[1:])
    return BenchResult(
        model=model.name,
        processor=machines[0].processor,
        simd=model.simd,
        threads=model.threads,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        prefill_tps=median(prefill[1:]),
        decode_tps=decode_tps,
        decode_bandwidth_share=decode_tps * model.weight_bytes_per_token / (1e9 * median(reads)),
        read_gbps=median(reads),
        prefill_samples_tps=tuple(prefill[1:]),
        decode_samples_tps=tuple(decode[1:]),
        read_samples_gbps=tuple(reads),
    )


def some_tokens(model: Model, count: int) -> list[int]:
    """Return token ids scattered over the vocabulary, the same for each model and count."""
    return [(7919 * i + 104729) % model.tokenizer.vocab_size for i in range(count)]


def _prefill_tps(model: Model, prompt: list[int]) -> float:
    timings = model.generate(prompt, _greedy(1)).timings
    assert timings.prefill_tps is not None
    return timings.prefill_tps


def _decode_tps(model: Model, prompt: list[int], new_tokens: int) -> float:
    timings = model.generate(prompt, _greedy(new_tokens + 1)).timings
    assert timings.decode_tps is not None
    return timings.decode_tps


def _greedy(max_tokens: int) -> Options:
    return Options(
        max_tokens=max_tokens, ignore_eos=True, use_cache=False, sampling=SamplingParams(temperature=0.0)
    )
