"""One client's upstream: the request as it came or with another body, and the calls of its compactions.

Knows the pool and the client's headers; decides nothing. Driven by `tidegate.drive.aio`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from tenacity import AsyncRetrying, RetryError, retry_if_result, stop_after_attempt, wait_random

from tidegate.compactors.strategy import Call, Reply
from tidegate.engine.effects import UpstreamError
from tidegate.gateway.messages import unbound
from tidegate.upstream.client import Answer, Client, ListenedAnswer
from tidegate.upstream.decode import BodyTooLarge, BodyUnreadable, decode_body
from tidegate.upstream.http import Headers, Request
from tidegate.upstream.url import join

REPLY_LIMIT = 16 << 20
"""Bytes of a summary call's reply."""

MERGED = frozenset({b"anthropic-beta"})
"""Headers whose values are lists: an added value goes beside the client's."""

TRANSIENT = frozenset({0, 408, 500, 502, 503, 504, 529})
"""Statuses of a summary call that are worth one more try; 429 is left to the client's own retries."""

CALL_ATTEMPTS = 2
CALL_WAIT = wait_random(0.3, 0.9)
"""Seconds before the second."""


class ClientUpstream:
    """Where one client's requests go. Nothing of it changes."""

    __slots__ = ("_headers", "_lines", "_method", "_on_status", "_original", "_pool", "_query", "_root", "_url")

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
    ) -> None:
        """`headers` as they go upstream, credential included; `lines`: the same, written, where that is known.
        `original` is the body as it goes upstream if nothing changes, encoded as `headers` say. `on_status` hears the
        status of every answer to the client's credential."""
        self._pool, self._method, self._url, self._root, self._query = pool, method, url, root, query
        self._headers, self._original, self._on_status, self._lines = headers, original, on_status, lines

    def telling(self, on_status: Callable[[int], None]) -> ClientUpstream:
        """The same, and `on_status` hears the status of every answer."""
        return ClientUpstream(
            self._pool, self._method, self._url, self._root, self._query, self._headers, self._original, self._lines,
            on_status,
        )  # fmt: skip

    async def send(self, body: bytes | None, add_headers: Mapping[str, str], *, again: bool = False) -> Answer:
        """See `tidegate.drive.aio.Upstream`."""
        response = await self._pool.send(self._request(body, add_headers), again=again)
        if self._on_status is not None:
            self._on_status(response.status)
        return response

    def send_now(
        self, body: bytes | None, add_headers: Mapping[str, str], listener: Callable[[bool], None]
    ) -> ListenedAnswer | None:
        """See `tidegate.drive.direct.Edge`."""
        return self._pool.send_now(self._request(body, add_headers), listener)

    def _request(self, body: bytes | None, add_headers: Mapping[str, str]) -> Request:
        if body is None:
            return Request(self._method, self._url, self._headers, self._original, lines=self._lines)
        return Request(self._method, self._url, with_added(unbound(self._headers), add_headers), body)

    async def call(self, call: Call) -> Reply:
        """See `tidegate.drive.aio.Upstream`. A call lost on the way, or to a server in trouble, is made once more."""
        attempts = AsyncRetrying(
            stop=stop_after_attempt(CALL_ATTEMPTS),
            wait=CALL_WAIT,
            retry=retry_if_result(_transient),
        )
        try:
            return await attempts(self._call_once, call)
        except RetryError as error:
            reply = error.last_attempt.result()
            assert isinstance(reply, Reply)
            return reply

    async def _call_once(self, call: Call) -> Reply:
        kept = [
            (name, value) for name, value in unbound(self._headers) if name.decode("latin-1") not in call.drop_headers
        ]
        headers = with_added(
            kept,
            {
                "content-type": "application/json",
                "accept": "text/event-stream, application/json",
                **call.add_headers,
            },
        )
        request = Request("POST", join(self._root, call.path, self._query), headers, call.body)
        try:
            async with asyncio.timeout(call.timeout):
                response = await self._pool.send(request)
                try:
                    body = await response.read_all(REPLY_LIMIT)
                finally:
                    await response.close()
            plain = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
            return Reply(response.status, decode_body(body, plain.get("content-encoding", ""), REPLY_LIMIT), plain)
        except (UpstreamError, BodyUnreadable, BodyTooLarge) as error:
            return Reply(0, error=str(error))
        except TimeoutError:
            return Reply(0, error=f"no answer within {call.timeout:g} seconds")


def _transient(reply: Reply) -> bool:
    return reply.status in TRANSIENT and "no answer within" not in reply.error


def with_added(headers: Headers, added: Mapping[str, str]) -> Headers:
    """The headers with others set; list-valued ones get the value added."""
    result = list(headers)
    for name, value in added.items():
        key, new = name.encode("latin-1"), value.encode("latin-1")
        old = b",".join(v for n, v in result if n == key)
        result = [(n, v) for n, v in result if n != key]
        if key in MERGED and old:
            present = [part.strip() for part in old.split(b",")]
            new = b",".join([old, *(part for part in new.split(b",") if part not in present)])
        result.append((key, new))
    return result
