"""`ostinato chat`: a conversation in which each turn reads only what is new."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ostinato.cli import terminal
from ostinato.cli.flags import (
    Asked,
    ContextLength,
    ModelName,
    NoStats,
    PreTokenizer,
    Quantize,
    System,
    Threads,
    takes_options,
)
from ostinato.config import DEFAULT_MODEL
from ostinato.errors import InvalidRequestError
from ostinato.options import Options

if TYPE_CHECKING:
    from ostinato import Model

HELP = (
    "Write a message, or /clear to begin anew, /bye to leave. Ctrl-C ends an answer, Ctrl-D the conversation."
)


@takes_options
def chat(
    model: ModelName = DEFAULT_MODEL,
    system: System = None,
    no_stats: NoStats = False,
    threads: Threads = None,
    context: ContextLength = None,
    pre_tokenizer: PreTokenizer = None,
    quantize: Quantize = None,
    *,
    asked: Asked,
) -> None:
    """Talk with a model; each turn ends with both its clocks."""
    with terminal.load(model, threads, context, pre_tokenizer=pre_tokenizer, quantize=quantize) as loaded:
        options = asked.of(loaded)
        loaded.template  # noqa: B018  (a base model is refused before the first message)
        if sys.stdin.isatty():
            terminal.say(HELP)
        beginning = [{"role": "system", "content": system}] if system is not None else []
        messages = list(beginning)
        while (text := _next_message()) is not None:
            if text == "/clear":
                messages = list(beginning)
            elif text == "/help":
                terminal.say(HELP)
            elif text.strip():
                messages = _turn(loaded, messages, text, options, no_stats)


def _next_message() -> str | None:
    """Return the next line, or None at the end of the conversation."""
    try:
        if sys.stdin.isatty():
            text = input("> ")
        else:
            line = sys.stdin.buffer.readline()
            if not line:
                return None
            text = line.decode().rstrip("\r\n")
    except (EOFError, KeyboardInterrupt):
        terminal.say()
        return None
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"standard input is not UTF-8 at byte {error.start} of a line", "prompt"
        ) from None
    return None if text.strip() in ("/bye", "/exit", "/quit") else text


def _turn(
    model: Model, messages: list[dict[str, str]], text: str, options: Options, no_stats: bool
) -> list[dict[str, str]]:
    """Answer one message, and return the conversation with both."""
    asked = [*messages, {"role": "user", "content": text}]
    try:
        stream = model.stream_chat(asked, options)
    except InvalidRequestError as error:
        terminal.say(f"error: {error}")
        return messages
    with stream, terminal.ctrl_c_interrupts(stream):
        for piece in stream:
            terminal.show(piece.text)
    completion = stream.completion
    terminal.show("\n")
    if not no_stats:
        terminal.say(terminal.clocks(completion))
    return [*asked, {"role": "assistant", "content": completion.text}]
