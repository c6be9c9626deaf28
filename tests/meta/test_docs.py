"""The documents say what the program does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from ostinato.cli.app import app

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cli.md"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="runs in the repository, where the documents are")


def commands(group: TyperGroup, path: str = "ostinato") -> dict[str, set[str]]:
    """Return the flags of each command by its full name."""
    found = {}
    for name, command in group.commands.items():
        flags = {flag for parameter in command.params for flag in parameter.opts if flag.startswith("-")}
        found[f"{path} {name}"] = flags
        if isinstance(command, TyperGroup):
            found |= commands(command, f"{path} {name}")
    return found


def test_the_page_of_the_command_line_has_every_command_and_flag() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    sections = dict(re.findall(r"^## ([^\n]+)\n\n```text\n(.*?)^```", PAGE.read_text(), re.M | re.S))
    for name, flags in commands(group).items():
        shown = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", sections[name]))
        assert flags <= shown, (name, flags - shown)
        assert shown <= flags | {"-h", "--help"}, (name, shown - flags)


def test_the_readme_has_the_two_commands() -> None:
    lines = re.findall(r"^    (pip install .*)$", (ROOT / "README.md").read_text(), re.M)
    assert len(lines) == 2
    assert "ostinato run" in lines[0] and "pytest" in lines[1]


@pytest.mark.parametrize(
    "document", sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/*.md")), ids=lambda p: p.name
)
def test_every_file_a_document_names_exists(document: Path) -> None:
    text = document.read_text()
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (document.parent / target).exists(), target
    for name in re.findall(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+\.py)`", text):
        assert any((base / name).exists() for base in (ROOT, ROOT / "src/ostinato")) or list(
            (ROOT / "src/ostinato").rglob(name)
        ), name
