"""`ostinato`: the commands, and how any of them ends.

Data goes to standard output, everything else to standard error. Exit codes: 0 done, 1 failed, 2 wrongly
called.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from ostinato import __version__
from ostinato.cli import bench, chat, doctor, models, run
from ostinato.errors import OstinatoError

_INTERRUPTED = 130
"""What typer makes of a Ctrl-C that no command has handled."""

app = typer.Typer(
    name="ostinato",
    help="Run language models on this machine, and see both clocks: time to first token, tokens per second.",
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("chat")(chat.chat)
app.command("bench")(bench.bench)
app.command("doctor")(doctor.doctor)
app.add_typer(models.app, name="models")


def _print_version(asked: bool) -> None:
    if asked:
        print(f"ostinato {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main(arguments: list[str] | None = None) -> None:
    """Run a command line and exit with its code; an error a user can cause becomes one line."""
    sys.exit(_exit_code(sys.argv[1:] if arguments is None else arguments))


def _exit_code(arguments: list[str]) -> int:
    command = typer.main.get_command(app)
    try:
        code: int = command.main(arguments, prog_name="ostinato", standalone_mode=False) or 0
        return _failed("interrupted", 1) if code == _INTERRUPTED else code
    except OstinatoError as error:
        return _failed(str(error), error.exit_code)
    except BrokenPipeError:
        # Whoever read the output has left; a second complaint at exit would only add noise.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (KeyboardInterrupt, typer.Abort):
        return _failed("interrupted", 1)
    except Exception as error:
        usage = getattr(error, "format_message", None)
        if usage is None:
            raise
        return _failed(f"{usage().rstrip('.')}; see '{_help_of(error)}'", 2)


def _help_of(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path if context is not None else 'ostinato'} --help"


def _failed(message: str, code: int) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return code
