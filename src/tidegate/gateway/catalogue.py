"""The providers that the settings and the user's own files make: those the gateway serves and the commands show.

Knows where they may have been given, so that what is wrong with one is told with its place. Called at the start.
"""

from __future__ import annotations

import re
from pathlib import Path

from tidegate.config import Settings, own_providers
from tidegate.gateway.targets import GENERIC
from tidegate.providers import Catalogue, ProviderError, load

_FROM_SETTINGS = re.compile(r"^config: providers\.([^:]+): (?:([\w.-]+): )?", re.MULTILINE)
"""How `providers.load` names what came as a table of the settings."""


def catalogue(settings: Settings) -> Catalogue:
    """The built-in providers with the user's own laid over them.

    Raises `ProviderError`, which names key and place, where one is wrong or says nowhere where it is.
    """
    try:
        known = load(own_providers(), overrides=settings.providers)
    except ProviderError as error:
        raise ProviderError(_placed(str(error), settings)) from None
    for provider in known:
        given = provider.base_url or provider.base_urls or provider.base_url_form or provider.through
        if not given and provider.name != GENERIC:
            place = settings.provider_origin(provider.name)
            key = f"providers.{provider.name}.base_url" if place else "base_url"
            place = place or str(_own_file(provider.name))
            raise ProviderError(f"{key} is missing: provider {provider.name} is not built in (given in {place})")
    return known


def _own_file(name: str) -> Path | None:
    """The user's file of that name, else the folder: a file may give its provider another name."""
    folder = own_providers()
    file = folder / f"{name}.toml" if folder else None
    return file if file is not None and file.is_file() else folder


def _placed(text: str, settings: Settings) -> str:
    lines = []
    for line in text.splitlines():
        found = _FROM_SETTINGS.match(line)
        if found is None:
            lines.append(line)
            continue
        name, key = found.groups()
        dotted = ".".join(filter(None, ("providers", name, key)))
        place = settings.provider_origin(name, key or "")
        lines.append(f"{dotted}: {line[found.end() :]} (given in {place})")
    return "\n".join(lines)
