"""`tidegate compact`: compacts the history in a file, whatever its size, here or through a running gateway.

Knows how to ask and how to show it; the compaction is a gateway's either way: where none is named, one is made for
the moment, in this process. Called by the command line's root group.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final, get_args
from urllib.parse import urlencode

import click

from tidegate.cli.gateway_http import asked
from tidegate.cli.misconfigured import Misconfigured
from tidegate.cli.settings_file import config_option
from tidegate.cli.tables import counted
from tidegate.context.policies import NAMED
from tidegate.wire.conversation import DialectName

SECONDS: Final = 600.0
"""How long a gateway may take: as long as all calls of one compaction."""

HERE: Final[dict[str, object]] = {
    "host": "127.0.0.1",
    "port": 0,
    "server.workers": 1,
    "server.http": "own",
    "server.log_level": "error",
}
"""Of a gateway that is made for one compaction."""


@click.command(short_help="Compact a request body now, whatever its size.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--api", type=click.Choice(get_args(DialectName)), help="Of the body.  [default: told by it]")
@click.option("--provider", help="Name of the provider.  [default: as for the body's model]")
@click.option("--policy", type=click.Choice([*NAMED]), help="A named policy.  [default: as configured]")
@click.option("--focus", help="What the summary should look at above all.")
@click.option("--target-tokens", type=click.IntRange(min=1), help="What to bring it down to.  [default: half at most]")
@click.option("--key-env", help="Variable with the key to send.  [default: the provider's own]")
@click.option("--upstream", help="Ask this base URL, whatever the model.")
@click.option("--gateway", help="Ask the gateway at this base URL to do it.  [default: it is done here]")
@click.option("--json", "as_json", is_flag=True, help="The whole answer, the checkpoint's figures with it.")
@config_option()
def compact(
    file: Path,
    api: DialectName | None,
    provider: str | None,
    policy: str | None,
    focus: str | None,
    target_tokens: int | None,
    key_env: str | None,
    upstream: str | None,
    gateway: str | None,
    as_json: bool,
    config_file: Path | None,
) -> None:
    """Compact the request body in FILE (JSON; - for standard input), and print the smaller one.

    The provider is asked with the key in its variable (`tidegate providers`), under the settings that a gateway would
    have. What was made is stored as any compaction: the next request of the same history replays it, if it comes with
    the same key. Figures go to standard error. Ends with 1 where nothing was made smaller.

    \b
    Examples:
      tidegate compact request.json > smaller.json
      tidegate compact request.json --policy rho-elixir --focus "the database schema"
      tidegate compact messages.json --api messages --provider anthropic --json
      tidegate compact request.json --upstream http://127.0.0.1:8080
      tidegate compact request.json --gateway http://127.0.0.1:8484 --key-env OPENAI_API_KEY
    """
    if gateway and (upstream or config_file):
        raise click.UsageError("--upstream and --config are for what is done here: a gateway has its own")
    body = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    if wrong := _wrong(body, api):
        raise click.ClickException(f"{file}: {wrong}")
    said = {"api": api, "provider": provider, "policy": policy, "focus": focus, "target_tokens": target_tokens}
    query = urlencode({name: value for name, value in said.items() if value is not None})
    path = f"/tidegate/v1/compact{'?' + query if query else ''}"
    headers = _headers(api, key_env)
    with nullcontext(gateway) if gateway else _here(config_file, upstream) as base:
        answer = asked(base, path, headers, seconds=SECONDS, body=body, refused="")
    _shown(answer, as_json=as_json)


def _wrong(body: bytes, api: str | None) -> str:
    """Why nobody need be asked to compact that; empty where nothing speaks against it."""
    try:
        read = json.loads(body)
    except (ValueError, RecursionError):
        return "no JSON"
    if not isinstance(read, dict):
        return "no request body, which is a JSON object with `messages` or `input`"
    if api is None and not {"messages", "input"} & read.keys():
        return "neither `messages` nor `input` is in it; --api says what the body is of"
    return ""


def _headers(api: str | None, key_env: str | None) -> dict[str, str]:
    headers = {"content-type": "application/json"}
    if api == "messages":
        headers["anthropic-version"] = "2023-06-01"
    if key_env:
        if not (key := os.environ.get(key_env, "").strip()):
            raise click.ClickException(f"the variable {key_env} is not set")
        if api == "messages":
            headers["x-api-key"] = key
        else:
            headers["authorization"] = f"Bearer {key}"
    return headers


@contextmanager
def _here(config_file: Path | None, upstream: str | None) -> Iterator[str]:
    """The base URL of a gateway in this process, which nobody else knows of."""
    from tidegate.config import ConfigError, load
    from tidegate.gateway.server import CannotServe, serving

    flags = {**HERE, "upstream": upstream} if upstream else HERE
    try:
        with serving(load(config_file, flags, os.environ)) as (base, _app):
            yield base
    except (ConfigError, CannotServe) as error:
        raise Misconfigured(str(error)) from None


def _shown(answer: dict[str, dict[str, object] | str | bool], *, as_json: bool) -> None:
    made = answer.get("checkpoint")
    if as_json:
        click.echo(json.dumps(answer, indent=2, ensure_ascii=False))
    elif isinstance(made, dict):
        click.echo(json.dumps(answer["body"], indent=2, ensure_ascii=False))
        click.echo(
            f"{made['tokens_before']} -> {made['tokens_after']} tokens by {made['strategy']}, "
            f"{counted(made['calls'], 'call')}; checkpoint {made['id']}",
            err=True,
        )
    else:
        click.echo(f"unchanged: {answer['reason']}", err=True)
        if str(answer["reason"]).endswith("_401"):
            click.echo("The provider took no key: set its variable, or name another with --key-env.", err=True)
    if answer["unchanged"]:
        raise SystemExit(1)
