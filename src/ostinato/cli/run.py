"""`ostinato run`: one prompt, one answer, both clocks."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from math import exp
from typing import TYPE_CHECKING, Annotated

import typer

from ostinato.cli import terminal
from ostinato.cli.flags import (
    Asked,
    ContextLength,
    Json,
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
    from ostinato import Completion, Model, Piece, Stream

CANDIDATES = 5
"""Candidates that a trace shows for each token."""


@takes_options
def run(
    prompt: Annotated[
        str | None, typer.Argument(help="What to answer, or to continue; '-' or absent: standard input.")
    ] = None,
    model: ModelName = DEFAULT_MODEL,
    system: System = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text itself, without chat template.")
    ] = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="Show each token's candidates, choice and time.")
    ] = False,
    json: Json = False,
    no_stats: NoStats = False,
    threads: Threads = None,
    context: ContextLength = None,
    pre_tokenizer: PreTokenizer = None,
    quantize: Quantize = None,
    *,
    asked: Asked,
) -> None:
    """Answer one prompt, and print how long it took to begin and how fast it went on."""
    text = _prompt(prompt)
    if raw and system is not None:
        raise InvalidRequestError(
            "--system has no place in a raw text; leave out --raw or --system", "system"
        )
    with terminal.load(model, threads, context, pre_tokenizer=pre_tokenizer, quantize=quantize) as loaded:
        options = asked.of(loaded)
        if trace:
            options = replace(options, candidates=CANDIDATES)
        stream = _stream(loaded, text, system, raw, options)
        with stream, terminal.ctrl_c_interrupts(stream):
            pieces = _follow(loaded, stream, quiet=json or trace, trace=trace)
        _report(loaded, options, stream.completion, pieces if trace else [], json, no_stats)


def _prompt(argument: str | None) -> str:
    if argument in (None, "-"):
        if argument is None and sys.stdin.isatty():
            raise InvalidRequestError(
                "there is no prompt; give one as argument or on standard input", "prompt"
            )
        argument = terminal.read_standard_input()
    if not argument:
        raise InvalidRequestError("the prompt is empty; give at least one character", "prompt")
    return argument


def _stream(model: Model, text: str, system: str | None, raw: bool, options: Options) -> Stream:
    """Begin the answer: through the chat template if the model has one, else going on from the text."""
    if raw or (system is None and not model.has_template):
        return model.stream(text, options)
    messages = [{"role": "system", "content": system}] if system is not None else []
    return model.stream_chat([*messages, {"role": "user", "content": text}], options)


def _follow(model: Model, stream: Stream, quiet: bool, trace: bool) -> list[Piece]:
    """Print the answer as it is written, or the loop that writes it."""
    pieces: list[Piece] = []
    for piece in stream:
        pieces.append(piece)
        if trace and piece.token_id is not None:
            terminal.say(_iteration(model, len(pieces), piece))
        if not quiet:
            terminal.show(piece.text)
    return pieces


def _iteration(model: Model, number: int, piece: Piece) -> str:
    """Return one line of a trace: number, milliseconds, choice, and the candidates.

    A candidate has two percentages: what the model gave it, and what it was after the sampling options.
    """
    assert piece.token_id is not None
    candidates = "  ".join(
        f"{_quoted(model, c.token_id)} {100 * exp(c.logprob):.1f}>{100 * c.probability:.1f}"
        for c in piece.candidates
    )
    return f"{number:5} {1000 * piece.step_s:7.2f} ms  {_quoted(model, piece.token_id):14}  {candidates}"


def _quoted(model: Model, token_id: int) -> str:
    return repr(model.tokenizer.decode([token_id], control=True))


def _report(
    model: Model, options: Options, completion: Completion, trace: list[Piece], json: bool, no_stats: bool
) -> None:
    if json:
        extra: dict[str, object] = {"sampling": asdict(options.sampling) if options.sampling else None}
        if trace:
            extra["trace"] = [asdict(piece) for piece in trace]
        terminal.show_json({**terminal.as_json(model, completion), **extra})
        return
    if trace:
        terminal.show(completion.text)
    if not completion.text.endswith("\n"):
        terminal.show("\n")
    if not no_stats:
        terminal.say(terminal.clocks(completion))
