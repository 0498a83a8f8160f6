"""The documents against the project: links lead somewhere, commands exist, names are the code's own."""

import re
import shlex
import tomllib
from pathlib import Path
from urllib.parse import unquote

import click
import pytest

from tidegate.cli import COMMANDS, main
from tidegate.engine.effects import Outcome
from tidegate.gateway.messages import BYPASS, outcome_headers

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
README = (ROOT / "README.md").read_text()
MARKERS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["markers"]

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FENCE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as code hosts make them."""
    text = FENCE.sub("", page.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)}


def links() -> list[tuple[Path, str]]:
    return [
        (page, link)
        for page in PAGES
        for link in LINK.findall(FENCE.sub("", page.read_text()))
        if not link.startswith(("http://", "https://", "mailto:"))
    ]


def commands() -> list[str]:
    """Every `tidegate …` command line in a fenced block, and `./scripts/…`."""
    lines = [line for page in PAGES for block in FENCE.findall(page.read_text()) for line in block.splitlines()]
    return sorted(
        {line.split(" #")[0].strip() for line in lines if re.match(r"\s*(tidegate|\./scripts/\w+)( |$)", line)}
    )


@pytest.mark.parametrize(("page", "link"), links(), ids=lambda value: str(getattr(value, "name", value)))
def test_links_lead_somewhere(page: Path, link: str) -> None:
    path, _, anchor = link.partition("#")
    target = (page.parent / unquote(path)).resolve() if path else page
    assert target.exists()
    if anchor:
        assert anchor in anchors(target)


@pytest.mark.parametrize("line", commands())
def test_commands_that_are_shown_exist(line: str) -> None:
    program, *arguments = shlex.split(line)
    if program != "tidegate":
        assert (ROOT / program).is_file()
        if program != "./scripts/demo":
            return
        arguments = ["demo", *arguments]
    if not arguments or arguments[0].startswith("-"):
        known = {name for parameter in main.params for name in parameter.opts} | {"--help"}
    else:
        assert arguments[0] in COMMANDS
        command = main.get_command(click.Context(main), arguments[0])
        assert command is not None
        known = {name for parameter in command.params for name in parameter.opts} | {"--help"}
    assert {word.partition("=")[0] for word in arguments if word.startswith("--")} <= known


@pytest.mark.parametrize("marker", [text.partition(":")[0] for text in MARKERS])
def test_readme_names_every_group_of_tests(marker: str) -> None:
    assert f"./scripts/test {marker}" in README


SCRIPTS = sorted(path.name for path in (ROOT / "scripts").iterdir() if path.is_file() and "." not in path.name)


@pytest.mark.parametrize("script", SCRIPTS)
def test_readme_names_every_script(script: str) -> None:
    assert f"./scripts/{script}" in README


@pytest.mark.parametrize("command", COMMANDS)
def test_readme_names_every_command(command: str) -> None:
    assert f"tidegate {command}" in README


def test_readme_names_every_header() -> None:
    whole = Outcome("compacted", "reason", "strategy", "checkpoint", tokens_before=2, tokens_after=1)
    names = [name.decode() for name, _ in outcome_headers("id", whole)] + [BYPASS.decode()]
    assert [name for name in names if f"`{name}" not in README] == []
