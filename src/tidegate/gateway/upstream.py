"""One client's upstream: the request as it came or with another body, and the calls of its compactions.

Knows the pool and the client's headers; decides nothing. Driven by `tidegate.drive.aio`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tidegate.compactors.strategy import Call, Reply
from tidegate.gateway.calls import made, with_added
from tidegate.gateway.keyring import Turns
from tidegate.gateway.messages import unbound
from tidegate.upstream.client import Answer, Client, ListenedAnswer
from tidegate.upstream.custom import Compactors
from tidegate.upstream.http import Headers, Request

NO_COMPACTORS: Final = Compactors()


class ClientUpstream:
    """Where one client's requests go. Nothing of it changes but which of several keys were refused."""

    __slots__ = (
        "_custom",
        "_headers",
        "_lines",
        "_method",
        "_on_status",
        "_original",
        "_pool",
        "_query",
        "_root",
        "_turns",
        "_url",
    )

    def __init__(
        self,
        pool: Client,
        method: str,
        url: str,
        root: str,
        query: bytes,
        headers: Headers,
        original: bytes,
        lines: bytes | None = None,
        on_status: Callable[[int], None] | None = None,
        custom: Compactors = NO_COMPACTORS,
        turns: Turns | None = None,
    ) -> None:
        """`headers` as they go upstream, credential included; `lines`: the same, written, where that is known.
        `original` is the body as it goes upstream if nothing changes, encoded as `headers` say. `on_status` hears the
        status of every answer to the client's credential."""
        self._pool, self._method, self._url, self._root, self._query = pool, method, url, root, query
        self._headers, self._original, self._on_status, self._lines = headers, original, on_status, lines
        self._custom, self._turns = custom, turns

    def telling(self, on_status: Callable[[int], None]) -> ClientUpstream:
        """The same, and `on_status` hears the status of every answer."""
        return ClientUpstream(
            self._pool, self._method, self._url, self._root, self._query, self._headers, self._original, self._lines,
            on_status, self._custom, self._turns,
        )  # fmt: skip

    async def send(
        self, body: bytes | None, add_headers: Mapping[str, str], *, again: bool = False, credential: str = ""
    ) -> Answer:
        """See `tidegate.drive.aio.Upstream`. Where none of several keys is named, another is asked in the place of a
        refused one."""
        turns = self._turns
        if turns is None:
            response: Answer = await self._pool.send(self._request(body, add_headers, credential), again=again)
        else:
            response, _ = await turns.ask(
                lambda name: self._pool.send(self._request(body, add_headers, name), again=again and not turns.spent),
                credential,
            )
        if self._on_status is not None:
            self._on_status(response.status)
        return response

    def send_now(
        self, body: bytes | None, add_headers: Mapping[str, str], listener: Callable[[bool], None]
    ) -> ListenedAnswer | None:
        """See `tidegate.drive.direct.Edge`."""
        if self._turns is not None:
            return None
        return self._pool.send_now(self._request(body, add_headers), listener)

    def _with_key(self, name: str) -> Headers:
        """The headers with the key of that name; those that are there where it is none or the first."""
        turns = self._turns
        return self._headers if turns is None or name in ("", turns.names[0]) else turns.headers(name)

    def _request(self, body: bytes | None, add_headers: Mapping[str, str], name: str = "") -> Request:
        headers = self._with_key(name)
        if body is None:
            lines = self._lines if headers is self._headers else None
            return Request(self._method, self._url, headers, self._original, lines=lines)
        return Request(self._method, self._url, with_added(unbound(headers), add_headers), body)

    async def call(self, call: Call) -> Reply:
        """See `tidegate.drive.aio.Upstream`. A call lost on the way, or to a server in trouble, is made once more."""
        if call.via:
            return await self._custom.ask_async(call)
        return await made(self._pool, self._root, self._query, unbound(self._with_key(call.credential)), call)
