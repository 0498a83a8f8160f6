"""The root of the command line: its help, its version, its start."""

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from tidegate.build import version
from tidegate.cli import COMMANDS, main

HEAVY = ("asyncio", "cryptography", "msgspec", "pydantic", "rich", "sqlite3", "ssl", "uvicorn", "uvloop")


def test_version() -> None:
    assert CliRunner().invoke(main, ["--version"]).output == f"tidegate {version()}\n"


def test_help_lists_every_command_with_what_it_does() -> None:
    shown = CliRunner().invoke(main, ["--help"]).output
    listed = [line.split(maxsplit=1) for line in shown.partition("Commands:")[2].splitlines() if line.strip()]
    assert [name for name, _ in listed] == list(COMMANDS)
    assert all(len(does) > 10 and not does.endswith("...") for _, does in listed)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_examples_of_it(command: str) -> None:
    result = CliRunner().invoke(main, [command, "--help"])
    assert result.exit_code == 0
    examples = result.output.partition("Examples:")[2].partition("Options:")[0]
    assert f"tidegate {command}" in examples


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["serve", "--nonsense"], ["serve", "--port", "x"], ["demo", "--turns", "0"]]
)
def test_wrong_usage_ends_with_2(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "Usage:" in result.output


def test_unknown_command_is_no_module() -> None:
    assert main.get_command(click.Context(main), "demo.session") is None


def test_root_starts_without_what_its_commands_need() -> None:
    code = f"import sys, tidegate.cli; print(*(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "tidegate", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"tidegate {version()}\n"
