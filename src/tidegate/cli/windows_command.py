"""`tidegate windows`: what has been learned of models' windows, read from the store of the configuration.

Knows how to show it; not how it is learned (`overflow.window`). Called by the command line's root group.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from tidegate.cli.settings_file import OF_THE_STORE, config_option, loaded, store_file, tried
from tidegate.cli.tables import columns, printable, utc

WORDS = {
    "stated": "a refusal stated it",
    "refused": "so much was refused",
    "filled": "an answer filled it",
}
"""How a limit became known; see `overflow.learned.Source`."""


@click.command(short_help="List what was learned of models' windows.")
@click.option("--json", "as_json", is_flag=True, help="All that is known of each, as one JSON list.")
@config_option(OF_THE_STORE)
def windows(as_json: bool, config_file: Path | None) -> None:
    """List what refusals and successes have taught of models' windows.

    A limit that is too old to count is marked. A running gateway writes what it learns within seconds.

    \b
    Examples:
      tidegate windows
      tidegate windows --json
      tidegate windows --config ~/tidegate.toml
    """
    file = store_file(loaded(config_file), "what is learned stays")
    facts = tried(lambda: known(file, time.time()))
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        click.echo(_table(facts) if facts else "Nothing has been learned yet.")


def known(path: Path, now: float) -> list[dict[str, object]]:
    """What a store's file holds, by endpoint and model. Sizes are tokens, times ISO 8601 in UTC, None where there is
    none; `counts` says whether the limit is still gone by. Raises `StoreError`."""
    from tidegate.overflow import Windows
    from tidegate.store import windows_in

    kept = Windows()
    kept.take_in(windows_in(path))
    return [
        {
            "endpoint": one.endpoint,
            "model": one.model,
            "limit": one.limit,
            "of": None if one.limit is None else "input" if one.of_input else "window",
            "source": None if one.limit is None else one.source,
            "learned_at": None if one.limit is None else utc(one.learned_at),
            "times": one.times,
            "counts": kept.limit(one.endpoint, one.model, now=now) is not None,
            "largest_success": one.succeeded or None,
            "succeeded_at": utc(one.succeeded_at) if one.succeeded else None,
        }
        for one in sorted(kept, key=lambda one: (one.endpoint, one.model))
    ]


def _table(facts: list[dict[str, object]]) -> str:
    rows = [("endpoint", "model", "limit", "how it is known", "learned", "times", "largest success")]
    for one in facts:
        limit = f"{one['limit']:,}" if one["limit"] else "-"
        rows.append(
            (
                printable(one["endpoint"]),
                printable(one["model"]),
                limit + (" of the input" if one["of"] == "input" else ""),
                (WORDS[str(one["source"])] + ("" if one["counts"] else " (old)")) if one["limit"] else "-",
                str(one["learned_at"] or "-"),
                str(one["times"] or "-"),
                f"{one['largest_success']:,}" if one["largest_success"] else "-",
            )
        )
    return columns(rows)
