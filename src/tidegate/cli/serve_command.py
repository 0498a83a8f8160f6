"""`tidegate serve`: the gateway in the foreground.

Knows its options and what to tell people; the gateway itself is `tidegate.gateway.server`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click

from tidegate.cli.misconfigured import Misconfigured
from tidegate.cli.settings_file import config_option


@click.command()
@click.option("--host", metavar="ADDRESS", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 takes a free one.  [default: 8484]")
@click.option(
    "--upstream",
    metavar="URL",
    help="Send everything to this base URL, whichever of the three APIs it speaks; with or without /v1.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    metavar="N",
    help="Processes that serve; more than the machine has cores gains nothing.  [default: 1]",
)
@config_option(default="tidegate.toml in this folder, else ~/.config/tidegate/tidegate.toml (on Linux)")
def serve(
    host: str | None, port: int | None, upstream: str | None, workers: int | None, config_file: Path | None
) -> None:
    """Serve the gateway until interrupted.

    Settings come from a file, from TIDEGATE_* environment variables and from these options, in rising order.
    They are read anew at a SIGHUP.

    \b
    Examples:
      tidegate serve
      tidegate serve --port 9000 --config ~/tidegate.toml
      tidegate serve --upstream http://127.0.0.1:11434       a local Ollama
      tidegate serve --workers 4                             for many clients at once
      TIDEGATE_STORE__KIND=memory tidegate serve             keep nothing on disk
    """
    run_gateway({"host": host, "port": port, "upstream": upstream, "workers": workers}, config_file)


def run_gateway(flags: Mapping[str, object], config_file: Path | None = None) -> None:
    """Serves with the settings of `flags` (None: not given), the environment and a file, until interrupted.

    Ends the process with status 2 where the configuration is wrong, and 1 where the address can't be had.
    """
    from tidegate.config import load
    from tidegate.gateway.server import run

    with _explained():
        read = partial(load, config_file, flags, os.environ)
        settings = read()
        run(settings, lambda url: click.echo(announcement(url, settings.file, settings.upstream.url)), read)


def check_gateway(flags: Mapping[str, object]) -> None:
    """Ends the process as `run_gateway` would, where it can be seen beforehand."""
    from tidegate.config import load
    from tidegate.gateway.server import check_address

    with _explained():
        check_address(load(None, flags, os.environ))


@contextmanager
def _explained() -> Iterator[None]:
    from tidegate.config import ConfigError
    from tidegate.gateway.server import CannotListen, CannotServe

    try:
        yield
    except CannotListen as error:
        raise click.ClickException(str(error)) from None
    except (ConfigError, CannotServe) as error:
        raise Misconfigured(str(error)) from None
    except KeyboardInterrupt:
        click.echo("Stopped.", err=True)


def announcement(url: str, file: Path | None, upstream: str | None) -> str:
    """What people need to know: where to point their clients, and what the gateway goes by.

    `url` is the address bound. `file` is the settings file, `upstream` where everything goes, where there is such.
    """
    scheme, _, address = url.partition("://")
    host, _, port = address.rpartition(":")
    everywhere = host in ("0.0.0.0", "[::]")  # noqa: S104 - recognised, not bound
    here = f"{scheme}://127.0.0.1:{port}" if everywhere else url
    lines = [f"Settings from {file}." if file else "No settings file."]
    if upstream:
        lines.append(f"Everything goes to {upstream}.")
    lines += [
        "Point clients at it; their own keys pass through:",
        f"  openai SDK, Codex and what speaks OpenAI's APIs   OPENAI_BASE_URL={here}/v1",
        f"  anthropic SDK, Claude Code                        ANTHROPIC_BASE_URL={here}",
    ]
    if not upstream:
        lines.append(
            f"  a provider of your choice                         {here}/PROVIDER/v1   (names: tidegate providers)"
        )
    if everywhere:
        lines.append("From other machines, put this one's name or address in place of 127.0.0.1.")
    return "\n" + "\n".join([*lines, "Stop it with Ctrl-C."])
