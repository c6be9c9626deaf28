"""Messages to one prompt text, through the chat template that the model's makers wrote.

Knows what a template is given and what becomes of its errors. Must not know tokens: it says which stretches
of the prompt the template wrote, and the tokenizer acts on that. Next on the request's path: `messages.py`,
`sandbox.py`, then `tokenizer.py` with the result.

The interface is that of the published templates (transformers, "Chat templates"): `messages`, `tools`,
`add_generation_prompt`, `bos_token`, `eos_token`, `raise_exception(reason)`, `strftime_now(format)`, and the
variables that a template documents.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache, lru_cache
from types import TracebackType
from typing import Any, NoReturn

from jinja2 import Template, TemplateSyntaxError

from ostinato.chat.bounds import Budget
from ostinato.chat.messages import traced_messages, traced_tools, traced_value
from ostinato.chat.provenance import CONTINUED, concat, marks_of, opaque, plain
from ostinato.chat.rendered import Rendered
from ostinato.chat.sandbox import BUDGET, ChatEnvironment
from ostinato.chat.vocabulary import Vocabulary
from ostinato.errors import InvalidRequestError, NoTemplateError, TemplateError

_CALLER_RUN = re.compile(rb"[^\0]+")
_OURS = frozenset(
    [
        "messages",
        "tools",
        "add_generation_prompt",
        "bos_token",
        "eos_token",
        "raise_exception",
        "strftime_now",
    ]
)
_NO_TEMPLATE = (
    "the model has no chat template: it is a base model, which continues text and has not learned to answer. "
    "Give it raw text to complete (`ostinato run --raw`, `model.generate(...)`)"
)


class ChatTemplate:
    """A chat template, compiled. Safe to share between threads.

    Args:
        source: the template's text.
        bos_token, eos_token: the texts of these tokens, which templates write out.
        now: the clock behind `strftime_now`.

    Raises:
        TemplateError: the source is not valid; the message names the line.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str,
        eos_token: str,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.source = source
        self._template = _compiled(source)
        self._given = {
            "bos_token": bos_token,
            "eos_token": eos_token,
            "raise_exception": _refuse,
            "strftime_now": lambda form: opaque(now().strftime(form), form),
        }

    @classmethod
    def of(cls, vocabulary: Vocabulary, *, now: Callable[[], datetime] = datetime.now) -> ChatTemplate:
        """Compile the chat template of a model.

        Raises:
            NoTemplateError: the model has none.
            TemplateError: it is not valid.
        """
        if vocabulary.chat_template is None:
            raise NoTemplateError(_NO_TEMPLATE)
        bos_token, eos_token = vocabulary.text_of(vocabulary.bos_id), vocabulary.text_of(vocabulary.eos_id)
        return cls(vocabulary.chat_template, bos_token=bos_token, eos_token=eos_token, now=now)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> Rendered:
        """Write the prompt.

        Args:
            messages: each with `role` and `content` (text, or a list of text parts).
            add_generation_prompt: end with the header of an assistant message, for the answer.
            continue_final_message: end inside the last message, which is an assistant's, so that the answer
                goes on from it: no end of turn behind it and no new header. It ends where the template ends
                it: some trim blanks.
            tools: the functions the model may call, as the template wants them (usually JSON schema).
            variables: what this template documents beyond that, such as `enable_thinking`.

        Raises:
            InvalidRequestError: the messages, tools or variables are not of the expected shape.
            TemplateError: the template refuses the messages (quoting its reason), fails (naming the line), or
                does not end.
        """
        try:
            values = _checked_variables(variables or {})
            values["messages"] = traced_messages(messages, continue_final=continue_final_message)
            values["tools"] = traced_tools(tools)
        except RecursionError:
            raise InvalidRequestError(
                "messages, tools or variables are nested too deeply", "messages"
            ) from None
        values["add_generation_prompt"] = add_generation_prompt and not continue_final_message
        text = self._run(values)
        return _rendered(_up_to_continued(text) if continue_final_message else text)

    def behind_answer(self) -> str:
        """Return what the template writes behind the words of an assistant message: the end of its turn.

        Raises:
            TemplateError: the template does not take a question and an answer.
        """
        dialogue = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        messages = traced_messages(dialogue, continue_final=True)
        text = self._run({"messages": messages, "tools": None, "add_generation_prompt": False})
        return plain(text)[len(_up_to_continued(text)) :]

    def _run(self, values: dict[str, Any]) -> str:
        try:
            context = self._template.new_context(
                {**values, **self._given, BUDGET: Budget(len(values["messages"]))}
            )
            return concat(self._template.root_render_func(context))
        except _RefusalError as refusal:
            raise TemplateError(
                f"the chat template refuses the messages: {_one_line(refusal)}", "messages"
            ) from None
        except Exception as error:  # a template is foreign code, and may fail in any way that Python can
            raise TemplateError(
                f"the chat template failed{self._line(error.__traceback__)}: {_one_line(error)}"
            ) from error

    def _line(self, traceback: TracebackType | None) -> str:
        """Return where in the template an error came up, as far as it can be told."""
        line = None
        while traceback is not None:
            if traceback.tb_frame.f_globals is self._template.root_render_func.__globals__:
                line = self._template.get_corresponding_lineno(traceback.tb_lineno)
            traceback = traceback.tb_next
        return "" if line is None else f" in line {line}"


class _RefusalError(Exception):
    """What `raise_exception` raises."""


def _refuse(reason: object) -> NoReturn:
    raise _RefusalError(str(reason))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


@cache
def _environment() -> ChatEnvironment:
    return ChatEnvironment()


@lru_cache(maxsize=16)
def _compiled(source: str) -> Template:
    try:
        return _environment().from_string(source)
    except TemplateSyntaxError as error:
        raise TemplateError(
            f"the chat template is not valid in line {error.lineno}: {error.message}"
        ) from None
    except (
        RecursionError,
        SyntaxError,
        ValueError,
    ) as error:  # nested or written beyond what Python compiles
        raise TemplateError(f"the chat template cannot be compiled: {error}") from error


def _checked_variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    for name in variables:
        if not isinstance(name, str) or not name.isidentifier() or name in _OURS:
            raise InvalidRequestError(f"{name!r} cannot be a variable of a chat template", "variables")
    return {name: traced_value(value, f"variables.{name}") for name, value in variables.items()}


def _up_to_continued(text: str) -> str:
    """Cut behind the last character of the message that the answer goes on from."""
    end = marks_of(text).rfind(CONTINUED) + 1
    if not end:
        raise TemplateError(
            "the chat template leaves out the last message, so it cannot be continued", "messages"
        )
    return text[:end]


def _rendered(text: str) -> Rendered:
    return Rendered(plain(text), tuple(run.span() for run in _CALLER_RUN.finditer(marks_of(text))))
