"""Kinds of values in the configuration: texts, sizes, lists, URLs, strategies, as files and variables have them.

Knows what each may be and how it is read; no keys. Called by `settings`, whose fields are of these types.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from tidegate.config.base_url import problem
from tidegate.engine.router import NAMES
from tidegate.provider_file import no_truth

MIB: Final = 1024 * 1024
"""Bytes."""
_UNITS: Final = {"": 1, "b": 1, "k": 1000, "kb": 1000, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9} | {
    "kib": 1024,
    "mib": MIB,
    "gib": 1024 * MIB,
}
_NAME: Final = re.compile(r"[A-Za-z][\w.-]{0,63}")
"""A compactor of the user's own."""
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)

EXPLAINED: Final = "explained"
"""Type of an error whose text is meant for people."""


class Allowed(str):
    """Words for what a value may be, where its type does not say it."""

    __slots__ = ()


def _bytes(value: object) -> object:
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        number, unit = match.groups()
        if unit.lower() in _UNITS:
            return int(float(number) * _UNITS[unit.lower()])
    return no_truth(value)


def _listed(value: object) -> object:
    """A list in one string: a JSON array, or values between commas."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return json.loads(value)
    return [part.strip() for part in value.split(",") if part.strip()]


def _url(value: str) -> str:
    if why := problem(value):
        raise PydanticCustomError(EXPLAINED, "{why}", {"why": why})
    return value.rstrip("/")


def _filled(value: object) -> object:
    if isinstance(value, str) and not value.strip():
        raise ValueError("empty")
    return value


Text = Annotated[str, BeforeValidator(_filled)]
Seconds = Annotated[float, BeforeValidator(no_truth), Field(gt=0, le=86_400)]
Bytes = Annotated[int, BeforeValidator(_bytes), Field(ge=1), Allowed('bytes, or a text as "64 MiB"')]
Texts = Annotated[tuple[str, ...], BeforeValidator(_listed), Allowed("a list of texts (in a variable: a,b)")]


def _named_strategies(value: tuple[str, ...]) -> tuple[str, ...]:
    """Those that are no built-in ones must be compactors of the user's own: the whole of the settings knows them."""
    wrong = [name for name in value if name not in NAMES and not _NAME.fullmatch(name)]
    if wrong or not value:
        raise ValueError("no such strategy" if wrong else "empty")
    return value


Strategies = Annotated[
    tuple[str, ...],
    BeforeValidator(_listed),
    AfterValidator(_named_strategies),
    Allowed(f"a list (in a variable: a,b) of {', '.join(NAMES)}, or names of [compactors]"),
]
Url = Annotated[
    str,
    AfterValidator(_url),
    Allowed("an http:// or https:// URL without user, query or endpoint, with or without /v1"),
]
AnyPath = Annotated[Path, BeforeValidator(_filled)]
