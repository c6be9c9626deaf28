"""The messages, tools and variables of a caller, checked and marked as the caller's for the template.

Knows the shape of a message and the words that published templates have for roles. Must not know any one
template. Next on the request's path: `sandbox.py`, where the template meets them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ostinato.chat.provenance import CALLER, CONTINUED, caller_text
from ostinato.errors import InvalidRequestError

# Templates build control tokens from these words (`<|user|>`), so they count as the template's own text.
ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


def traced_messages(messages: object, *, continue_final: bool = False) -> list[dict[str, Any]]:
    """Return the messages as a template gets them.

    Content given in parts becomes one text, the parts joined as they are. The arguments of a tool call may be
    JSON text, as on the wire; the template gets the object.

    Args:
        continue_final: the last message is an assistant's and the answer goes on from it.

    Raises:
        InvalidRequestError: the messages are not of the expected shape; `param` names the place.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise InvalidRequestError(f"messages is {_kind(messages)}, expected a list of messages", "messages")
    if not messages:
        raise InvalidRequestError("messages is empty, expected at least one message", "messages")
    last = len(messages) - 1
    traced = [
        _message(message, f"messages[{index}]", CONTINUED if continue_final and index == last else CALLER)
        for index, message in enumerate(messages)
    ]
    if continue_final:
        _check_continuable(messages[last], f"messages[{last}]")
    return traced


def traced_tools(tools: object) -> list[Any] | None:
    """Return the tools as a template gets them, all of their text marked as the caller's.

    Raises:
        InvalidRequestError: they are not a list of objects; `param` names the place.
    """
    if tools is None:
        return None
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise InvalidRequestError(f"tools is {_kind(tools)}, expected a list of tools", "tools")
    for index, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise InvalidRequestError(
                f"tools[{index}] is {_kind(tool)}, expected an object", f"tools[{index}]"
            )
    return [traced_value(tool, f"tools[{index}]") for index, tool in enumerate(tools)]


def traced_value(value: object, place: str, mark: int = CALLER) -> Any:
    """Return a value of JSON's kinds with every text in it, keys too, marked as the caller's.

    Raises:
        InvalidRequestError: something in it is of another kind; `param` names the place.
    """
    if isinstance(value, str):
        return caller_text(value, mark)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {
            caller_text(key): traced_value(item, f"{place}.{key}", mark)
            for key, item in _text_items(value, place)
        }
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [traced_value(item, f"{place}[{index}]", mark) for index, item in enumerate(value)]
    raise InvalidRequestError(f"{place} is {_kind(value)}, expected a value of JSON", place)


def _message(message: object, place: str, mark: int) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequestError(
            f"{place} is {_kind(message)}, expected a message with role and content", place
        )
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequestError(
            f"{place}.role is {_kind(role)}, expected one of {_listed(ROLES)}", f"{place}.role"
        )
    traced: dict[str, Any] = {
        caller_text(key): traced_value(value, f"{place}.{key}")
        for key, value in _text_items(message, place)
        if key not in ("role", "content", "tool_calls")
    }
    traced["role"] = role if role in ROLES else caller_text(role)
    if "content" in message or not message.get("tool_calls"):
        traced["content"] = _content(message, place, mark)
    if message.get("tool_calls") is not None:
        traced["tool_calls"] = _tool_calls(message["tool_calls"], f"{place}.tool_calls")
    return traced


def _content(message: Mapping[str, object], place: str, mark: int) -> str | None:
    content, place = message.get("content"), f"{place}.content"
    if content is None and message.get("tool_calls"):
        return None
    if isinstance(content, str):
        return caller_text(content, mark)
    if isinstance(content, Sequence) and not isinstance(content, bytes):
        return caller_text(
            "".join(_part(part, f"{place}[{index}]") for index, part in enumerate(content)), mark
        )
    raise InvalidRequestError(f"{place} is {_kind(content)}, expected text or a list of text parts", place)


def _part(part: object, place: str) -> str:
    if not isinstance(part, Mapping):
        raise InvalidRequestError(f"{place} is {_kind(part)}, expected a part with type and text", place)
    if part.get("type") != "text":
        said = part.get("type")
        raise InvalidRequestError(
            f"{place}.type is {said!r}: only 'text' can be read by this model", f"{place}.type"
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequestError(f"{place}.text is {_kind(text)}, expected text", f"{place}.text")
    return text


def _tool_calls(calls: object, place: str) -> list[Any]:
    if not isinstance(calls, Sequence) or isinstance(calls, str | bytes):
        raise InvalidRequestError(f"{place} is {_kind(calls)}, expected a list of calls", place)
    return [_tool_call(call, f"{place}[{index}]") for index, call in enumerate(calls)]


def _tool_call(call: object, place: str) -> Any:
    if not isinstance(call, Mapping):
        raise InvalidRequestError(f"{place} is {_kind(call)}, expected a call", place)
    function = call.get("function")
    if isinstance(function, Mapping):
        call = {**call, "function": _with_parsed_arguments(function)}
    return traced_value(_with_parsed_arguments(call), place)


def _with_parsed_arguments(function: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return function
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):  # models write such things; the template shows the text as it is
        return function
    return {**function, "arguments": parsed} if isinstance(parsed, dict) else function


def _check_continuable(message: Mapping[str, object], place: str) -> None:
    if message.get("role") != "assistant" or not message.get("content") or message.get("tool_calls"):
        raise InvalidRequestError(
            f"{place} cannot be continued: expected an assistant message with text and no tool calls", place
        )


def _text_items(mapping: Mapping[Any, object], place: str) -> list[tuple[str, object]]:
    for key in mapping:
        if not isinstance(key, str):
            raise InvalidRequestError(f"{place} has the key {key!r}, expected text", place)
    return list(mapping.items())


def _kind(value: object) -> str:
    return "missing" if value is None else "empty" if value == "" else type(value).__name__


def _listed(words: frozenset[str]) -> str:
    return ", ".join(sorted(words))
