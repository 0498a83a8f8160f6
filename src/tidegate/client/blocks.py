"""Rules of compaction for a block of code, or for one request: they lie over the settings.

Knows which rules there are; compacts nothing. Public (`tidegate.policy`), and read by the transports.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from typing import Any, Final

from pydantic import ValidationError

from tidegate.config import ConfigError
from tidegate.config.allowed import allowed
from tidegate.provider_file import Rules
from tidegate.upstream.http import Headers

HEADER: Final = b"x-tidegate-compaction"
"""Rules of one request: `threshold_percent=70, target_percent=30`, or a policy's name alone."""

_rules: ContextVar[Mapping[str, object]] = ContextVar("tidegate_rules", default={})  # noqa: B039 - never changed


@contextmanager
def policy(name: str | None = None, /, **rules: Any) -> Iterator[None]:
    """Requests that are made in this block, by this thread or task, follow these rules of compaction.

    `name` is a policy's (`default`, `rho`, `rho-elixir`, `rubypi`, `planck`), `rules` are keys of `[compaction]` that a
    provider or a model can have too: `threshold_percent`, `max_tokens`, `enabled`, ... Blocks lie over each other.
    Raises `ConfigError` for what is not allowed.
    """
    told = checked({**({"policy": name} if name is not None else {}), **rules})
    outer = _rules.get()
    # A policy's name begins anew.
    token = _rules.set(told if name is not None else {**outer, **told})
    try:
        yield
    finally:
        _rules.reset(token)


def checked(rules: Mapping[str, object]) -> Mapping[str, object]:
    """The rules as they are used. Raises `ConfigError` for what is not allowed."""
    try:
        return Rules.model_validate(dict(rules)).given()
    except ValidationError as error:
        wrong = dict.fromkeys(str(problem["loc"][0]) for problem in error.errors(include_url=False))
        raise ConfigError("\n".join(_told(key, rules[key]) for key in wrong)) from None


def _told(key: str, value: object) -> str:
    """What is wrong with a rule, and what may be meant instead."""
    if key in Rules.model_fields:
        return f"{key}: {value!r} is not allowed; allowed: {allowed(Rules.model_fields[key])}"
    near = get_close_matches(key, Rules.model_fields, 1)
    known = f"did you mean {near[0]}?" if near else f"allowed: {', '.join(Rules.model_fields)}"
    return f"unknown rule {key}; {known}"


def rules_of(headers: Headers) -> Mapping[str, object]:
    """The rules of a request: its header's over its block's. Raises `ConfigError`."""
    asked = next((value for name, value in headers if name == HEADER), None)
    if asked is None:
        return _rules.get()
    return {**_rules.get(), **checked(_read(asked.decode("latin-1")))}


def _read(text: str) -> dict[str, object]:
    told: dict[str, object] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, sign, value = part.partition("=")
        if sign:
            told[key.strip()] = value.strip()
        else:
            told["policy"] = key
    return told
