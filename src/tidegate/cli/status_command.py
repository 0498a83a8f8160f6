"""`tidegate status`: what a running gateway tells of itself and of the conversations that it knows.

Knows how to ask and to show; the figures are the gateway's. Called by the command line's root group.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import click

from tidegate.cli.gateway_http import asked
from tidegate.cli.misconfigured import Misconfigured
from tidegate.cli.settings_file import config_option
from tidegate.cli.tables import columns, counted, printable, utc

SECONDS = 30.0
"""How long a gateway may take to answer."""
SHOWN = 20
"""Conversations in the table."""


@click.command(short_help="Show how a running gateway does.")
@click.argument("conversation", required=False)
@click.option("--gateway", default="http://127.0.0.1:8484", show_default=True, help="Base URL of the gateway.")
@click.option("--key-env", help="Variable with a caller's key: only what is that caller's is shown.")
@click.option("--limit", type=click.IntRange(min=1), default=SHOWN, show_default=True, help="Conversations to list.")
@click.option("--json", "as_json", is_flag=True, help="The gateway's own answer.")
@config_option("Settings file that says where the key is.")
def status(
    conversation: str | None,
    gateway: str,
    key_env: str | None,
    limit: int,
    as_json: bool,
    config_file: Path | None,
) -> None:
    """Show how a running gateway does, or what it knows of one CONVERSATION (an id of the list): how large it is, when
    a compaction is due, what the last check said, what was compacted.

    All callers' conversations are shown to whoever can read the gateway's key file, or has its server.admin_key. That
    is sent to gateways on this machine, and over https to others.

    \b
    Examples:
      tidegate status
      tidegate status 3f9a1c2b44d05e6f
      tidegate status --key-env OPENAI_API_KEY --json
    """
    headers = _caller(key_env) if key_env else _admin(config_file, gateway)

    def told(below: str) -> Any:
        return asked(gateway, f"/tidegate/v1/diagnostics{below}", headers, seconds=SECONDS)

    if conversation:
        one = told(f"/conversations/{quote(conversation, safe='')}")
        click.echo(json.dumps(one, indent=2) if as_json else _details(one))
        return
    whole, listed = told(""), told(f"/conversations?limit={limit}")
    if as_json:
        click.echo(json.dumps({**whole, "list": listed["conversations"]}, indent=2))
    else:
        click.echo(_overview(whole))
        if listed["conversations"]:
            click.echo("\n" + _table(listed["conversations"]))


def _caller(variable: str) -> dict[str, str]:
    if not (key := os.environ.get(variable, "").strip()):
        raise click.ClickException(f"the variable {variable} is not set")
    return {"authorization": f"Bearer {key}"}


def _admin(config_file: Path | None, base: str) -> dict[str, str]:
    """The header that opens all of it, where there is a key for it and it may be sent there."""
    from tidegate import config
    from tidegate.gateway.diagnostics import ADMIN_HEADER, admin_key
    from tidegate.gateway.guard import is_loopback
    from tidegate.gateway.kit import keys_of
    from tidegate.store import StoreError, default_key_file

    parts = urlsplit(base)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        return {}
    try:
        settings = config.load(config_file, {}, os.environ)
        store = settings.store
        there = store.key is not None or (store.key_file or default_key_file()).exists()
        if settings.server.admin_key is None and (store.kind != "sqlite" or not there):
            return {}  # nothing is known here that the gateway knows too
        return {ADMIN_HEADER: admin_key(settings, keys_of(settings))}
    except config.ConfigError as error:
        raise Misconfigured(str(error)) from None
    except StoreError as error:
        raise click.ClickException(f"{error}. With --key-env you see what is that caller's.") from None


def _overview(told: Any) -> str:
    seen = told["conversations"]
    hours, rest = divmod(int(told["uptime_seconds"]), 3600)
    form = "compiled" if told["compiled"] else "plain Python"
    lines = [
        f"Tidegate {told['version']} ({form}), up {hours}:{rest // 60:02}:{rest % 60:02}, "
        f"mode {told['mode']}, policy {told['policy']}",
        f"{counted(seen['known'], 'conversation')}; compactions: {seen['completed']} completed ({seen['unchanged']} of "
        f"them unchanged), {seen['failures']} failed, {seen['running']} running",
    ]
    if requests := told.get("requests"):
        parts = ", ".join(f"{count:,} {name}" for name, count in requests["actions"].items())
        lines.append(f"{counted(requests['total'], 'request')}{': ' if parts else ''}{parts}")
    if told.get("workers", 1) > 1:
        lines.append(f"process {told['pid']}, one of {told['workers']}: each tells of what it has served itself")
    return "\n".join(lines)


def _table(some: list[Any]) -> str:
    rows = [("conversation", "provider", "model", "tokens", "threshold", "last check", "why", "compactions")]
    for one in some:
        now, done = one["current"], one["completed"]
        rows.append(
            (
                str(one["id"]),
                printable(one["provider"]),
                printable(one["model"]),
                f"{now['tokens']:,}",
                _size(now["threshold"]),
                str(utc(one["last_check"]["at"])),
                printable(one["last_check"]["reason"]),
                f"{done['count']}" + (f", {one['failures']['count']} failed" if one["failures"]["count"] else ""),
            )
        )
    return columns(rows)


def _details(one: Any) -> str:
    now, done, failed, rest = one["current"], one["completed"], one["failures"], one["breaker"]
    last, fault = done["last"], failed["last"]
    baseline = now["baseline_tokens"]
    rows = [
        ("conversation", str(one["id"])),
        ("model", printable(f"{one['provider']}/{one['model']}")),
        ("items", f"{one['items']:,}, {one['replaced_items']:,} of them replaced"),
        ("tokens", f"{now['tokens']:,} (estimate {now['estimated_tokens']:,}, by the provider's count "
                   f"{_size(baseline)})"),
        ("window", f"{_size(now['window'])} ({now['window_source']})"),
        ("due from", f"{_size(now['threshold'])}, aiming for {_size(now['target'])}"),
        ("last check", f"{utc(one['last_check']['at'])}: {printable(one['last_check']['reason'])}"),
        ("running", str(now["running"])),
        ("completed", f"{done['count']}, {done['unchanged']} of them unchanged"),
    ]  # fmt: skip
    if last is not None:
        sizes = f"{last['tokens_before']:,} -> {last['tokens_after']:,} tokens"
        rows.append(("  last", f"{utc(last['at'])}: {sizes} by {printable(last['strategy'])} ({last['why']})"))
    rows.append(("failed", str(failed["count"])))
    if fault is not None:
        rows.append(("  last", f"{utc(fault['at'])}: {printable(fault['reason'])} ({fault['why']})"))
    if rest["open_until"] is not None:
        rows.append(("rests until", str(utc(rest["open_until"]))))
    return columns(rows)


def _size(tokens: int | None) -> str:
    return "-" if tokens is None else f"{tokens:,}"
