"""Puts Tidegate around litellm's two functions of a process, and takes it away again.

Knows their names; what they do then is `blocking`'s and `waiting`'s. Public.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Any, Final

import litellm

from tidegate.client.house import Given, House, house
from tidegate.litellm import blocking, waiting

MARK: Final = "_tidegate_original"

_lock: Final = threading.Lock()


def install(*, config: str | os.PathLike[str] | None = None, settings: Given | None = None) -> None:
    """From now on `litellm.completion` and `litellm.acompletion`, and all that calls them by these names (the Router
    does), keep conversations inside their windows. Installed again, the newer settings hold.

    `settings` are tables shaped like the configuration file, over `config` and the environment. What was imported
    before by `from litellm import completion` stays as it was. Raises `ConfigError` for settings that are not allowed.
    """
    kept = house(config, settings)
    with _lock:
        _take_away()
        litellm.completion = _completion(litellm.completion, kept)
        litellm.acompletion = _acompletion(litellm.acompletion, kept)


def uninstall() -> None:
    """Puts litellm's own functions back."""
    with _lock:
        _take_away()


def is_installed() -> bool:
    """Whether both functions are Tidegate's."""
    return hasattr(litellm.completion, MARK) and hasattr(litellm.acompletion, MARK)


def _take_away() -> None:
    for name in ("completion", "acompletion"):
        setattr(litellm, name, getattr(getattr(litellm, name), MARK, getattr(litellm, name)))


def _completion(original: Callable[..., Any], kept: House) -> Callable[..., Any]:
    names = list(inspect.signature(original).parameters)

    @wraps(original)
    def completion(*args: Any, **kwargs: Any) -> Any:
        return blocking.kept(original, kept, _named(names, args, kwargs))

    setattr(completion, MARK, original)
    return completion


def _acompletion(original: Callable[..., Awaitable[Any]], kept: House) -> Callable[..., Awaitable[Any]]:
    names = list(inspect.signature(original).parameters)

    @wraps(original)
    async def acompletion(*args: Any, **kwargs: Any) -> Any:
        return await waiting.kept(original, kept, _named(names, args, kwargs))

    setattr(acompletion, MARK, original)
    return acompletion


def _named(names: list[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {**dict(zip(names, args, strict=False)), **kwargs}
