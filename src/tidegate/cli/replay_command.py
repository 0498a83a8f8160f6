"""`tidegate replay`: what would have been compacted of a recorded session, when, and what that would have cost.

Knows options and files; formats, engine and tables are `tidegate.cli.replay`'s. Called by the root group.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import get_args

import click

from tidegate.cli.misconfigured import Misconfigured
from tidegate.cli.replay.playing import NAMES, Playing, Rules, play
from tidegate.cli.replay.recorded import Session, Unreadable
from tidegate.cli.replay.sessions import read
from tidegate.cli.settings_file import config_option
from tidegate.config import ConfigError, load
from tidegate.gateway.catalogue import catalogue
from tidegate.gateway.targets import NoProvider
from tidegate.providers import ProviderError
from tidegate.wire.conversation import DialectName

WIDTH = 120
"""Columns where the output is no terminal."""


@click.command(short_help="Show what would be compacted of recorded sessions.")
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, allow_dash=True)
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Choice(NAMES),
    help="A named policy, or `off` for none; several are compared.  [default: as configured]",
)
@click.option("--window", type=click.IntRange(min=1), help="The model's window, in tokens.  [default: as known]")
@click.option("--threshold", type=click.FloatRange(1, 100), help="Percent of the window that begins a compaction.")
@click.option("--target", type=click.FloatRange(1, 100), help="Percent of the window that it aims for.")
@click.option("--model", default="", help="In place of the model that the file names.")
@click.option("--provider", default="", help="Whose windows and refusals count.  [default: as for the model]")
@click.option("--dialect", type=click.Choice(get_args(DialectName)), help="Of the bodies.  [default: told by them]")
@click.option("--brief", is_flag=True, help="Only the turns at which something was done.")
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON list, an object for each file.")
@config_option()
def replay(
    files: tuple[str, ...],
    policies: tuple[str, ...],
    window: int | None,
    threshold: float | None,
    target: float | None,
    model: str,
    provider: str,
    dialect: DialectName | None,
    brief: bool,
    as_json: bool,
    config_file: Path | None,
) -> None:
    """Take recorded sessions through the engine, and show what would have been compacted, turn by turn.

    A FILE holds requests (one JSON body a line), a transcript (a request, a list of messages, or one message a line),
    a session of Claude Code (~/.claude/projects/*/*.jsonl) or a rollout of Codex
    (~/.codex/sessions/**/rollout-*.jsonl); - is standard input. Nothing is sent to anybody: summaries are simulated.
    No word of the conversation is shown.

    \b
    Examples:
      tidegate replay session.jsonl
      tidegate replay session.jsonl --policy default --policy rho-elixir --policy off --brief
      tidegate replay rollout-2026-08-07.jsonl --window 128000 --threshold 70 --json
    """
    over = (("threshold_percent", threshold), ("target_percent", target))
    given = tuple((name, value) for name, value in over if value is not None)
    try:
        settings = load(config_file, {}, os.environ)
        known = catalogue(settings)
        found: list[tuple[Session, list[Playing]]] = []
        for file in files:
            session = read(file, sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes(), dialect)
            rules = [Rules(name, given, window, model, provider) for name in policies or (None,)]
            found.append((session, [play(session, rule, settings, known) for rule in rules]))
    except ConfigError as error:
        raise Misconfigured(str(error)) from None
    except (Unreadable, NoProvider, ProviderError, OSError) as error:
        raise click.ClickException(str(error)) from None
    _shown(found, brief=brief, as_json=as_json)


def _shown(found: list[tuple[Session, list[Playing]]], *, brief: bool, as_json: bool) -> None:
    from rich.console import Console

    from tidegate.cli.replay.showing import show, told

    if as_json:
        click.echo(json.dumps([told(session, playings) for session, playings in found], indent=2))
        return
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else WIDTH)
    for session, playings in found:
        show(console, session, playings, brief=brief)
