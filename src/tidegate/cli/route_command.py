"""`tidegate route`: how a model's histories are compacted, and why in no other way.

Knows how to ask and to show; the route is the engine's. Called by the command line's root group.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import get_args

import click

from tidegate import config
from tidegate.cli.misconfigured import Misconfigured
from tidegate.cli.settings_file import config_option
from tidegate.config import Settings
from tidegate.engine import router
from tidegate.engine.bridge import OVER_IT
from tidegate.engine.capabilities import Capabilities
from tidegate.gateway.catalogue import catalogue
from tidegate.gateway.targets import NoProvider, Targets
from tidegate.providers import Catalogue, Provider, ProviderError
from tidegate.wire.conversation import DialectName

OVER = "over the bridge to the Responses API, where all of the request has its like there (compaction.bridge)"


@click.command(short_help="Show how a model's histories are compacted.")
@click.argument("model", metavar="PROVIDER/MODEL")
@click.option(
    "--dialect",
    type=click.Choice(get_args(DialectName)),
    required=True,
    help="API that the client speaks: chat completions, Responses, or Anthropic's Messages.",
)
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
@config_option()
def route(model: str, dialect: DialectName, as_json: bool, config_file: Path | None) -> None:
    """Show how a model's histories are compacted: the ways that are tried, best first, and why not the others.

    What gateways have seen an endpoint to lack or to have counts, as far as their store tells (`tidegate
    capabilities`).

    \b
    Examples:
      tidegate route openai/gpt-6-sol --dialect responses
      tidegate route anthropic/claude-opus-5-5 --dialect messages --json
    """
    try:
        settings = config.load(config_file, {}, os.environ)
        found = route_of(model, dialect, settings, catalogue(settings), seen(settings))
    except config.ConfigError as error:
        raise Misconfigured(str(error)) from None
    except ProviderError as error:
        raise click.ClickException(str(error)) from None
    click.echo(json.dumps(found.told(), indent=2) if as_json else _lines(found))


def seen(settings: Settings) -> Capabilities:
    """What the store tells of endpoints; nothing where there is none, or it can't be read."""
    from tidegate.store import StoreError, capabilities_in, default_path

    kept = Capabilities()
    if settings.store.kind == "sqlite":
        with suppress(StoreError):
            kept.take_in(capabilities_in(settings.store.path or default_path()))
    return kept


def route_of(
    name: str,
    dialect: DialectName,
    settings: Settings,
    known: Catalogue,
    capabilities: Capabilities | None = None,
) -> router.Route:
    """The route of `PROVIDER/MODEL`, with what was seen of endpoints. Raises `click.ClickException` where that is none,
    or the provider does not serve the dialect, and `ProviderError` where there is no such provider."""
    prefix, slash, model = name.partition("/")
    if not slash or not model:
        raise click.UsageError(f"{name!r} is not of the form PROVIDER/MODEL, like openai/gpt-6-sol.")
    provider, targets = known.get(prefix), Targets(settings, known)
    if dialect not in provider.dialects:
        raise click.ClickException(f"Provider {prefix} serves {', '.join(provider.dialects)}, not {dialect}.")
    found = _route(provider, model, dialect, targets, capabilities)
    if dialect != "chat" or settings.compaction.bridge != "auto" or not provider.bridge:
        return found
    there = _route(provider, model, "responses", targets, capabilities)
    over = [router.Choice(it.name, f"{it.reason}; {OVER}") for it in there.strategies if it.name in OVER_IT]
    names = {it.name for it in over}
    others = tuple(it for it in found.excluded if it.name not in names)
    return router.Route((*over, *found.strategies), others, found.by)


def _route(
    provider: Provider, model: str, dialect: DialectName, targets: Targets, capabilities: Capabilities | None
) -> router.Route:
    wanted, missing = targets.wanted(provider, model, dialect), router.NOTHING
    if capabilities is not None:
        with suppress(NoProvider):  # no base URL yet: nothing was seen of it
            endpoint, now = targets.root(provider, dialect), time.time()
            wanted = wanted.with_learned(capabilities.learned(endpoint, router.LEARNED, now=now))
            missing = capabilities.missing(endpoint, model, router.watched(wanted.names), now=now)
    return router.route(dialect, wanted, targets.means(provider, model), missing)


def _lines(found: router.Route) -> str:
    """Numbered lines for what is tried, then the others."""
    width = max(len(choice.name) for choice in (*found.strategies, *found.excluded))
    tried = [f"{place}. {it.name:<{width}}  {it.reason}" for place, it in enumerate(found.strategies, 1)]
    others = [f"-  {it.name:<{width}}  {it.reason}" for it in found.excluded]
    return "\n".join([*(tried or [f"Nothing is tried: {found.nothing}."]), "", "Not tried:", *others])
