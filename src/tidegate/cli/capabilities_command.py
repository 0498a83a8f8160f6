"""`tidegate capabilities`: what endpoints were seen to lack or to have, read from the store of the configuration.

Knows how to show it; not how it is learned (`engine.capabilities`). Called by the command line's root group.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from tidegate.cli.settings_file import OF_THE_STORE, config_option, loaded, store_file, tried
from tidegate.cli.tables import columns, printable, utc

WORDS = {
    "lacks": "does not have it",
    "troubled": "was in trouble",
    "has": "has done it",
}
"""What was seen; see `engine.capabilities.What`."""


@click.command(short_help="List what endpoints were seen to have and to lack.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON list.")
@config_option(OF_THE_STORE)
def capabilities(as_json: bool, config_file: Path | None) -> None:
    """List what endpoints were seen to be able to do and not, of compaction.

    What an endpoint does not have is asked for again after a day, and after minutes where it was in trouble: until then
    the next way is tried at once. What it has done, though no file lists it there, is tried for a month, for all its
    models. A running gateway writes what it sees within seconds.

    \b
    Examples:
      tidegate capabilities
      tidegate capabilities --json
      tidegate capabilities --config ~/tidegate.toml
    """
    file = store_file(loaded(config_file), "what is seen stays")
    facts = tried(lambda: known(file, time.time()))
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        click.echo(_table(facts) if facts else "Nothing has been seen yet.")


def known(path: Path, now: float) -> list[dict[str, object]]:
    """What a store's file holds, by endpoint, model and strategy. Times are ISO 8601 in UTC; `counts` says whether it
    is still gone by. Raises `StoreError`."""
    from tidegate.engine.capabilities import Capabilities
    from tidegate.store import capabilities_in

    kept = Capabilities()
    kept.take_in(capabilities_in(path))
    return [
        {
            "endpoint": one.endpoint,
            "model": one.model,
            "strategy": one.strategy,
            "seen": one.what,
            "at": utc(one.at),
            "until": utc(kept.until(one)),
            "counts": one.at <= now < kept.until(one),
        }
        for one in sorted(kept, key=lambda one: (one.endpoint, one.model, one.strategy, one.what))
    ]


def _table(facts: list[dict[str, object]]) -> str:
    rows = [("endpoint", "model", "strategy", "what was seen", "seen at", "counts until")]
    for one in facts:
        rows.append(
            (
                printable(one["endpoint"]),
                printable(one["model"]) or "(any)",
                printable(one["strategy"]),
                WORDS[str(one["seen"])] + ("" if one["counts"] else " (old)"),
                str(one["at"] or "-"),
                str(one["until"] or "-"),
            )
        )
    return columns(rows)
