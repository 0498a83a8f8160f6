"""`tidegate providers`: the providers Tidegate knows, built in and the user's.

Knows how to show a catalogue, not how one is loaded. Called by the command line's root group.
"""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.table import Table

from tidegate.providers import Catalogue, Provider, ProviderError, load


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object a provider, in a list.")
@click.pass_context
def providers(ctx: click.Context, as_json: bool) -> None:
    """List the providers: where they are, which APIs they speak, how they authenticate.

    \b
    Examples:
      tidegate providers
      tidegate providers --json
    """
    known = catalogue(ctx)
    if as_json:
        click.echo(json.dumps([_facts(provider) for provider in known], indent=2))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "base URL", "APIs", "strategies", "key from", "models"):
        table.add_column(column, no_wrap=column in ("name", "base URL", "key from"))
    for provider in known:
        table.add_row(
            provider.name,
            provider.api_root or "(yours)",
            ", ".join(provider.dialects),
            ", ".join(_strategies(provider)),
            provider.auth.env or "the client",
            str(_models(provider) or "-"),
        )
    Console().print(table)


def catalogue(ctx: click.Context) -> Catalogue:
    """The catalogue that the root group put in the context, else the built-in one."""
    given = ctx.find_object(Catalogue)
    try:
        return given or load()
    except ProviderError as error:
        raise click.ClickException(str(error)) from None


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


def _strategies(provider: Provider) -> list[str]:
    return list(dict.fromkeys(name for dialect in provider.dialects for name in provider.strategies_for(dialect)))


def _models(provider: Provider) -> int:
    return sum(len(model.match) for model in provider.models)
