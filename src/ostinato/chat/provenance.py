"""Text that remembers, character by character, whether a template or a caller wrote it.

Knows Python's text operations and what each does to the memory. Must not know Jinja, messages or tokens. Next
on the request's path: `formatting.py`, for the operations that fill in a format.

The rule: plain `str` is what the template wrote. Text from a caller is a `TracedText`, and every operation on
one gives a `TracedText` again as long as a character of the caller's is in it. An operation that has no exact
rule here marks its whole result as the caller's, so that a control token can be missed but never forged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from typing import Any, SupportsIndex

from ostinato.chat.bounds import check_len

# The marks. CONTINUED is the caller's text that the answer goes on from.
TEMPLATE, CALLER, CONTINUED = 0, 1, 2

# Methods that could carry a caller's characters past the marks, through bytes or tables of numbers.
UNTRACEABLE = frozenset({"encode", "maketrans", "translate"})


class TracedText(str):
    """A text with a mark for each of its characters. Its methods mean what those of `str` mean."""

    __slots__ = ("_marks",)
    _marks: bytes

    def __new__(cls, text: str, marks: bytes) -> TracedText:
        assert len(text) == len(marks), f"{len(text)} characters with {len(marks)} marks"
        self = super().__new__(cls, text)
        self._marks = marks
        return self

    # Jinja calls str() on everything it writes; Python allows the result to be of a subclass.
    def __str__(self) -> str:
        return self

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        if isinstance(key, slice):
            return with_marks(str.__getitem__(self, key), self._marks[key])
        return with_marks(str.__getitem__(self, key), bytes([self._marks[key]]))

    def __iter__(self) -> Iterator[str]:
        return (self[index] for index in range(len(self)))

    def __add__(self, other: str) -> str:
        return concat((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> str:
        return concat((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, times: SupportsIndex) -> str:
        check_len(len(self) * max(0, times.__index__()))
        return with_marks(str.__mul__(self, times), self._marks * times)

    __rmul__ = __mul__

    def __format__(self, spec: str) -> str:
        return opaque(str.__format__(self, spec), self, spec) if spec else self

    def __repr__(self) -> str:
        return opaque(str.__repr__(self), self)

    def strip(self, chars: str | None = None) -> str:
        end = len(str.rstrip(self, chars))
        return self[min(end, len(self) - len(str.lstrip(self, chars))) : end]

    def lstrip(self, chars: str | None = None) -> str:
        return self[len(self) - len(str.lstrip(self, chars)) :]

    def rstrip(self, chars: str | None = None) -> str:
        return self[: len(str.rstrip(self, chars))]

    def removeprefix(self, prefix: str) -> str:
        return self[len(self) - len(str.removeprefix(self, prefix)) :]

    def removesuffix(self, suffix: str) -> str:
        return self[: len(str.removesuffix(self, suffix))]

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._pieces(str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._pieces(str.rsplit(self, sep, maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[str]:
        return self._pieces(str.splitlines(self, keepends), "" if keepends else None)

    def partition(self, sep: str) -> tuple[str, str, str]:
        before, found, _ = str.partition(self, sep)
        return self._cut(len(before), len(before) + len(found))

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        before, found, _ = str.rpartition(self, sep)
        return self._cut(len(before), len(before) + len(found))

    def join(self, items: Iterable[str]) -> str:
        return concat(_between(self, _checked(items)))

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> str:
        if not old:
            return opaque(str.replace(self, old, new, count), self, new)
        return concat(_between(new, self.split(old, count)))

    def _pieces(self, found: list[str], sep: str | None) -> list[str]:
        """Return what a splitting has found as parts of this text; without `sep`, gaps are of any length."""
        parts, position = [], 0
        for piece in found:
            start = str.find(self, piece, position) if sep is None else position
            parts.append(self[start : start + len(piece)])
            position = start + len(piece) + len(sep or "")
        return parts

    def _cut(self, first: int, second: int) -> tuple[str, str, str]:
        return self[:first], self[first:second], self[second:]


def _same_length(change: Callable[..., str]) -> Callable[..., str]:
    """Return a change of case. A character becomes one or more, so an unchanged length means one each."""

    @wraps(change)
    def changed(self: TracedText) -> str:
        text = change(self)
        return with_marks(text, self._marks) if len(text) == len(self) else opaque(text, self)

    return changed


def _widening(change: Callable[..., str]) -> Callable[..., str]:
    @wraps(change)
    def changed(self: TracedText, width: int = 8, *fill: str) -> str:  # 8: what expandtabs() means
        check_len(len(self) * max(1, width) if change is str.expandtabs else width)
        return opaque(change(self, width, *fill), self, fill)

    return changed


def _otherwise(change: Callable[..., str]) -> Callable[..., str]:
    @wraps(change)
    def changed(self: TracedText, *args: Any, **kwargs: Any) -> str:
        return opaque(change(self, *args, **kwargs), self, args, kwargs)

    return changed


for _name in ("capitalize", "casefold", "lower", "swapcase", "title", "upper"):
    setattr(TracedText, _name, _same_length(getattr(str, _name)))
for _name in ("center", "expandtabs", "ljust", "rjust", "zfill"):
    setattr(TracedText, _name, _widening(getattr(str, _name)))
for _name in ("format", "format_map", "translate", "__mod__", "__rmod__"):
    setattr(TracedText, _name, _otherwise(getattr(str, _name)))


def plain(text: str) -> str:
    """Return the characters alone."""
    return str.__str__(text)


def with_marks(text: str, marks: bytes) -> str:
    """Return the text with these marks; plain where nothing in it is a caller's."""
    return TracedText(text, marks) if marks.count(TEMPLATE) < len(marks) else plain(text)


def marks_of(text: str) -> bytes:
    """Return the mark of each character. Text of any other subclass of `str` counts as a caller's."""
    if isinstance(text, TracedText):
        return text._marks
    return bytes([TEMPLATE if type(text) is str else CALLER]) * len(text)


def caller_text(text: str, mark: int = CALLER) -> str:
    """Return the text with every character marked as a caller's."""
    return with_marks(text, bytes([mark]) * len(text))


def text_of(value: object) -> str:
    """Return what a template prints for a value. Whatever is not text is not what the template wrote."""
    return value if type(value) is str or isinstance(value, TracedText) else caller_text(str(value))


def traceable(text: str) -> TracedText:
    """Return the text, whoever wrote it, with methods that keep the marks of their arguments."""
    return text if isinstance(text, TracedText) else TracedText(text, marks_of(text))


def concat(parts: Iterable[object]) -> str:
    """Join texts and printed values, each character keeping its mark."""
    texts = [text_of(part) for part in parts]
    check_len(sum(map(len, texts)))
    joined = "".join(texts)
    if all(type(text) is str for text in texts):
        return joined
    return with_marks(joined, b"".join(map(marks_of, texts)))


def is_caller_touched(value: object) -> bool:
    """Say whether any text in the value may be a caller's; what cannot be looked into counts as touched."""
    if value is None or isinstance(value, int | float):
        return False
    if isinstance(value, str):
        return any(marks_of(value))
    if isinstance(value, Mapping):
        return any(map(is_caller_touched, value)) or any(map(is_caller_touched, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(is_caller_touched, value))
    return True


def opaque(text: str, *sources: object) -> str:
    """Mark a whole result whose characters cannot be told apart, if any of its sources is a caller's."""
    return caller_text(text) if any(map(is_caller_touched, sources)) else plain(text)


def _between(sep: str, parts: Iterable[str]) -> Iterator[str]:
    for index, part in enumerate(parts):
        if index:
            yield sep
        yield part


def _checked(items: Iterable[str]) -> Iterator[str]:
    for index, item in enumerate(items):
        if not isinstance(item, str):
            raise TypeError(f"sequence item {index}: expected text, {type(item).__name__} found")
        yield item
