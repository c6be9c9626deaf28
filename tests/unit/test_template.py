"""Chat templates: the text of the plain sandbox, feature by feature, and what becomes of those that fail."""

# ruff: noqa: E501

from __future__ import annotations

import time
from typing import Any

import pytest
from fakes.chat_templates import CONVERSATIONS, NOW, TEMPLATES, TOOLS, assistant, call, plain_sandbox, user
from fakes.vocabularies import smollm2

from ostinato.chat.rendered import Rendered
from ostinato.chat.template import ChatTemplate
from ostinato.chat.tokenizer import Tokenizer
from ostinato.chat.vocabulary import read_vocabulary
from ostinato.errors import InvalidRequestError, NoTemplateError, TemplateError

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def compiled(source: str) -> ChatTemplate:
    return ChatTemplate(source, **TOKENS, now=lambda: NOW)


def rendered(source: str, messages: Any = None, **options: Any) -> str:
    return compiled(source).render(messages or [user("hey")], **options).text


def error(source: str, **options: Any) -> str:
    with pytest.raises(TemplateError) as caught:
        rendered(source, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
def test_text_is_that_of_the_plain_sandbox(
    name: str, conversation: str, add_generation_prompt: bool, tools: Any
) -> None:
    messages = CONVERSATIONS[conversation]
    options = {"add_generation_prompt": add_generation_prompt, "tools": tools}
    if conversation == "a tool" and name == "gemma":
        assert "refuses the messages: roles must alternate" in error(TEMPLATES[name], messages=messages)
        return
    expected = plain_sandbox(TEMPLATES[name], messages=messages, **TOKENS, **options)
    assert rendered(TEMPLATES[name], messages, **options) == expected


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", ["smollm2", "qwen2.5", "thinking", "macros"])
def test_ids_are_those_of_the_whole_text(name: str, conversation: str) -> None:
    tokenizer = Tokenizer.from_metadata(smollm2())
    for tools in (None, TOOLS):
        prompt = compiled(TEMPLATES[name]).render(CONVERSATIONS[conversation], tools=tools)
        assert tokenizer.encode_rendered(prompt) == tokenizer.encode(prompt.text, special=True)
        assert tokenizer.encode_rendered(prompt).count(1) >= len(CONVERSATIONS[conversation]) // 2


FEATURES = {
    "generation": "a{% generation %}{{ messages[0].content }}{% endgeneration %}b",
    "strftime_now": "{{ strftime_now('%Y-%m-%d') }}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "tojson": "{{ messages | tojson }}{{ messages | tojson(indent=2) }}",
    "rejectattr": "{{ messages | rejectattr('role', 'equalto', 'user') | list | length }}",
    "selectattr": "{{ (messages | selectattr('role', 'equalto', 'user') | first).content }}",
    "loop.previtem": "{% for m in messages %}{{ loop.previtem.role if loop.previtem is defined }}{% endfor %}",
    "break": "{% for m in messages %}{{ m.role }}{% break %}{% endfor %}",
    "continue": "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}{% endfor %}",
    "items": "{% for key, value in messages[0].items() %}{{ key }}={{ value }};{% endfor %}{{ messages[0] | items | list }}",
    "negative slice": "{{ messages[-1:][0].content }}{{ messages[-1].content[-3:] }}{{ messages[::-1][0].role }}",
    "trim": "a  \n  {% if true %}  \n  b\n  {% endif %}\nc\n",
    "macro": "{% macro f(x, y='d') %}{{ x }}{{ y }}{% endmacro %}{{ f('a') }}{{ f('a', y=messages[0].content) }}",
    "call": "{% macro f() %}[{{ caller() }}]{% endmacro %}{% call f() %}{{ messages[0].content }}{% endcall %}",
    "set block": "{% set x %}a{{ messages[0].content }}{% endset %}{{ x | upper }}",
    "filter block": "{% filter upper %}a{{ messages[0].content }}{% endfilter %}",
    "loop": "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ ', ' if not loop.last }}{% endfor %}",
    "loop if": "{% for m in messages if m.role == 'user' %}{{ m.content }}{% else %}none{% endfor %}",
    "recursive": "{% for m in [[1, [2, [3]]]] recursive %}{{ loop(m) if m is not number else m }}{% endfor %}",
    "join": "{{ messages | map(attribute='content') | join(', ') }}{{ messages | join('|', attribute='role') }}",
    "concat": "{{ 1 ~ none ~ true ~ messages[0].content ~ 2.5 }}",
    "percent": "{{ '%s is %5.1f%% of %(x)s' % (1, 2.0) if false else '%-6s|%r|%d%%' % ('ab', 'c', 3) }}",
    "format": "{{ '{} {1[0]} {x!r:>6} {{}}'.format(1, 'ab', x='c') if false else '{0} {1:>4} {x!r}'.format(1, 'b', x='c') }}",
    "format filter": "{{ '%s %s' | format('a', messages[0].content) }}",
    "replace": "{{ messages[0].content | replace('h', 'HH') }}{{ messages[0].content.replace('e', '', 1) }}",
    "default": "{{ x | default('none') }}{{ messages[0].name | default(messages[0].content, true) }}",
    "tests": "{{ messages is iterable }}{{ messages[0] is mapping }}{{ messages[0].content is string }}{{ x is defined }}",
    "strings": "{{ ' a-b '.strip().split('-') | join('+') }}{{ 'x'.join(['a', 'b']) }}{{ 'Ab'.lower() }}{{ 'a' in 'abc' }}",
    "list": "{{ ['a'] + [messages[0].content] }}{{ messages | list | length }}{{ [3, 1, 2] | sort }}{{ [1, 2] | sum }}",
    "dict": "{{ {'a': messages[0].content} }}{{ dict(a=1) | dictsort }}{{ {'b': 1}.get('b', 0) }}",
    "numbers": "{{ 7 // 2 }}{{ 7 % 4 }}{{ 2 ** 5 }}{{ -3 | abs }}{{ '12' | int + 1 }}{{ 3.7 | round | int }}{{ 'ab' * 2 }}",
    "escape": "{{ '<a>' | e }}{{ messages[0].content | e }}{{ '<b>' | safe }}",
    "indent": "{{ 'a\nb' | indent(2) }}{{ messages[0].content | indent(2, true) }}",
    "case": "{{ 'ab cd' | title }}{{ messages[0].content | capitalize }}{{ messages[0].content.upper() }}",
    "truncate": "{{ 'abc def ghi jkl' | truncate(9) }}{{ 'ab cd' | wordcount }}{{ 'a' | center(5) }}{{ 'ab cd' | wordwrap(2) }}",
    "unique": "{{ ['a', 'b', 'a'] | unique | join }}{{ 'abc' | reverse }}{{ 'abc' | last }}{{ [1, 2, 3] | batch(2) | list }}",
    "string": "{{ messages | string }}{{ 3 | string }}{{ messages[0].content | string | length }}",
    "undefined": "[{{ x }}][{{ messages[0].nothing }}]",
    "iterating text": "{% for c in messages[0].content %}{{ c }}.{% endfor %}{{ messages[0].content | list }}",
    "cycler": "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{% set j = joiner() %}{{ j() }}{{ j() }}",
    "raw": "{% raw %}{{ a }}{% endraw %}",
}


@pytest.mark.parametrize("name", FEATURES)
def test_feature(name: str) -> None:
    """B15: as the plain sandbox, feature by feature."""
    messages = [user("héllo wörld"), assistant("ok")]
    source = FEATURES[name]
    expected = plain_sandbox(source, messages=messages, add_generation_prompt=True, **TOKENS)
    assert rendered(source, messages) == expected


def test_tojson_is_plain_json() -> None:
    source = "{{ messages[0].content | tojson }} {{ {'b': 1, 'a': '<é>'} | tojson(sort_keys=true, separators=(',', ':')) }}"
    assert rendered(source, [user("<'é\"&>")]) == '"<\'é\\"&>" {"a":"<é>","b":1}'
    assert rendered("{{ 'é' | tojson(ensure_ascii=true) }}") == '"\\u00e9"'


def test_variables_of_a_template() -> None:
    thinking = TEMPLATES["thinking"]
    assert rendered(thinking, variables={"enable_thinking": False}).endswith("<think>\n\n</think>\n\n")
    assert not rendered(thinking, variables={"enable_thinking": True}).endswith("</think>\n\n")


@pytest.mark.parametrize("name", ["messages", "bos_token", "strftime_now", "not a name", ""])
def test_a_variable_cannot_take_the_place_of_ours(name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        rendered("x", variables={name: 1})
    assert caught.value.param == "variables"


def test_a_variable_holds_only_what_json_holds() -> None:
    with pytest.raises(InvalidRequestError, match=r"variables\.f\[0\] is function") as caught:
        rendered("x", variables={"f": [lambda: 1]})
    assert caught.value.param == "variables.f[0]"


def test_a_refusal_quotes_the_reason() -> None:
    """B14."""
    with pytest.raises(TemplateError, match="refuses the messages: Only user and assistant roles!") as caught:
        rendered("{{ raise_exception('Only ' ~ messages[0].role ~ ' and assistant roles!') }}")
    assert (caught.value.param, caught.value.http_status) == ("messages", 400)


def test_a_reason_is_told_in_one_line() -> None:
    assert error("{{ raise_exception('a\n  b ' ~ messages[0].content) }}").endswith("messages: a b hey")
    assert error("{{ messages[0].content | int(base=99) }}{{ {}[0].x }}")


@pytest.mark.parametrize(
    ("source", "line", "reason"),
    [
        ("a\n\n{% if %}", 3, "Expected an expression"),
        ("{% for %}", 1, "Expected an expression"),
        ("x\n{{ x | nofilter }}", 2, "nofilter"),
        ("{% autoescape true %}{% endautoescape %}", 1, "autoescape"),
        ("a\n{{ 'open }}", 2, "unexpected char"),
    ],
)
def test_an_invalid_template_names_the_line(source: str, line: int, reason: str) -> None:
    """B15, B18."""
    said = error(source)
    assert f"not valid in line {line}: " in said and reason in said


@pytest.mark.parametrize(
    ("source", "line", "reason"),
    [
        ("a\nb {{ 1 // 0 }}", 2, "division"),
        ("{% macro f() %}\n\n{{ x.y }}{% endmacro %}\n{{ f() }}", 3, "'x' is undefined"),
        ("\n{{ messages[0].content + 1 }}", 2, ""),
        ("{% include 'other' %}", 1, "loader"),
        ("\n\n{{ messages | tojson(indent=[]) }}", 3, ""),
    ],
)
def test_a_failing_template_names_the_line(source: str, line: int, reason: str) -> None:
    said = error(source)
    assert f"failed in line {line}: " in said and reason in said


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(1000000000) %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% set x = range(99999) | list %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for x in range(5) recursive %}{{ loop(range(5)) }}{% endfor %}",
        "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x=3) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
        "{{ 9 ** 999999999 }}",
        "{{ 'ab' * 999999999 }}",
        "{{ [1] * 999999999 }}",
        "{{ 999999999 * messages[0].content }}",
        "{{ 'a'.center(999999999) }}",
        "{{ messages[0].content.ljust(999999999) }}",
        "{{ messages[0].content | center(999999999) }}",
        "{{ 'a' | indent(999999999) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ 'a\t'.expandtabs(999999999) }}",
        "{{ lipsum(n=99999999) }}",
    ],
)
def test_a_template_without_end_fails_soon(source: str) -> None:
    """B15: time and size are bounded."""
    start = time.thread_time()
    error(source)
    assert time.thread_time() - start < 1


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ messages[0].content.__init__ }}",
        "{{ messages[0].content._marks }}",
        "{{ ''['__class__'] }}",
        "{{ '' | attr('__class__') }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ '{0._marks}'.format(messages[0].content) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ messages[0].content.encode() }}",
        "{{ 'ab'.translate({97: 98}) }}",
        "{{ 'ab'.maketrans('a', 'b') }}",
    ],
)
def test_what_the_sandbox_keeps_in(source: str) -> None:
    """B15: attributes that lead out are blocked."""
    try:
        assert rendered(source) == ""  # what is kept in counts as undefined, which prints as nothing
    except TemplateError as refused:
        assert "unsafe" in str(refused)


def test_no_chance_in_a_template() -> None:
    assert "No filter named 'random'" in error("{{ messages | random }}")


def test_messages_survive_a_rendering() -> None:
    messages = [user("hey"), assistant("", tool_calls=[call("f", '{"x": 1}')])]
    before = repr(messages)
    rendered(TEMPLATES["qwen2.5"], messages)
    assert repr(messages) == before


CONTINUED = [user("Name a colour"), assistant("The colour is")]


@pytest.mark.parametrize(
    "name", ["smollm2", "qwen2.5", "role tokens", "thinking", "llama3", "gemma", "macros"]
)
@pytest.mark.parametrize("blank", ["", " "])
def test_a_final_message_is_left_open(name: str, blank: str) -> None:
    """B17: no end of turn and no second header."""
    messages = [CONTINUED[0], assistant(f"The colour is{blank}")]
    text = rendered(TEMPLATES[name], messages, continue_final_message=True)
    trims = name in ("llama3", "gemma")
    assert text.endswith("The colour is" + ("" if trims else blank))
    whole = rendered(TEMPLATES[name], messages, add_generation_prompt=False)
    assert whole.startswith(text) and whole != text


def test_the_ids_of_an_open_message() -> None:
    """B17."""
    tokenizer = Tokenizer.from_metadata(smollm2())
    prompt = compiled(TEMPLATES["smollm2"]).render(CONTINUED, continue_final_message=True)
    ids = tokenizer.encode_rendered(prompt)
    assert tokenizer.decode(ids[-8:], control=True).endswith("<|im_start|>assistant\nThe colour is")
    assert ids.count(1) == ids.count(2) + 1


def test_an_open_message_with_a_token_in_it() -> None:
    tokenizer = Tokenizer.from_metadata(smollm2())
    messages = [user("x"), assistant("It is <|im_end|> not over")]
    prompt = compiled(TEMPLATES["smollm2"]).render(messages, continue_final_message=True)
    assert prompt.text.endswith("It is <|im_end|> not over")
    assert tokenizer.encode_rendered(prompt).count(2) == 2  # of the default system message and the question


@pytest.mark.parametrize(
    "last",
    [
        user("x"),
        assistant(""),
        {"role": "assistant", "tool_calls": [call("f", {})]},
        assistant("x", tool_calls=[call("f", {})]),
    ],
)
def test_what_cannot_be_continued(last: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=r"messages\[1\] cannot be continued") as caught:
        rendered(TEMPLATES["qwen2.5"], [user("a"), last], continue_final_message=True)
    assert caught.value.param == "messages[1]"


def test_a_template_that_drops_the_last_message_cannot_continue_it() -> None:
    assert "leaves out the last message" in error("x", messages=CONTINUED, continue_final_message=True)


@pytest.mark.parametrize(
    ("name", "behind"),
    [
        ("smollm2", "<|im_end|>\n"),
        ("gemma", "<end_of_turn>\n"),
        ("llama3", "<|eot_id|>"),
        ("llama2", " </s>"),
    ],
)
def test_what_stands_behind_an_answer(name: str, behind: str) -> None:
    assert compiled(TEMPLATES[name]).behind_answer() == behind


def test_a_model_without_a_template() -> None:
    """B18: an error that says what to do, no template of ours."""
    with pytest.raises(NoTemplateError, match=r"base model.*--raw"):
        ChatTemplate.of(read_vocabulary(smollm2(chat_template=None)))
    assert ChatTemplate.of(read_vocabulary(smollm2()), now=lambda: NOW).source == TEMPLATES["smollm2"]


def test_one_template_renders_many_times() -> None:
    template = compiled(TEMPLATES["thinking"])
    first = template.render(CONVERSATIONS["several turns"])
    assert isinstance(first, Rendered)
    assert [template.render(CONVERSATIONS["several turns"]) for _ in range(3)] == [first] * 3


def test_the_clock_is_asked_at_each_rendering() -> None:
    times = iter([NOW, NOW.replace(year=2031)])
    template = ChatTemplate("{{ strftime_now('%Y') }}", **TOKENS, now=lambda: next(times))
    assert [template.render([user("x")]).text for _ in range(2)] == ["2025", "2031"]
