"""The two ways in which a template fills values into a text: `%` and `str.format`, keeping the marks of both.

Knows the two small languages of formats. Must not know messages or tokens. Next on the request's path:
`sandbox.py`.

A value that is text and is put in as it is keeps its marks; one that is padded, cut, quoted or not text at
all is marked as the caller's. A format that is itself a caller's makes the whole result the caller's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from string import Formatter
from typing import Any

from jinja2.sandbox import SandboxedEnvironment, SandboxedFormatter

from ostinato.chat.provenance import caller_text, concat, is_caller_touched, plain, text_of

_DIRECTIVE = re.compile(
    r"%(?:\((?P<key>[^)]*)\))?(?P<form>[#0\- +]*\d*(?:\.\d+)?)[hlL]?(?P<kind>.)", re.DOTALL
)
_WIDE = re.compile(r"\d{7}")


def percent(template: str, values: object) -> str:
    """Return `template % values`.

    Raises:
        TypeError, ValueError, KeyError: as the operator does.
        OverflowError: a width of a million or more.
    """
    if is_caller_touched(template):
        _check_width(template)
        return caller_text(plain(template) % values)
    args = values if isinstance(values, tuple) else (values,)
    feed = _Feed(args, values)
    filled = concat(list(_percent_parts(template, feed)))
    if feed.left() and not isinstance(values, Mapping):
        raise TypeError("not all arguments converted during string formatting")
    return filled


def brace(env: SandboxedEnvironment, template: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return `template.format(*args, **kwargs)`, with attributes looked up as the sandbox allows.

    Raises:
        KeyError, IndexError, ValueError, AttributeError: as the method does.
        OverflowError: a width of a million or more.
    """
    formatter = SandboxedFormatter(env)
    _check_width(template)
    if is_caller_touched(template) or _is_nested(template):
        return caller_text(formatter.vformat(plain(template), args, kwargs))
    return concat(list(_brace_parts(formatter, template, args, kwargs)))


class _Feed:
    """Hands out the values of a `%` in turn, or by name."""

    def __init__(self, args: tuple[object, ...], named: object) -> None:
        self._args, self._named, self._next = args, named, 0

    def take(self, key: str | None) -> object:
        if key is not None:
            if not isinstance(self._named, Mapping):
                raise TypeError("format requires a mapping")
            return self._named[key]
        if self._next == len(self._args):
            raise TypeError("not enough arguments for format string")
        self._next += 1
        return self._args[self._next - 1]

    def left(self) -> bool:
        return self._next < len(self._args)


def _percent_parts(template: str, feed: _Feed) -> Iterator[str]:
    done = 0
    while (start := template.find("%", done)) >= 0:
        yield template[done:start]
        directive = _DIRECTIVE.match(template, start)
        if directive is None:
            raise ValueError("incomplete format")
        yield _percent_value(directive, feed)
        done = directive.end()
    yield template[done:]


def _percent_value(directive: re.Match[str], feed: _Feed) -> str:
    form, kind = directive["form"], directive["kind"]
    if kind == "%":
        return "%"
    _check_width(form)
    value = feed.take(directive["key"])
    if kind == "s" and not form:
        return text_of(value)
    return caller_text(f"%{form}{kind}" % (value,))


def _brace_parts(
    formatter: Formatter, template: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[str]:
    position = 0
    for literal, name, spec, conversion in formatter.parse(template):
        yield literal
        if name is None:
            continue
        if not name or name[0] in ".[":
            name, position = f"{position}{name}", position + 1
        value, _ = formatter.get_field(name, args, kwargs)
        if conversion in (None, "s") and not spec:
            yield text_of(value)
        else:
            yield caller_text(formatter.format_field(formatter.convert_field(value, conversion), spec or ""))


def _is_nested(template: str) -> bool:
    """Say whether a width or a precision is itself a field."""
    return any(spec and "{" in spec for _, _, spec, _ in Formatter().parse(template))


def _check_width(form: str) -> None:
    if _WIDE.search(form):
        raise OverflowError("a width of a million or more in a format")
