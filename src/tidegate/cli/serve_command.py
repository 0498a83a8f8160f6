"""`tidegate serve`: the gateway in the foreground.

Knows its options and what to tell people; the gateway itself is `tidegate.gateway.server`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import click

from tidegate.cli.misconfigured import Misconfigured


@click.command()
@click.option("--host", metavar="ADDRESS", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 takes a free one.  [default: 8484]")
@click.option(
    "--upstream",
    metavar="URL",
    help="Send everything to this base URL, whichever of the three APIs it speaks; with or without /v1.",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Settings file.  [default: tidegate.toml in this folder, if there is one]",
)
def serve(host: str | None, port: int | None, upstream: str | None, config_file: Path | None) -> None:
    """Serve the gateway until interrupted.

    Settings come from a file, from TIDEGATE_* environment variables and from these options, in rising order.

    \b
    Examples:
      tidegate serve
      tidegate serve --port 9000 --config ~/tidegate.toml
      tidegate serve --upstream http://127.0.0.1:11434       a local Ollama
      TIDEGATE_STORE__KIND=memory tidegate serve             keep nothing on disk
    """
    run_gateway({"host": host, "port": port, "upstream": upstream}, config_file)


def run_gateway(flags: Mapping[str, object], config_file: Path | None = None) -> None:
    """Serves with the settings of `flags` (None: not given), the environment and a file, until interrupted.

    Ends the process with status 2 where the configuration is wrong, and 1 where the address can't be had.
    """
    from tidegate.config import ConfigError, load
    from tidegate.gateway.server import CannotListen, CannotServe, run

    try:
        run(load(config_file, flags, os.environ), announce)
    except CannotListen as error:
        raise click.ClickException(str(error)) from None
    except (ConfigError, CannotServe) as error:
        raise Misconfigured(str(error)) from None
    except KeyboardInterrupt:
        click.echo("Stopped.", err=True)


def announce(url: str) -> None:
    """Tells people where to point their clients."""
    click.echo(
        f"""
Point clients at it; their own keys pass through:
  openai SDK, Codex and what speaks OpenAI's APIs   OPENAI_BASE_URL={url}/v1
  anthropic SDK, Claude Code                        ANTHROPIC_BASE_URL={url}
  a provider of your choice                         {url}/PROVIDER/v1   (names: tidegate providers)
Stop it with Ctrl-C.""",
    )
