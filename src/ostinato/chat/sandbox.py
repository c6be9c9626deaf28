"""The Jinja in which chat templates run: bounded, without access to Python, and aware of who wrote what.

Knows Jinja's compiler, its filters and its sandbox. Must not know messages, roles or tokens. Next on the
request's path: back in `template.py`.

It behaves as the environment that published templates are written for (transformers'
`chat_template_utils.py`): blocks are trimmed, loops can be left with `break` and `continue`, `generation`
blocks are transparent, `tojson` writes plain JSON. What it adds: every place where Jinja makes text from text
goes through `provenance.py`, and every round of a loop is counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from types import BuiltinMethodType
from typing import Any

from jinja2 import nodes, pass_context, pass_environment
from jinja2.compiler import CodeGenerator, Frame
from jinja2.environment import Environment
from jinja2.ext import Extension, LoopControlExtension
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ostinato.chat.bounds import check_growth, check_len
from ostinato.chat.formatting import brace, percent
from ostinato.chat.provenance import UNTRACEABLE, caller_text, concat, opaque, text_of, traceable

BUDGET = "steps left"  # the variable that holds them; no template can write a name with a space
_STEP = "one step"
_KEEPERS = (dict, list, tuple, set, frozenset)  # what their methods return was put in

# Filters of Jinja's that hand on the very values they are given. The others make text by their own means; if
# any input is a caller's, so is all that they make.
_HANDS_ON = {
    *("attr", "batch", "d", "default", "dictsort", "first", "groupby", "items", "last", "list", "map", "max"),
    *("min", "reject", "rejectattr", "reverse", "select", "selectattr", "slice", "sort", "sum", "unique"),
}


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates. A template needs a `Budget` among its variables under the name `BUDGET`."""

    intercepted_binops = frozenset(["+", "%", "*", "**"])
    concat = staticmethod(concat)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationExtension, LoopControlExtension],
            finalize=_printed,
        )
        del self.globals["lipsum"], self.filters["random"]  # the same messages must give the same prompt
        self.filters = {name: _tracing(name, function) for name, function in self.filters.items()}
        self.filters |= {name: _method(name) for name in ("capitalize", "lower", "upper")}
        self.filters |= {
            "format": lambda template, *args, **kwargs: percent(text_of(template), kwargs or args),
            "join": _join,
            "replace": _replace,
            "safe": text_of,
            "string": text_of,
            "tojson": _tojson,
            "trim": lambda value, chars=None: traceable(text_of(value)).strip(chars),
            _STEP: _step,
        }

    def getattr(self, obj: Any, attribute: str) -> Any:
        return super().getattr(traceable(obj) if isinstance(obj, str) else obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, str) and isinstance(argument, str):
            obj = traceable(obj)
        return super().getitem(obj, argument)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr in UNTRACEABLE:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        owner, name = getattr(value, "__self__", None), getattr(value, "__name__", "")
        if not isinstance(owner, str) or name not in ("format", "format_map"):
            return None
        if name == "format":
            return lambda *args, **kwargs: brace(self, owner, args, kwargs)
        return lambda mapping: brace(self, owner, (), mapping)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = super().call(context, obj, *args, **kwargs)
        made_here = isinstance(obj, BuiltinMethodType) and not isinstance(obj.__self__, _KEEPERS)
        return caller_text(result) if made_here and isinstance(result, str) else result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            return percent(left, right)
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            return concat((left, right))
        if operator != "%":
            check_growth(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _count_steps(super()._parse(source, name, filename))


class _TracingCodeGenerator(CodeGenerator):
    """Writes `~` as our concatenation, and refuses escaping for HTML, which would lose the marks."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("concat((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_ScopedEvalContextModifier(self, node: nodes.ScopedEvalContextModifier, frame: Frame) -> None:
        self.fail("autoescape is not supported in a chat template", node.lineno)


ChatEnvironment.code_generator_class = _TracingCodeGenerator


class GenerationExtension(Extension):
    """`{% generation %}`: marks the assistant's words, for training; here its body is printed."""

    tags = {"generation"}  # noqa: RUF012  (Jinja declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_print_body")
        return nodes.CallBlock(call, [], [], body).set_lineno(lineno)

    def _print_body(self, caller: Callable[[], str]) -> str:
        return caller()


def _count_steps(tree: nodes.Template) -> nodes.Template:
    """Begin every body that can run again and again, and every condition of a loop, with a step."""
    for node in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
        assert isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock)
        node.body.insert(0, nodes.ExprStmt(_step_node(node.lineno), lineno=node.lineno))
        if isinstance(node, nodes.For) and node.test is not None:
            node.test = nodes.And(_step_node(node.lineno), node.test, lineno=node.lineno)
    return tree


def _step_node(lineno: int) -> nodes.Filter:
    return nodes.Filter(nodes.Const(None), _STEP, [], [], None, None, lineno=lineno)


@pass_context
def _step(context: Context, _: None) -> bool:
    context.parent[BUDGET].spend(1)
    return True


def _printed(value: object) -> object:
    return value if isinstance(value, Undefined) else text_of(value)


def _tracing(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a filter of Jinja's count what it goes through, and mark the text it makes."""
    passed = getattr(function, "jinja_pass_arg", None)

    @pass_context
    def traced(context: Context, *args: Any, **kwargs: Any) -> Any:
        context.parent[BUDGET].spend_on(args[0])
        for width in (*args[1:], *kwargs.values()):
            check_len(width if isinstance(width, int) else 0)
        result = function(*_passed(passed, context), *args, **kwargs)
        if name in _HANDS_ON or not isinstance(result, str):
            return result
        return opaque(result, args, kwargs)

    return traced


def _passed(kind: Any, context: Context) -> tuple[object, ...]:
    """Return what Jinja passes to a filter before its value, by the filter's declaration."""
    if kind is None:
        return ()
    passed = {"context": context, "environment": context.environment, "eval_context": context.eval_ctx}
    return (passed[kind.name],)


def _method(name: str) -> Callable[[object], str]:
    """Return the filter that calls a method of the value as a text."""
    return lambda value: str(getattr(traceable(text_of(value)), name)())


@pass_environment
def _join(env: Environment, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    items = value if attribute is None else map(make_attrgetter(env, attribute), value)
    return traceable(text_of(d)).join(map(text_of, items))


def _replace(value: object, old: str, new: str, count: int | None = None) -> str:
    return traceable(text_of(value)).replace(text_of(old), text_of(new), -1 if count is None else count)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return opaque(text, value, indent, separators)
