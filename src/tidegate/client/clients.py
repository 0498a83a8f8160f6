"""The clients that people are given: httpx2's and httpx's own, with Tidegate's transport in place of theirs.

Knows how those libraries and the openai and anthropic clients are put together; nothing of conversations. Public.
"""

from __future__ import annotations

import copy
import os
import sys
from functools import cached_property, lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate.client import blocking, waiting
from tidegate.client.house import Given, House, house

if TYPE_CHECKING:
    import httpx2

Client = TypeVar("Client")


class NotAClient(TypeError):
    """What was to be wrapped is no client of a known kind; the text says which are."""


def http_client(
    *,
    config: str | os.PathLike[str] | None = None,
    settings: Given | None = None,
    **options: Any,
) -> httpx2.Client:
    """A blocking HTTP client for `OpenAI(http_client=...)` and `Anthropic(http_client=...)`.

    `settings` are tables shaped like the configuration file (`{"compaction": {"threshold_percent": 70}}`); they lie
    over the file (`config`, or the one that the gateway would read) and the environment. All other `options` are
    httpx2.Client's: `proxy`, `verify`, `timeout`, `limits`, `transport` ... Raises `ConfigError` for settings that are
    not allowed.
    """
    library = _library("httpx2")
    options = {"follow_redirects": True, **_default_timeout(), **options}
    client: httpx2.Client = _in_place(library.Client(**options), house(config, settings), library)
    return client


def async_http_client(
    *,
    config: str | os.PathLike[str] | None = None,
    settings: Given | None = None,
    **options: Any,
) -> httpx2.AsyncClient:
    """The same for `AsyncOpenAI` and `AsyncAnthropic`, on asyncio. See `http_client`."""
    library = _library("httpx2")
    options = {"follow_redirects": True, **_default_timeout(), **options}
    client: httpx2.AsyncClient = _in_place(library.AsyncClient(**options), house(config, settings), library)
    return client


def wrap(client: Client, *, config: str | os.PathLike[str] | None = None, settings: Given | None = None) -> Client:
    """The same client with Tidegate in place: an OpenAI, AsyncOpenAI, Anthropic, AsyncAnthropic (or their Azure and
    cloud kinds), or an HTTP client of httpx2 or httpx. The one given is left as it was.

    Raises `NotAClient`, and `ConfigError` for settings that are not allowed.
    """
    kept = house(config, settings)
    library = _library_of(client)
    if library is not None:
        same: Client = _copied(client, kept, library, client)
        return same
    inner = getattr(client, "_client", None)
    library = _library_of(inner)
    if library is None or not hasattr(client, "with_options"):
        raise NotAClient(
            f"tidegate.wrap takes a client of the openai or anthropic package, or an HTTP client of httpx2 or httpx; "
            f"this is of type {type(client).__name__}."
        )
    http = _copied(inner, kept, library, client)
    wrapped: Client = _with(http, client)
    return wrapped


def _with(http: object, client: Any) -> Any:
    """The same client with another HTTP client. A class of somebody's own may be made by other arguments than the
    SDK's, by which `with_options` calls it, or drop them."""
    try:
        made = client.with_options(http_client=http)
    except TypeError:
        return _made_anew(client, http)
    return made if made._client is http else _made_anew(client, http)


def _made_anew(client: Any, http: object) -> Any:
    """The same client with another HTTP client, and resources of its own: those that it has made send by the old."""
    made = copy.copy(client)
    made._client = http
    for name in [name for name in vars(made) if isinstance(getattr(type(made), name, None), cached_property)]:
        del made.__dict__[name]
    return made


def _copied(client: Any, kept: House, library: ModuleType, owner: object) -> Any:
    """A copy with other transports. The owner of the old ones lives as long: it closes them when it goes."""
    made = copy.copy(client)
    made.__class__ = _shared(type(client))  # type: ignore[arg-type] # a class is hashable
    return _in_place(made, kept, library, owner)


@lru_cache
def _shared(kind: type[Any]) -> type[Any]:
    """The same, but that nothing is closed when one is collected: the SDKs' do that, and others use its connections."""
    return type(kind.__name__, (kind,), {"__del__": lambda self: None}) if hasattr(kind, "__del__") else kind


def _in_place(client: Any, kept: House, library: ModuleType, owner: object = None) -> Any:
    """Puts Tidegate above each transport of a client: those of its proxies and mounts too."""
    kind = (blocking if isinstance(client, library.Client) else waiting).transport_class(library)
    if isinstance(client._transport, blocking.Blocking | waiting.Waiting):
        return client

    def above(below: object) -> object:
        return None if below is None else kind(below, kept, owner)

    client._transport = above(client._transport)
    client._mounts = {pattern: above(below) for pattern, below in client._mounts.items()}
    return client


def _library(name: str) -> ModuleType:
    return __import__(name)


def _library_of(client: object) -> ModuleType | None:
    """The HTTP library that a client is of, as far as it has been imported."""
    for name in ("httpx2", "httpx"):
        library = sys.modules.get(name)
        if library is not None and isinstance(client, library.Client | library.AsyncClient):
            return library
    return None


def _default_timeout() -> dict[str, Any]:
    """What the SDKs wait for by themselves: answers take minutes."""
    return {"timeout": _library("httpx2").Timeout(600.0, connect=5.0)}
