"""One question to a gateway of this machine or another, over HTTP, and what to tell people where it has no answer.

Knows URLs and errors; not what is asked. Called by the commands that ask a gateway.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, Final

import click

_INSTEAD: Final = "`tidegate serve` starts one; --gateway URL names another."


def asked(
    base: str,
    path: str,
    headers: Mapping[str, str],
    *,
    seconds: float,
    body: bytes | None = None,
    refused: str = "the gateway answered ",
) -> Any:
    """The JSON that a gateway at `base` answers a GET with, or a POST where there is a `body`; no proxy is asked.

    `seconds` is how long it may keep silent. Raises `click.ClickException` where there is no such gateway, or where it
    refuses: `refused` is put before status and message then.
    """
    base = base.rstrip("/")
    if not base.startswith(("http://", "https://")):
        raise click.ClickException(f"{base} is no http:// or https:// URL")
    request = urllib.request.Request(f"{base}{path}", data=body, headers=dict(headers))  # noqa: S310 - looked at above
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=seconds) as response:
            return json.loads(response.read())
    except urllib.error.HTTPError as error:
        message = _message(error.read())
        if message is None:
            raise click.ClickException(f"no gateway at {base}: what answers there is none ({error.code})") from None
        raise click.ClickException(f"{refused}{error.code}: {message}") from None
    except ValueError:
        raise click.ClickException(f"no gateway at {base}: what answers there is none (no JSON)") from None
    except OSError as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        why = (cause.strerror if isinstance(cause, OSError) else None) or cause
        raise click.ClickException(f"no gateway at {base}: {why}. {_INSTEAD}") from None


def _message(body: bytes) -> str | None:
    """The message of an error as gateways answer it, None for what is none."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return None
