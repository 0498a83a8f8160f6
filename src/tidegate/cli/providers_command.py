"""`tidegate providers`: the providers Tidegate knows, built in and the user's.

Knows how to show a catalogue, not how one is loaded. Called by the command line's root group.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from tidegate import config
from tidegate.cli.misconfigured import Misconfigured
from tidegate.cli.settings_file import config_option
from tidegate.cli.tables import columns
from tidegate.gateway.catalogue import catalogue as known_providers
from tidegate.providers import Catalogue, Provider, ProviderError

ALL = 3
"""APIs that there are."""


@click.command(short_help="List the providers, and how they are reached.")
@click.option("--json", "as_json", is_flag=True, help="Everything known of each, as one JSON list.")
@config_option("Settings file with providers of your own.")
@click.pass_context
def providers(ctx: click.Context, as_json: bool, config_file: Path | None) -> None:
    """List the providers: which APIs they speak, where a missing key is taken from, where they are.

    Those built in, with your own settings and provider files laid over them.

    \b
    Examples:
      tidegate providers
      tidegate providers --json
      tidegate providers --config ~/tidegate.toml
    """
    known = catalogue(ctx, config_file)
    click.echo(json.dumps([_facts(provider) for provider in known], indent=2) if as_json else _table(known))


def catalogue(ctx: click.Context, config_file: Path | None = None) -> Catalogue:
    """The catalogue that the root group put in the context, else what `serve` would work with.

    Raises `Misconfigured` where the settings or a provider file are wrong.
    """
    given = ctx.find_object(Catalogue)
    if given is not None:
        return given
    try:
        return known_providers(config.load(config_file, {}, os.environ))
    except (config.ConfigError, ProviderError) as error:
        raise Misconfigured(str(error)) from None


def _table(known: Catalogue) -> str:
    """The widest column last: it alone may run over a narrow terminal's edge."""
    rows = [("name", "APIs", "key from", "base URL")]
    for provider in known:
        apis = "all" if len(provider.dialects) == ALL else ", ".join(provider.dialects)
        rows.append(
            (
                provider.name,
                apis,
                ", ".join(provider.auth.envs) or "the client",
                provider.api_root or (f"(by {provider.through})" if provider.through else "(yours)"),
            )
        )
    return columns(rows)


def _facts(provider: Provider) -> dict[str, object]:
    return {
        "name": provider.name,
        "title": provider.title,
        "base_url": provider.api_root or None,
        "dialects": list(provider.dialects),
        "strategies": {dialect: list(provider.strategies_for(dialect)) for dialect in provider.dialects},
        "key_variable": provider.auth.env,
        "models": [
            {
                "match": list(model.match),
                "window": model.window,
                "input_limit": model.input_limit,
                "max_output": model.max_output,
            }
            for model in provider.models
        ],
        "refusal_rules": len(provider.refusals),
    }
