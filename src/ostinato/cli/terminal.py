"""What commands share at the terminal: the line of both clocks, progress bars, loading a model, Ctrl-C."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from types import FrameType
from typing import TYPE_CHECKING, Any

from ostinato.errors import InvalidRequestError

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

    from ostinato import Completion, Model, Stream


def say(text: str = "", end: str = "\n") -> None:
    """Write to standard error, for people."""
    print(text, end=end, file=sys.stderr, flush=True)


def show(text: str) -> None:
    """Write data to standard output as it is, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def show_json(value: Any) -> None:
    """Write one JSON value to standard output; paths become text."""
    show(json.dumps(value, ensure_ascii=False, default=str) + "\n")


def clocks(completion: Completion) -> str:
    """Return the line of both clocks: how long until the first word, and how fast after it."""
    usage, timings = completion.usage, completion.timings
    cached = f", {usage.cached_tokens} cached" if usage.cached_tokens else ""
    prefill = f", {_rate(timings.prefill_tps)}" if timings.prefill_tps else ""
    tokens = f"{usage.completion_tokens} token{'s' * (usage.completion_tokens != 1)}"
    decode = f"{tokens} at {_rate(timings.decode_tps)}" if timings.decode_tps else tokens
    ended = {"length": " · stopped at the limit", "abort": " · interrupted"}.get(completion.finish_reason, "")
    if timings.ttft_s is None:
        return f"no token yet ({usage.prompt_tokens} prompt tokens){ended}"
    prompt = f"{usage.prompt_tokens} prompt tokens{cached}{prefill}"
    return (
        f"ttft {_duration(timings.ttft_s)} ({prompt}) · {decode} · "
        f"total {_duration(timings.e2e_s or timings.ttft_s)}{ended}"
    )


def _duration(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 0.9995 else f"{seconds:.2f} s"


def _rate(tokens_per_second: float) -> str:
    return f"{tokens_per_second:.0f} tok/s" if tokens_per_second >= 100 else f"{tokens_per_second:.1f} tok/s"


def as_json(model: Model, completion: Completion) -> dict[str, Any]:
    """Return everything about an answer, for machines."""
    return {"model": model.name, "threads": model.threads, "simd": model.simd, **asdict(completion)}


def load(
    name: str,
    threads: int | None,
    context_length: int | None = None,
    *,
    pre_tokenizer: str | None = None,
    quantize: str | None = None,
) -> Model:
    """Load a model, with progress bars for what takes long; say what of its defaults is ignored."""
    import ostinato

    bars = Bars()
    try:
        model = ostinato.load(
            name,
            threads=threads,
            context_length=context_length,
            pre_tokenizer=pre_tokenizer,
            quantize=quantize,
            progress=bars,
            report=bars.compiled,
        )
    finally:
        bars.finish()
    if model.defaults.ignored:
        say(f"ignored of the model's defaults: {'; '.join(model.defaults.ignored)}")
    return model


class Bars:
    """Progress on standard error, begun when first needed; see `weights.progress.Progress`.

    On a terminal it is a bar, elsewhere one line that says what takes its time.
    """

    def __init__(self) -> None:
        self._bar: RichProgress | None = None
        self._label: str | None = None

    def start(self, total_bytes: int, label: str) -> None:
        """Begin a bar of bytes."""
        self._begin(label, total_bytes, of_bytes=True)

    def advance(self, num_bytes: int) -> None:
        """Move the bar on."""
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0], num_bytes)

    def finish(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
        self._bar = self._label = None

    def compiled(self, done: int, total: int) -> None:
        """Show how many kernels are compiled."""
        if self._label is None:
            self._begin("Compiling kernels for this processor, once", total, of_bytes=False)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done)

    def _begin(self, label: str, total: int, of_bytes: bool) -> None:
        self.finish()
        self._label = label
        if not sys.stderr.isatty():
            say(f"{label} …")
            return
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

        self._bar = Progress(
            "{task.description}",
            BarColumn(),
            DownloadColumn() if of_bytes else MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._bar.add_task(label, total=total)
        self._bar.start()


@contextmanager
def ctrl_c_interrupts(stream: Stream) -> Iterator[None]:
    """Let the first Ctrl-C end the answer after the running step, and a second one the program."""
    before = signal.getsignal(signal.SIGINT)

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        stream.interrupt()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def read_standard_input() -> str:
    """Return standard input as text.

    Raises:
        InvalidRequestError: it is not UTF-8.
    """
    content = sys.stdin.buffer.read()
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"standard input is not UTF-8: byte {content[error.start]:#04x} at offset {error.start}; "
            "convert it first, for instance with iconv",
            "prompt",
        ) from None
