"""The configuration: a file, variables and flags, in rising order, as one checked value that knows where it came from.

Knows what may be set, not what it does. Called by the commands, the gateway and the clients at their start.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import platformdirs
from pydantic import ValidationError

from tidegate.config.allowed import allowed, is_secret
from tidegate.config.base_url import problem
from tidegate.config.layers import (
    CONFIG_VARIABLE,
    ConfigError,
    Given,
    Key,
    from_environ,
    from_file,
    from_flags,
    from_tables,
)
from tidegate.config.reference import reference
from tidegate.config.settings import (
    KEYS,
    CompactionSettings,
    CompactorSettings,
    ModelSettings,
    RoutingSettings,
    ServerSettings,
    Settings,
    StoreSettings,
    StreamSettings,
    SummarySettings,
    UpstreamSettings,
)
from tidegate.config.values import EXPLAINED
from tidegate.engine.router import NAMES

__all__ = [
    "CompactionSettings",
    "ConfigError",
    "ModelSettings",
    "RoutingSettings",
    "ServerSettings",
    "Settings",
    "StoreSettings",
    "StreamSettings",
    "SummarySettings",
    "UpstreamSettings",
    "find_file",
    "load",
    "own_providers",
    "reference",
]

FILE_NAME: Final = "tidegate.toml"
_LONGEST_SHOWN: Final = 60

FIELDS: Final = {"models": ModelSettings.model_fields, "compactors": CompactorSettings.model_fields}
"""Of tables whose names are the user's."""


def find_file(chosen: Path | None = None, environ: Mapping[str, str] | None = None) -> Path | None:
    """The file that is read: the chosen one, that of `TIDEGATE_CONFIG`, `./tidegate.toml`, or the user's; else None."""
    environ = os.environ if environ is None else environ
    named = environ.get(CONFIG_VARIABLE, "").strip()
    if chosen is not None or named:
        return (chosen or Path(named)).expanduser()
    folder = platformdirs.user_config_path("tidegate", appauthor=False)
    return next((path for path in (Path(FILE_NAME), folder / FILE_NAME) if path.is_file()), None)


def own_providers() -> Path | None:
    """The folder of provider files of the user's own (`~/.config/tidegate/providers` on Linux), None without one."""
    folder = platformdirs.user_config_path("tidegate", appauthor=False) / "providers"
    return folder if folder.is_dir() else None


def load(
    config_file: Path | None = None,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    tables: Mapping[str, Any] | None = None,
) -> Settings:
    """The settings of a file (see `find_file`), of `TIDEGATE_*` variables, of flags and of tables given in code; later
    ones win, key by key.

    `flags` are by dotted key, or `host`, `port`, `upstream`, `log_level`; None counts as not given. `tables` are shaped
    like a file. Raises
    `ConfigError` with a line for each wrong value.
    """
    environ = os.environ if environ is None else environ
    path = find_file(config_file, environ)
    if path is not None and config_file is None and environ.get(CONFIG_VARIABLE, "").strip() and not path.is_file():
        raise ConfigError(f"{CONFIG_VARIABLE}: {path}: there is no such file")
    given: dict[Key, Given] = {}
    layers = (
        from_file(path, environ) if path else (),
        from_environ(environ),
        from_flags(flags or {}),
        from_tables(tables or {}),
    )
    for layer in layers:
        for item in layer:
            _put(given, item)
    if wrong := _wrong_base_urls(given):
        raise ConfigError("\n".join(wrong))
    try:
        settings = Settings.model_validate(_tree(given.values()))
    except ValidationError as exc:
        raise ConfigError("\n".join(_explained(exc, given))) from None
    if wrong := _wrong_strategies(settings, {".".join(key): item.origin for key, item in given.items()}):
        raise ConfigError("\n".join(wrong))
    settings._origins.update({".".join(key): item.origin for key, item in given.items()})
    settings._file = path
    return settings


def _wrong_strategies(settings: Settings, origins: Mapping[str, str]) -> list[str]:
    """Names in lists of strategies that are no built-in one and no compactor of the user's own; and compactors that
    take a built-in one's name."""
    lists = {"compaction.strategies": settings.compaction.strategies}
    lists |= {f"models.{name}.strategies": model.strategies for name, model in settings.models.items()}
    known = (*NAMES, *settings.compactors)
    lines = [
        f"{key}: there is no strategy {name}; known: {', '.join(known)} ([compactors.NAME] adds one)"
        f" (given in {origins.get(key, 'default')})"
        for key, names in lists.items()
        for name in names or ()
        if name not in known
    ]
    return [
        *lines,
        *(f"compactors.{name}: that is a built-in strategy's name" for name in settings.compactors if name in NAMES),
    ]


def _put(given: dict[Key, Given], item: Given) -> None:
    """Adds a value; it replaces what was given for its key, above it or below it."""
    for key in list(given):
        shared = min(len(key), len(item.key))
        if key[:shared] == item.key[:shared]:
            del given[key]
    given[item.key] = item


def _tree(given: Iterable[Given]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for item in given:
        table = tree
        for name in item.key[:-1]:
            table = table.setdefault(name, {})
        table[item.key[-1]] = item.value
    return tree


def _explained(exc: ValidationError, given: Mapping[Key, Given]) -> list[str]:
    lines = {}
    for error in exc.errors(include_input=False, include_context=False, include_url=False):
        place = tuple(str(part) for part in error["loc"])
        item = next((given[place[:n]] for n in range(len(place), 0, -1) if place[:n] in given), None)
        key = item.key if item else place
        field = FIELDS[key[0]].get(key[-1]) if key[0] in FIELDS else KEYS.get((key[0], key[-1]))
        line = f"{'.'.join(key)}: {_shown(item, field)} is not allowed"
        if error["type"] == EXPLAINED:
            line += f": {error['msg']}"
        if field is not None:
            line += f"; allowed: {allowed(field)}"
        lines[key] = line + (f" (given in {item.origin})" if item else "")
    return list(lines.values())


def _wrong_base_urls(given: Mapping[Key, Given]) -> list[str]:
    """Providers' base URLs that no provider can have. The rest of their tables `tidegate.providers` looks at."""
    lines = []
    for key, item in given.items():
        if key[0] == "providers" and key[2:3] in (("base_url",), ("base_urls",)):
            why = problem(item.value) if isinstance(item.value, str) else ""
            if why:
                lines.append(f"{'.'.join(key)}: {_quoted(item)} is not allowed: {why} (given in {item.origin})")
    return lines


def _shown(item: Given | None, field: Any) -> str:
    """The value as it was written, but for secrets and what may hold one."""
    if item is None or field is None or is_secret(field):
        return "the value"
    return _quoted(item)


def _quoted(item: Given) -> str:
    text = repr(item.written)
    if "@" in text or len(text) > _LONGEST_SHOWN:
        return "the value"
    return text
