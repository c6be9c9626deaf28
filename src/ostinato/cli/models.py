"""`ostinato models`: list, pull, show and remove models."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ostinato.cli import terminal
from ostinato.cli.flags import Json, Quantize

if TYPE_CHECKING:
    from ostinato import ModelCard

app = typer.Typer(
    help="List, pull, show and remove models.", invoke_without_command=True, no_args_is_help=False
)

Name = Annotated[str, typer.Argument(help="A built-in name, hf:owner/repo[/file.gguf], or a path.")]


@app.callback()
def list_models(context: typer.Context, json: Json = False) -> None:
    """List the built-in models, and what of the hub is on this machine."""
    if context.invoked_subcommand is not None:
        return
    import ostinato

    rows = ostinato.known_models()
    if json:
        terminal.show_json([asdict(row) for row in rows])
        return
    for row in rows:
        state = "here" if row.path is not None else "not pulled"
        terminal.show(f"{row.name:24} {row.size_bytes / 1e6:7.0f} MB  {state:10}  {row.title}\n")


@app.command()
def pull(name: Name) -> None:
    """Fetch a model, or finish an interrupted fetch."""
    from ostinato.weights.sources import resolve

    bars = terminal.Bars()
    try:
        path = resolve(name, progress=bars)
    finally:
        bars.finish()
    terminal.show(f"{path}\n")


@app.command("rm")
def remove_model(name: Name) -> None:
    """Remove a pulled model."""
    from ostinato.weights.sources import remove

    freed = remove(name)
    terminal.say(f"removed {name}, {freed / 1e6:.0f} MB")


@app.command("show")
def show_model(name: Name, quantize: Quantize = None, json: Json = False) -> None:
    """Show architecture, size, quantisation, context, defaults and licence of a model that is here."""
    import ostinato

    card = ostinato.describe(name, quantize=quantize)
    if json:
        terminal.show_json(asdict(card))
    else:
        terminal.show(_table(card))


def _table(card: ModelCard) -> str:
    rows = {
        "path": str(card.path),
        "size": f"{card.size_bytes / 1e6:.1f} MB",
        "title": card.title or "unknown",
        "architecture": card.architecture,
        "parameters": f"{card.parameters / 1e6:.1f} million",
        "context": f"{card.context_length} tokens" if card.context_length else "unknown",
        "vocabulary": f"{card.vocab_size} tokens" if card.vocab_size else "unknown",
        "chat template": "yes" if card.has_template else "no: a base model, which completes text",
        "end tokens": "unknown" if card.end_tokens is None else " ".join(card.end_tokens) or "none",
        "sampling": _sampling(card),
        "licence": card.licence or "unknown",
    }
    lines = [f"{name:14} {value}" for name, value in rows.items()]
    lines += [f"{'ignored':14} {reason}" for reason in card.ignored_sampling]
    for name, share in card.tensor_types.items():
        bits = 8 * share.size_bytes / share.parameters
        lines.append(
            f"{name:14} {share.tensors} tensors, {share.parameters / 1e6:.1f} million parameters, "
            f"{share.size_bytes / 1e6:.1f} MB, {bits:.2f} bits each"
        )
    return "\n".join(lines) + "\n"


def _sampling(card: ModelCard) -> str:
    if card.sampling is None:
        return "its makers say nothing"
    said = [f"{name} {value:g}" for name, value in card.sampling.items()]
    return ", ".join(said) or "unfiltered"
