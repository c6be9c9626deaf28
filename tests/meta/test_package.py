"""The package as a whole: what it offers exists, and imports go one way."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import ostinato

SOURCE = Path(ostinato.__file__).parent
ORDER = ["cli", "lab", "api", "facade", "chat", "engine", "kvcache", "models", "ops", "sampling"]
"""From top to bottom: a part may import those below it, and the leaves."""
LEAVES = {"telemetry", "pricing", "weights"}
ANYONE = {"config", "errors"}
FACADE = {"__init__", "answer", "card", "inventory", "model", "options", "stream"}


def part_of(module: str) -> str:
    """Return the part of the package that a module below `ostinato` belongs to."""
    first = module.split(".")[1] if "." in module else "__init__"
    return "facade" if first in FACADE else "cli" if first == "__main__" else first


def is_module(name: str) -> bool:
    """Return whether this is a module or package of ours, and not a name in one."""
    path = SOURCE.parent / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").exists()


def imports_of(path: Path) -> set[str]:
    """Return the modules of this package that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "ostinato":
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if is_module(name) else node.module for name in inner}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "ostinato"}
    return found


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_downwards_or_to_a_leaf(path: Path) -> None:
    own = part_of("ostinato." + ".".join(path.relative_to(SOURCE).with_suffix("").parts))
    for module in imports_of(path):
        other = part_of(module)
        if own == other or other in LEAVES | ANYONE or (own in ANYONE and other in ANYONE):
            continue
        assert own not in LEAVES | ANYONE, f"{own} must not import {module}"
        assert ORDER.index(own) < ORDER.index(other), f"{own} must not import {module}"


@pytest.mark.parametrize(
    "path", [p for p in FILES if "cli" in p.parts or "lab" in p.parts], ids=lambda p: p.name
)
def test_commands_and_laboratory_use_the_public_interface(path: Path) -> None:
    allowed = {
        "ostinato",
        "ostinato.config",
        "ostinato.errors",
        "ostinato.options",
        "ostinato.weights.sources",
    }
    allowed |= {"ostinato.sampling.params"}
    for module in imports_of(path):
        assert module in allowed or module.startswith(("ostinato.cli", "ostinato.lab")), module


@pytest.mark.parametrize("name", ostinato.__all__)
def test_everything_that_is_offered_can_be_had(name: str) -> None:
    assert getattr(ostinato, name).__doc__


def test_nothing_else_is_offered() -> None:
    assert sorted(ostinato.__all__) == sorted(ostinato._HOME)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ostinato.nothing  # noqa: B018


def test_config_and_errors_need_only_the_standard_library() -> None:
    for name in ANYONE:
        tree = ast.parse((SOURCE / f"{name}.py").read_text())
        modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        assert not {str(m).split(".")[0] for m in modules} & {"numpy", "ostinato", "rich", "typer"}
