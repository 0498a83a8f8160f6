"""The `tidegate` command: what people type.

Knows which commands there are and where they live; each is imported only when it runs, so that the root starts fast.
"""

from __future__ import annotations

from importlib import import_module

import click

from tidegate.build import version

COMMANDS = {
    "serve": "serve_command",
    "demo": "demo_command",
    "simulate": "simulate_command",
    "providers": "providers_command",
    "classify": "classify_command",
    "status": "status_command",
    "compact": "compact_command",
    "replay": "replay_command",
    "checkpoints": "checkpoints_command",
    "windows": "windows_command",
    "capabilities": "capabilities_command",
    "route": "route_command",
}
"""Command names, in the order of `--help`, to the module of this package that holds each under its own name."""


class Commands(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command's name, the main ones first."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, or None."""
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f"tidegate.cli.{COMMANDS[cmd_name]}"), cmd_name)
        if not isinstance(command, click.Command):
            raise TypeError(f"tidegate.cli.{COMMANDS[cmd_name]}.{cmd_name} is no command")
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(version(), prog_name="tidegate", message="%(prog)s %(version)s")
def main() -> None:
    """Keeps LLM agents inside their model's context window.

    \b
    Examples:
      tidegate serve                            a gateway on http://127.0.0.1:8484
      tidegate serve --upstream http://127.0.0.1:8080
      tidegate demo                             see it work, without a key
      tidegate simulate --window 24000          a provider to dry-run an agent against
      tidegate COMMAND --help                   options and examples of a command
    """
