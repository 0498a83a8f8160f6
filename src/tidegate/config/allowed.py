"""What a key allows, in words taken from its type and limits.

Knows annotations only. Called for error messages and for the reference page.
"""

from __future__ import annotations

import types
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import FilePath, SecretStr
from pydantic.fields import FieldInfo

from tidegate.config.values import Allowed

_PLAIN: Final[dict[object, str]] = {bool: "true or false", str: "a text, not empty", Path: "a path"}
_FILE: Final = get_args(FilePath)[1]


def allowed(field: FieldInfo) -> str:
    """What a field allows: "a whole number from 1 to 5", "sqlite, memory or none"."""
    kind, limits = _taken_apart(field.annotation, list(field.metadata))
    words = next((str(limit) for limit in limits if isinstance(limit, Allowed)), None)
    if words is not None:
        return words
    if get_origin(kind) is Literal:
        *first, last = map(str, get_args(kind))
        return f"{', '.join(first)} or {last}"
    if kind in (int, float):
        return _number(kind, limits)
    if any(type(limit) is type(_FILE) for limit in limits):
        return "the path of a file that is there"
    return _PLAIN.get(kind, "a text")


def is_secret(field: FieldInfo) -> bool:
    """Whether a field's value must never be shown."""
    return _taken_apart(field.annotation, [])[0] is SecretStr


def is_path(field: FieldInfo) -> bool:
    """Whether a field is a path, which may be relative to where it was written."""
    return _taken_apart(field.annotation, [])[0] is Path


def _taken_apart(kind: Any, limits: list[Any]) -> tuple[Any, list[Any]]:
    """The plain type under `Annotated` and `| None`, and all that is said of it on the way."""
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *said = get_args(kind)
        spread = [part for limit in said for part in (limit.metadata if isinstance(limit, FieldInfo) else [limit])]
        return _taken_apart(inner, limits + spread)
    if origin in (Union, types.UnionType):
        (inner,) = (part for part in get_args(kind) if part is not type(None))
        return _taken_apart(inner, limits)
    return kind, limits


def _number(kind: Any, limits: list[Any]) -> str:
    name = "a whole number" if kind is int else "a number"
    low = next((limit.ge for limit in limits if isinstance(limit, Ge)), None)
    above = next((limit.gt for limit in limits if isinstance(limit, Gt)), None)
    high = next((limit.le for limit in limits if isinstance(limit, Le)), None)
    if low is not None and high is not None:
        return f"{name} from {low} to {high}"
    if above is not None and high is not None:
        return f"{name} above {above}, at most {high}"
    return f"{name}, at least {low}" if low is not None else name
