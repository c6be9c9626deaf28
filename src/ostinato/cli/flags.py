"""Flags derived from the fields of Options and SamplingParams, where name, type and help are written once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import Field, dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostinato.errors import InvalidRequestError
from ostinato.options import Options
from ostinato.sampling.params import SamplingParams

if TYPE_CHECKING:
    from ostinato import Model

ModelName = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="A built-in name, hf:owner/repo[/file.gguf], or a path.",
        envvar="OSTINATO_MODEL",
    ),
]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="Threads that compute; absent: the cores there are.")
]
ContextLength = Annotated[
    int | None,
    typer.Option("--context", min=1, help="Most tokens of prompt and answer; absent: the model's."),
]
Quantize = Annotated[
    str | None,
    typer.Option("--quantize", help="Quantise matrices of floats while loading: q8_0 or q4_1."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
NoStats = Annotated[bool, typer.Option("--no-stats", help="Do not print the line of both clocks.")]
PreTokenizer = Annotated[
    str | None,
    typer.Option(
        "--pre-tokenizer", help="Rule that cuts text into words, if the file names none or a wrong one."
    ),
]
System = Annotated[str | None, typer.Option("--system", "-s", help="Text of a system message.")]

_SHORT = {"max_tokens": "-n", "temperature": "-t"}
_TYPES: dict[str, Any] = {"int": int, "int | None": int | None, "float": float, "bool": bool}
_NOT_FLAGS = {"sampling", "candidates", "logprobs", "use_cache"}

SAMPLING = SamplingParams(temperature=0.7, min_p=0.05, repetition_penalty=1.1, repetition_window=256, seed=0)
"""Where the model's makers say nothing, the command line samples gently. The seed is always fixed: the same
command gives the same answer."""
DEFAULTS = Options(max_tokens=512, sampling=SAMPLING)
_OURS_ALONE = {"seed", "logit_bias"}
"""What no model has a say in."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the flags say: `options` as they are without a model, `sampling` what was said of sampling."""

    options: Options
    sampling: dict[str, Any]

    def of(self, model: Model) -> Options:
        """Return the options for a model: what the flags leave open is as its makers say, if they do."""
        theirs = model.defaults.sampling
        if theirs is None:
            return self.options
        return replace(self.options, sampling=replace(theirs, **self.sampling))


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's parameter `asked` by a flag for each option, and hand it what they say."""
    parameters = inspect.signature(command, eval_str=True).parameters
    own = [parameter for name, parameter in parameters.items() if name != "asked"]
    flags = [*map(_flag, _option_fields()), *map(_flag, fields(SamplingParams))]
    names = {flag.name for flag in flags}

    def with_flags(**values: Any) -> None:
        chosen = {name: values.pop(name) for name in names}
        command(**values, asked=_asked(chosen))

    with_flags.__doc__ = command.__doc__
    with_flags.__signature__ = inspect.Signature([*own, *flags])  # type: ignore[attr-defined]
    with_flags.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *flags)}
    return with_flags


def _option_fields() -> list[Field[Any]]:
    return [field for field in fields(Options) if field.name not in _NOT_FLAGS]


def _flag(field: Field[Any]) -> inspect.Parameter:
    kind, default = _TYPES.get(str(field.type)), _default(field.name)
    shown: str | bool = default not in (None, [], False)
    if field.name == "logit_bias":
        kind, default, shown = list[str], [], False
    elif kind is None:
        kind, default, shown = (list[int] if field.name.endswith("ids") else list[str]), [], False
    elif _is_models(field.name):
        kind, default, shown = kind | None, None, f"the model's, or {default}"
    name = "--" + field.name.replace("_", "-").removesuffix("s" if field.name == "stop_token_ids" else "")
    names = [name, *([_SHORT[field.name]] if field.name in _SHORT else [])]
    hint = " (ID=NUMBER)" if field.name == "logit_bias" else ""
    help_text = f"{field.metadata['help'][0].upper()}{field.metadata['help'][1:]}{hint}."
    option = typer.Option(*names, help=help_text, show_default=shown)
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )


def _is_models(name: str) -> bool:
    """Return whether a model's makers may have said what this is."""
    return name not in _OURS_ALONE and name in {field.name for field in fields(SamplingParams)}


def _default(name: str) -> Any:
    return getattr(DEFAULTS if hasattr(DEFAULTS, name) else SAMPLING, name)


def _asked(chosen: dict[str, Any]) -> Asked:
    """Return what parsed flags say, checked; only the two kinds of lists need a conversion."""
    sampling = {field.name: chosen.pop(field.name) for field in fields(SamplingParams)}
    sampling["logit_bias"] = dict(_bias(text) for text in sampling["logit_bias"])
    sampling = {name: value for name, value in sampling.items() if value is not None}
    lists = {name: tuple(value) for name, value in chosen.items() if isinstance(value, list)}
    options = replace(DEFAULTS, **{**chosen, **lists}, sampling=replace(SAMPLING, **sampling))
    return Asked(options, sampling)


def _bias(text: str) -> tuple[int, float]:
    token_id, separator, number = text.partition("=")
    try:
        if separator:
            return int(token_id), float(number)
    except ValueError:
        pass
    raise InvalidRequestError(
        f"--logit-bias is {text!r}; ID=NUMBER is expected, such as 42=-100", "logit_bias"
    )
