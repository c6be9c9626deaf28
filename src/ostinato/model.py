"""Model: the Python interface. Text or messages in, text with its two clocks out.

The way of a request: template -> tokenizer -> engine, step by step -> detokenizer and stop strings
(stream.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from ostinato.answer import Completion
from ostinato.chat.sources import defaults_of, tokenizer_of
from ostinato.chat.template import ChatTemplate
from ostinato.chat.tokenizer import Tokenizer
from ostinato.config import DEFAULT_MODEL
from ostinato.engine.engine import Engine
from ostinato.engine.request import Request
from ostinato.errors import InvalidRequestError, ModelFileError
from ostinato.kvcache.blocks import blocks_for
from ostinato.models import build_program
from ostinato.ops.cpu.executor import CpuExecutor
from ostinato.options import Options
from ostinato.sampling.defaults import ModelDefaults
from ostinato.sampling.params import SamplingParams
from ostinato.stream import Dispatcher, Stream
from ostinato.telemetry.timeline import Timeline, clock
from ostinato.weights.opened import open_model
from ostinato.weights.quantize import format_named, quantized
from ostinato.weights.sources import Progress, resolve
from ostinato.weights.tensors import ModelFile

DEFAULTS = Options()
MAX_THREADS = 256

Messages = Sequence[Mapping[str, Any]]
"""A conversation: each message a mapping with `role` and `content`."""


class Model:
    """A model in memory, ready to write. Made by `load`; a context manager that closes it.

    `defaults` is how its makers say to sample it, which is done where a request says nothing of sampling.
    """

    def __init__(
        self,
        name: str,
        file: ModelFile,
        tokenizer: Tokenizer,
        defaults: ModelDefaults,
        executor: CpuExecutor,
        context_length: int,
    ) -> None:
        self.name = name
        self.path = file.path
        self.context_length = context_length
        self.tokenizer = tokenizer
        self.defaults = defaults
        self.threads = executor.threads
        self.simd = executor.library.target.simd
        self.weight_bytes_per_token = executor.memory.weights.bytes_per_token
        self._engine = Engine(executor, context_length)
        self._dispatcher = Dispatcher(self._engine)

    @property
    def has_template(self) -> bool:
        """Whether the model has a chat template; without one it is a base model, which completes text."""
        return self.tokenizer.vocabulary.chat_template is not None

    @cached_property
    def template(self) -> ChatTemplate:
        """The model's chat template.

        Raises:
            NoTemplateError: it has none: it is a base model, which completes text.
            TemplateError: its template is broken.
        """
        return ChatTemplate.of(self.tokenizer.vocabulary)

    def generate(self, prompt: str | Sequence[int], options: Options = DEFAULTS) -> Completion:
        """Continue a raw text, or token ids, and return the whole answer; see `stream`."""
        return _read(self.stream(prompt, options))

    def stream(self, prompt: str | Sequence[int], options: Options = DEFAULTS) -> Stream:
        """Continue a raw text, or token ids, piece by piece.

        No template is applied, and text that looks like a special token is ordinary text. The token that
        prompts of this model begin with, if any, is put in front of a text, but not of ids.

        Raises:
            InvalidRequestError: the prompt is empty, or an option is not allowed.
            ContextLengthError: prompt and answer do not fit the context.
        """
        timeline = Timeline(clock())
        if isinstance(prompt, str):
            prompt_ids = self.tokenizer.encode(prompt, bos=True)
            timeline.tokenized_s = clock()
        else:
            prompt_ids = list(prompt)
        return self._start(prompt_ids, options, timeline)

    def chat(self, messages: Messages, options: Options = DEFAULTS) -> Completion:
        """Answer a conversation and return the whole answer; see `stream_chat`."""
        return _read(self.stream_chat(messages, options))

    def stream_chat(self, messages: Messages, options: Options = DEFAULTS) -> Stream:
        """Answer a conversation, piece by piece, in the words of the model's chat template.

        If the last message is the assistant's, the answer goes on from it.

        Raises:
            NoTemplateError: the model has no chat template.
            TemplateError: the template refuses these messages.
            InvalidRequestError, ContextLengthError: as `stream`.
        """
        timeline = Timeline(clock())
        rendered = self.template.render(messages, continue_final_message=_ends_with_assistant(messages))
        timeline.rendered_s = clock()
        prompt_ids = self.tokenizer.encode_rendered(rendered)
        timeline.tokenized_s = clock()
        return self._start(prompt_ids, options, timeline)

    def close(self) -> None:
        """Release threads and memory; nothing can be generated after that. Calling it twice is harmless."""
        self._engine.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, prompt_ids: Sequence[int], options: Options, timeline: Timeline) -> Stream:
        found = (self.tokenizer.id_of_special(text) for text in options.stop)
        stop_token_ids = frozenset(token_id for token_id in found if token_id is not None)
        request = Request(
            prompt_ids=tuple(prompt_ids),
            sampling=options.sampling or self.defaults.sampling or SamplingParams(),
            max_tokens=options.max_tokens,
            min_tokens=options.min_tokens,
            ignore_eos=options.ignore_eos,
            end_token_ids=self.tokenizer.end_ids,
            stop_token_ids=stop_token_ids.union(options.stop_token_ids),
            logprobs=options.logprobs,
            candidates=options.candidates,
            use_cache=options.use_cache,
        )
        return Stream(self._dispatcher, self.tokenizer, request, options.stop, timeline)


def load(
    name: str = DEFAULT_MODEL,
    *,
    threads: int | None = None,
    context_length: int | None = None,
    simd: str | None = None,
    pre_tokenizer: str | None = None,
    quantize: str | None = None,
    progress: Progress | None = None,
    report: Callable[[int, int], None] | None = None,
) -> Model:
    """Load a model, fetching it first if its name is built in or on the hub and it is not here.

    Args:
        name: a built-in name, `hf:owner/repo[/file.gguf]`, or a path.
        threads: how many compute; by default the physical cores this process may use.
        context_length: the most tokens of prompt and answer together; by default what the model was trained
        for.
        simd: avx512, avx2 or generic; by default the best of this processor, or `OSTINATO_SIMD`.
        pre_tokenizer: the rule by which text is cut into words, where the file names none or a wrong one.
        quantize: q8_0 or q4_1: what matrices of floats become while loading; by default they stay.
        progress: told how far a download is.
        report: called with (kernels done, kernels in all) when kernels have to be compiled.

    Raises:
        ModelNotFoundError, DownloadError: the name leads nowhere, or cannot be fetched.
        ModelFileError, UnsupportedModelError: the file is damaged, or not of a kind that is built.
        KernelError: the kernels cannot be compiled.
        InvalidRequestError: `threads`, `context_length`, `simd`, `pre_tokenizer` or `quantize` is not
            allowed, or there is nothing to quantise.
    """
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise InvalidRequestError(f"threads is {threads}; 1 to {MAX_THREADS} are allowed", "threads")
    target = None if quantize is None else format_named(quantize)
    with open_model(resolve(name, progress=progress)) as opened:
        file = opened if target is None else quantized(opened, target)
        program = build_program(file, context_length)
        context_length = _context_length(context_length, program.context_length)
        tokenizer = tokenizer_of(
            file.path, file.metadata, vocab_size=program.vocab_size, pre_tokenizer=pre_tokenizer
        )
        if tokenizer.vocab_size != program.vocab_size:
            sizes = f"{tokenizer.vocab_size} tokens, the model {program.vocab_size}"
            raise ModelFileError(f"{file.path}: the tokenizer has {sizes}")
        executor = CpuExecutor(
            program,
            file.tensors,
            num_blocks=blocks_for(context_length),
            threads=threads,
            simd=simd,
            report=report,
        )
        return Model(name, file, tokenizer, defaults_of(file.path, file.metadata), executor, context_length)


def _context_length(asked: int | None, trained: int) -> int:
    if asked is not None and not 1 <= asked <= trained:
        raise InvalidRequestError(
            f"context length is {asked}; this model allows 1 to {trained} tokens", "context_length"
        )
    return trained if asked is None else asked


def _ends_with_assistant(messages: Messages) -> bool:
    """Return whether the last message is an answer to go on from."""
    last = messages[-1] if messages else None
    return isinstance(last, Mapping) and last.get("role") == "assistant"


def _read(stream: Stream) -> Completion:
    with stream:
        for _ in stream:
            pass
        return stream.completion
