"""What a client of the openai or anthropic package would send for a body: address, credential, headers; and its HTTP
client, to send it with.

Knows how those packages build a request, which they share; sends nothing. Called by the `Compactor`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tidegate.wire.conversation import DialectName, JsonObject

if TYPE_CHECKING:
    import httpx2

PATHS: Mapping[tuple[str, DialectName], str] = {
    ("openai", "chat"): "/chat/completions",
    ("openai", "responses"): "/responses",
    ("anthropic", "messages"): "/v1/messages",
}


class NoSuchApi(TypeError):
    """The client's package does not speak the dialect, or it is no client at all; the text says which are."""


@dataclass(frozen=True, slots=True)
class Sdk:
    """One client of either package."""

    client: Any
    package: str
    library: ModuleType
    """httpx2 or httpx, whichever its HTTP client is of."""
    asynchronous: bool

    @property
    def dialect(self) -> DialectName:
        """The API that the package is used for where nothing is said."""
        return "messages" if self.package == "anthropic" else "chat"

    def request(self, dialect: DialectName, body: JsonObject) -> httpx2.Request:
        """What the client would send. Raises `NoSuchApi`."""
        path = PATHS.get((self.package, dialect))
        if path is None:
            raise NoSuchApi(f"The {self.package} package does not speak the {dialect} API.")
        options = import_module(f"{self.package}._models").FinalRequestOptions
        request: httpx2.Request = self.client._build_request(options(method="post", url=path, json_data=body))
        return request


def sdk_of(client: object) -> Sdk:
    """Raises `NoSuchApi` for what is no client of either package."""
    for package in ("openai", "anthropic"):
        module = sys.modules.get(f"{package}._base_client")
        if module is not None and isinstance(client, module.SyncAPIClient | module.AsyncAPIClient):
            inner = client._client
            library = next(
                module
                for name in ("httpx2", "httpx")
                if (module := sys.modules.get(name)) and isinstance(inner, module.Client | module.AsyncClient)
            )
            return Sdk(client, package, library, isinstance(inner, library.AsyncClient))
    raise NoSuchApi(
        f"A Compactor takes a client of the openai or anthropic package; this is of type {type(client).__name__}."
    )


class Below:
    """The HTTP client as a transport: with its proxies, certificates and hooks."""

    def __init__(self, sdk: Sdk) -> None:
        self._client = sdk.client._client

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends a request; its answer is still to be read."""
        response: httpx2.Response = self._client.send(request, stream=True)
        return response

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The same, asynchronously."""
        response: httpx2.Response = await self._client.send(request, stream=True)
        return response

    def close(self) -> None:
        """It is its owner's."""

    async def aclose(self) -> None:
        """It is its owner's."""
