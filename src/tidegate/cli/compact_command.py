"""`tidegate compact`: has a running gateway compact the history in a file, whatever its size.

Knows how to ask and how to show it; the compaction is the gateway's. Called by the command line's root group.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlencode

import click

SECONDS = 600.0
"""How long a gateway may take: as long as all calls of one compaction."""


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--api", type=click.Choice(["chat", "responses", "messages"]), help="Of the body.  [default: told by it]")
@click.option("--gateway", default="http://127.0.0.1:8484", show_default=True, help="Base URL of the gateway.")
@click.option("--provider", help="Name of the provider.  [default: as for the body's model]")
@click.option("--focus", help="What the summary should look at above all.")
@click.option("--target-tokens", type=click.IntRange(min=1), help="What to bring it down to.  [default: half at most]")
@click.option("--key-env", help="Variable with the key to send.  [default: the gateway's own]")
@click.option("--json", "as_json", is_flag=True, help="The gateway's whole answer.")
def compact(
    file: Path,
    api: str | None,
    gateway: str,
    provider: str | None,
    focus: str | None,
    target_tokens: int | None,
    key_env: str | None,
    as_json: bool,
) -> None:
    """Compact the request body in FILE (JSON; - for standard input), and print the smaller one.

    What was made is stored as any compaction: the next request of the same history replays it. Figures go to
    standard error. Ends with 1 where nothing was made smaller.

    \b
    Examples:
      tidegate compact request.json > smaller.json
      tidegate compact request.json --focus "the database schema" --key-env OPENAI_API_KEY
      tidegate compact messages.json --api messages --provider anthropic --json
    """
    body = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    asked = {"api": api, "provider": provider, "focus": focus, "target_tokens": target_tokens}
    query = urlencode({name: value for name, value in asked.items() if value is not None})
    headers = {"content-type": "application/json"}
    if key_env:
        if not (key := os.environ.get(key_env, "").strip()):
            raise click.ClickException(f"the variable {key_env} is not set")
        headers["authorization"] = f"Bearer {key}"
        if api == "messages":
            headers["x-api-key"] = headers.pop("authorization").removeprefix("Bearer ")
    url = f"{gateway.rstrip('/')}/tidegate/v1/compact{'?' + query if query else ''}"
    told = _asked(url, body, headers)
    answer = json.loads(told)
    if as_json:
        click.echo(json.dumps(answer, indent=2, ensure_ascii=False))
    elif answer["unchanged"]:
        click.echo(f"unchanged: {answer['reason']}", err=True)
    else:
        click.echo(json.dumps(answer["body"], indent=2, ensure_ascii=False))
        made = answer["checkpoint"]
        click.echo(
            f"{made['tokens_before']} -> {made['tokens_after']} tokens by {made['strategy']}, "
            f"{made['calls']} calls; checkpoint {made['id']}",
            err=True,
        )
    if answer["unchanged"]:
        raise SystemExit(1)


def _asked(url: str, body: bytes, headers: dict[str, str]) -> bytes:
    if not url.startswith(("http://", "https://")):
        raise click.ClickException(f"{url} is no http:// or https:// URL")
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")  # noqa: S310 - looked at above
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as response:  # noqa: S310
            read: bytes = response.read()
            return read
    except urllib.error.HTTPError as error:
        raise click.ClickException(f"the gateway answered {error.code}: {_message(error.read())}") from None
    except (urllib.error.URLError, OSError) as error:
        raise click.ClickException(f"no gateway at {url.partition('/tidegate/')[0]}: {error}") from None


def _message(body: bytes) -> str:
    try:
        value = json.loads(body)
        return str(value["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")
