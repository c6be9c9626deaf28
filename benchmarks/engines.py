"""The engines that peers.py compares, each in a process of its own: `python engines.py ENGINE FILE THREADS`.

Runs in the interpreter that has the engine, which need not have Ostinato. The first line it writes says what
it is, or why it refuses the file; then each line it reads is a `Work`, and each line it writes has the rate
of each of the engine's settings, in tokens per second. Knows one engine a function; must not know how samples
are taken or shown. Next file: peers.py.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol


class Setting(Protocol):
    """An engine that is loaded in one way."""

    def prefill(self, ids: list[int]) -> float:
        """Read a prompt, none of it cached, up to its first token; return tokens per second."""

    def decode(self, ids: list[int], new_tokens: int) -> float:
        """Write greedily after a prompt, and return gaps per second; reading the prompt does not count."""


@dataclass(frozen=True)
class Engine:
    """What a worker serves."""

    version: str
    vocab_size: int | None
    settings: Mapping[str, Setting]


class Ostinato:
    def __init__(self, model: Any) -> None:
        self.model = model

    def prefill(self, ids: list[int]) -> float:
        return float(self._timings(ids, 1).prefill_tps)

    def decode(self, ids: list[int], new_tokens: int) -> float:
        return float(self._timings(ids, new_tokens + 1).decode_tps)

    def _timings(self, ids: list[int], max_tokens: int) -> Any:
        from ostinato import Options, SamplingParams

        greedy = SamplingParams(temperature=0.0)
        options = Options(max_tokens=max_tokens, ignore_eos=True, use_cache=False, sampling=greedy)
        return self.model.generate(ids, options).timings


def ostinato_engine(path: str, threads: int, longest: int) -> Engine:
    import ostinato

    model = ostinato.load(path, threads=threads)
    return Engine(ostinato.__version__, model.tokenizer.vocab_size, {"ostinato": Ostinato(model)})


class LlamaCpp:
    """A context. What it holds after the last prompt is kept, so that a deep one is read only once."""

    def __init__(self, model: Any, threads: int, longest: int, flash_attention: bool) -> None:
        import llama_cpp

        self.llama = llama_cpp
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = longest, longest, 512
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = int(flash_attention)
        params.swa_full = False
        self.context = llama_cpp.llama_init_from_model(model, params)
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.sampler = llama_cpp.llama_sampler_init_greedy()
        self.held: list[int] = []
        self.first = 0

    def prefill(self, ids: list[int]) -> float:
        begin = time.perf_counter()
        self._read(ids)
        return len(ids) / (time.perf_counter() - begin)

    def decode(self, ids: list[int], new_tokens: int) -> float:
        is_held = self.held == ids and self.llama.llama_memory_seq_rm(self.memory, 0, len(ids), -1)
        if not is_held:
            self._read(ids)
        token_id = self.first
        begin = time.perf_counter()
        for _ in range(new_tokens):
            token_id = self._step([token_id])
        return new_tokens / (time.perf_counter() - begin)

    def _read(self, ids: list[int]) -> None:
        self.llama.llama_memory_clear(self.memory, True)
        self.first = self._step(ids)
        self.held = ids

    def _step(self, ids: list[int]) -> int:
        array = (ctypes.c_int32 * len(ids))(*ids)
        assert self.llama.llama_decode(self.context, self.llama.llama_batch_get_one(array, len(ids))) == 0
        return int(self.llama.llama_sampler_sample(self.sampler, self.context, -1))


def llama_cpp_engine(path: str, threads: int, longest: int) -> Engine:
    import llama_cpp

    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
    if not model:
        raise RuntimeError("llama.cpp cannot load the file")
    settings = {
        name: LlamaCpp(model, threads, longest, flash_attention)
        for name, flash_attention in (("llama.cpp", False), ("llama.cpp, flash attention", True))
    }
    vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    return Engine(llama_cpp.__version__, vocab_size, settings)


class OpenVINO:
    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline

    def prefill(self, ids: list[int]) -> float:
        return 1000 * len(ids) / float(self._metrics(ids, 1).get_ttft().mean)

    def decode(self, ids: list[int], new_tokens: int) -> float:
        times_ms = self._metrics(ids, new_tokens + 1).raw_metrics.m_new_token_times
        return 1000 * (len(times_ms) - 1) / float(times_ms[-1] - times_ms[0])

    def _metrics(self, ids: list[int], new_tokens: int) -> Any:
        import numpy as np
        import openvino
        import openvino_genai

        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = new_tokens, True, False
        array = np.array([ids], dtype=np.int64)
        prompt = openvino_genai.TokenizedInputs(openvino.Tensor(array), openvino.Tensor(np.ones_like(array)))
        result = self.pipeline.generate(prompt, config)
        assert len(result.tokens[0]) == new_tokens
        return result.perf_metrics


def openvino_engine(path: str, threads: int, longest: int) -> Engine:
    import openvino_genai

    scheduling = openvino_genai.SchedulerConfig()
    scheduling.max_num_batched_tokens, scheduling.enable_prefix_caching = longest, False
    properties: dict[str, dict[str, Any]] = {
        "OpenVINO": {"ATTENTION_BACKEND": "SDPA"},
        "OpenVINO, paged attention": {"ATTENTION_BACKEND": "PA", "scheduler_config": scheduling},
    }
    settings = {
        name: OpenVINO(
            openvino_genai.LLMPipeline(path, "CPU", INFERENCE_NUM_THREADS=threads, **properties[name])
        )
        for name in properties
    }
    return Engine(openvino_genai.__version__, None, settings)


ENGINES: Mapping[str, Callable[[str, int, int], Engine]] = {
    "ostinato": ostinato_engine,
    "llama.cpp": llama_cpp_engine,
    "openvino": openvino_engine,
}
"""How each engine is made, from a file, a number of threads and the most tokens of prompt and answer."""


def serve(make: Callable[[str, int, int], Engine], path: str, threads: int, longest: int) -> None:
    """Answer each line of standard input with one on standard output, which is kept from the libraries."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        engine = make(path, threads, longest)
    except Exception as error:  # whatever a library raises for a file that it does not know
        answers.write(json.dumps({"refused": " ".join(str(error).split())}) + "\n")
        return
    answers.write(json.dumps({"version": engine.version, "vocab_size": engine.vocab_size}) + "\n")
    for line in sys.stdin:
        ids, new_tokens = json.loads(line)
        rates = {
            name: setting.decode(ids, new_tokens) if new_tokens else setting.prefill(ids)
            for name, setting in engine.settings.items()
        }
        answers.write(json.dumps(rates) + "\n")


if __name__ == "__main__":
    serve(ENGINES[sys.argv[1]], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
