"""`tidegate checkpoints`: what is kept of compacted histories; a summary's text for whoever has the key; forgetting.

Knows how to show it; the store knows how it is kept. Called by the command line's root group.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidegate.cli.settings_file import OF_THE_STORE, config_option, loaded, store_file, tried
from tidegate.cli.tables import columns, counted, printable, utc

if TYPE_CHECKING:
    from tidegate.store import Kept, SqliteStore

CONFIG = config_option(OF_THE_STORE)
SHORTEST = 4
"""Digits of an id that name a checkpoint."""


@click.group()
def checkpoints() -> None:
    """List, show and forget what is kept of compacted histories.

    \b
    Examples:
      tidegate checkpoints list
      tidegate checkpoints show 3f9a1c --text
      tidegate checkpoints forget 3f9a1c
    """


@checkpoints.command("list")
@click.option("--json", "as_json", is_flag=True, help="All that is known of each, as one JSON list.")
@CONFIG
def listed(as_json: bool, config_file: Path | None) -> None:
    """List checkpoints, the newest first. Nothing of their text is opened."""
    store = _store(config_file)
    rows = tried(store.kept)
    if as_json:
        click.echo(json.dumps([_facts(row) for row in rows], indent=2))
    elif not rows:
        click.echo("Nothing has been compacted yet.")
    else:
        click.echo(_table(rows))
        click.echo(f"{counted(len(rows), 'checkpoint')}, {sum(row.bytes for row in rows):,} bytes")


@checkpoints.command("show")
@click.argument("checkpoint")
@click.option("--text", is_flag=True, help="The summary itself, opened with the key of this user.")
@CONFIG
def show(checkpoint: str, text: bool, config_file: Path | None) -> None:
    """Show one checkpoint, by its id or the beginning of it."""
    store = _store(config_file)
    for row in _named(store, checkpoint):
        click.echo(json.dumps(_facts(row), indent=2))
        if not text:
            continue
        opened = tried(partial(store.opened, row))
        if opened is None:
            raise click.ClickException(f"{row.id} can't be opened: it is sealed with another key.")
        if not opened.artifact.text:
            what = "tool results are left out" if opened.artifact.elided else "only its provider can read it"
            click.echo(f"(no text: {what})", err=True)
        else:
            click.echo(opened.artifact.text)


@checkpoints.command("forget")
@click.argument("checkpoint", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All of them.")
@click.option("--caller", help="All of one caller's, by the name in the list.")
@CONFIG
def forget(checkpoint: tuple[str, ...], everything: bool, caller: str | None, config_file: Path | None) -> None:
    """Forget checkpoints, by their ids. Requests go on with the client's own history, compacted anew when due."""
    if not checkpoint and not everything and not caller:
        raise click.UsageError("say which: ids, --caller NAME or --all")
    store = _store(config_file)
    rows = tried(store.kept) if everything or caller else []
    if caller:
        rows = [row for row in rows if row.caller == caller]
    for name in checkpoint:
        rows += _named(store, name)
    tried(lambda: store.forget(rows))
    click.echo(f"{len(rows)} forgotten")


def _store(config_file: Path | None) -> SqliteStore:
    from tidegate.gateway.kit import keys_of, store_of
    from tidegate.store import SqliteStore

    settings = loaded(config_file)
    if not store_file(settings, "checkpoints stay").exists():
        raise click.ClickException("Nothing has been compacted yet: there is no store.")
    store = tried(lambda: store_of(settings, keys_of(settings)))
    assert isinstance(store, SqliteStore)
    return store


def _named(store: SqliteStore, name: str) -> list[Kept]:
    """The checkpoints of an id: a sealed one and a text of the same items share theirs."""
    found = [row for row in tried(store.kept) if len(name) >= SHORTEST and row.id.startswith(name.lower())]
    if not found:
        raise click.ClickException(f"there is no checkpoint {printable(name)}; `tidegate checkpoints list` names them")
    if len({row.id for row in found}) > 1:
        raise click.ClickException(f"{printable(name)} begins several ids: {', '.join(sorted({r.id for r in found}))}")
    return found


def _facts(row: Kept) -> dict[str, object]:
    return {
        "id": row.id,
        "caller": row.caller,
        "strategy": row.strategy,
        "items": row.items,
        "tokens_before": row.tokens_before,
        "tokens_after": row.tokens_after,
        "bytes": row.bytes,
        "api": row.dialect,
        "provider": row.provider,
        "endpoint": row.endpoint,
        "model": row.model,
        "created_at": utc(row.created_at),
        "used_at": utc(row.used_at) if row.used_at is not None else None,
    }


def _table(rows: list[Kept]) -> str:
    shown = [("id", "caller", "made", "used", "way", "items", "tokens", "bytes", "provider", "model")]
    for row in rows:
        shown.append(
            (
                row.id,
                row.caller,
                str(utc(row.created_at)),
                str(utc(row.used_at)) if row.used_at is not None else "-",
                printable(row.strategy),
                str(row.items),
                f"{row.tokens_before:,} -> {row.tokens_after:,}",
                f"{row.bytes:,}",
                printable(row.provider),
                printable(row.model),
            )
        )
    return columns(shown)
