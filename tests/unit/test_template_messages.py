"""What a caller may send: each fault names its place, and the rest reaches the template as documented."""

from __future__ import annotations

from typing import Any

import pytest
from fakes.chat_templates import TEMPLATES, assistant, call, user

from ostinato.chat.template import ChatTemplate
from ostinato.errors import InvalidRequestError, TemplateError

SHOW = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"


def rendered(messages: Any, source: str = SHOW, **options: Any) -> str:
    return ChatTemplate(source, bos_token="", eos_token="").render(messages, **options).text


IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}
TEXT = {"type": "text", "text": "a"}


@pytest.mark.parametrize(
    ("messages", "param", "said"),
    [
        (None, "messages", "messages is missing, expected a list"),
        ("hello", "messages", "messages is str"),
        ({"role": "user"}, "messages", "messages is dict"),
        ([], "messages", "messages is empty, expected at least one message"),
        ([user("a"), "b"], "messages[1]", "messages[1] is str"),
        (
            [{"content": "a"}],
            "messages[0].role",
            "messages[0].role is missing, expected one of assistant, developer",
        ),
        ([{"role": "", "content": "a"}], "messages[0].role", "messages[0].role is empty"),
        ([{"role": 3, "content": "a"}], "messages[0].role", "messages[0].role is int"),
        ([user("a"), user("b"), user(None)], "messages[2].content", "messages[2].content is missing"),
        ([{"role": "user"}], "messages[0].content", "messages[0].content is missing"),
        ([user(7)], "messages[0].content", "messages[0].content is int, expected text or a list"),
        ([user({"type": "text"})], "messages[0].content", "messages[0].content is dict"),
        ([user([TEXT, "b"])], "messages[0].content[1]", "messages[0].content[1] is str"),
        ([user([TEXT, IMAGE])], "messages[0].content[1].type", "'image_url': only 'text' can be read"),
        ([user([{"text": "a"}])], "messages[0].content[0].type", "None: only 'text'"),
        ([user([{"type": "text"}])], "messages[0].content[0].text", "messages[0].content[0].text is missing"),
        ([assistant(None)], "messages[0].content", "messages[0].content is missing"),
        ([assistant(None, tool_calls=[])], "messages[0].content", "messages[0].content is missing"),
        ([assistant("", tool_calls="f")], "messages[0].tool_calls", "messages[0].tool_calls is str"),
        ([assistant("", tool_calls=["f"])], "messages[0].tool_calls[0]", "messages[0].tool_calls[0] is str"),
        ([{**user("a"), "x": {"y": [1, b"z"]}}], "messages[0].x.y[1]", "messages[0].x.y[1] is bytes"),
        ([{**user("a"), 5: "x"}], "messages[0]", "messages[0] has the key 5, expected text"),
    ],
)
def test_faults(messages: Any, param: str, said: str) -> None:
    """B14: an empty list, and whatever is no message."""
    with pytest.raises(InvalidRequestError) as caught:
        rendered(messages)
    assert caught.value.param == param and said in str(caught.value)
    assert not isinstance(caught.value, TemplateError)


@pytest.mark.parametrize(
    ("tools", "param"),
    [("f", "tools"), ({"f": 1}, "tools"), ([{}, "f"], "tools[1]"), ([{"f": object()}], "tools[0].f")],
)
def test_faults_of_tools(tools: Any, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        rendered([user("a")], tools=tools)
    assert caught.value.param == param


def test_nesting_without_end() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidRequestError, match="nested too deeply"):
        rendered([{**user("a"), "x": deep}])


def test_parts_are_joined_as_they_are() -> None:
    assert (
        rendered([user([TEXT, {"type": "text", "text": " b"}, {"type": "text", "text": ""}])]) == "[user:a b]"
    )
    assert rendered([user([])]) == "[user:]"
    assert rendered((user((TEXT,)),)) == "[user:a]"


def test_an_assistant_may_call_without_words() -> None:
    only_calls = {"role": "assistant", "tool_calls": [call("f", {"x": 1})]}
    assert rendered([only_calls], "{{ 'content' in messages[0] }}") == "False"
    assert rendered([{**only_calls, "content": None}], "{{ messages[0].content is none }}") == "True"
    assert '"name": "f"' in rendered([only_calls], TEMPLATES["qwen2.5"])


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"x": [1, "é"]}', '{"x": [1, "é"]}'),
        ({"x": 2}, '{"x": 2}'),
        ("not json", '"not json"'),
        ("[1]", '"[1]"'),
        ('{"x": ', '"{\\"x\\": "'),
    ],
)
def test_arguments_given_as_json_text_become_the_object(arguments: Any, shown: str) -> None:
    source = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    assert rendered([assistant("", tool_calls=[call("f", arguments)])], source) == shown
    bare = assistant("", tool_calls=[{"name": "f", "arguments": arguments}])
    assert rendered([bare], source.replace(".function", "")) == shown


def test_any_role_reaches_the_template() -> None:
    assert rendered([{"role": "robot", "content": "a"}]) == "[robot:a]"


def test_the_order_of_roles_is_the_templates_business() -> None:
    """B14: the reason is the template's; a system message is folded in."""
    with pytest.raises(TemplateError, match="roles must alternate"):
        rendered([user("a"), user("b")], TEMPLATES["gemma"])
    with pytest.raises(TemplateError, match="roles must alternate"):
        rendered([assistant("a")], TEMPLATES["gemma"])
    system = [{"role": "system", "content": "s"}, user("a")]
    assert rendered(system, TEMPLATES["gemma"]).startswith("<start_of_turn>user\ns\n\na<end_of_turn>")


def test_values_of_json_reach_the_template() -> None:
    message = {**user("a"), "n": 3, "x": 2.5, "yes": True, "none": None, "list": [1, {"k": "v"}]}
    source = "{% set m = messages[0] %}{{ m.n + 1 }} {{ m.x }} {{ m.yes }} {{ m.none }} {{ m.list[1].k }}"
    assert rendered([message], source) == "4 2.5 True None v"


@pytest.mark.parametrize(
    "messages",
    [
        [user("a"), user("b")],
        [assistant("a"), user("b")],
        [{"role": "robot", "content": "a"}],
        [user("a"), {"role": "robot", "content": "b"}, {"role": "robot", "content": "c"}],
        [{"role": "system", "content": "s"}, assistant("a")],
    ],
)
def test_what_a_strict_template_refuses(messages: list[dict[str, Any]]) -> None:
    """B14: one kind of error, with the status of a caller's fault, in the template's words."""
    with pytest.raises(TemplateError, match="refuses the messages: roles must alternate") as caught:
        rendered(messages, TEMPLATES["gemma"])
    assert (caught.value.http_status, caught.value.param) == (400, "messages")


def test_a_system_message_alone() -> None:
    """B14: where the template makes nothing of it, the prompt is its header for the answer."""
    assert rendered([{"role": "system", "content": "s"}], TEMPLATES["gemma"]) == "<start_of_turn>model\n"
