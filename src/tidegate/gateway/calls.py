"""A compaction's call to its provider, with the client's credential: made, read, and made once more where it was lost.

Knows the pool and headers; nothing of what the call is for. Called by a client's upstream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from tenacity import AsyncRetrying, RetryError, retry_if_result, stop_after_attempt, wait_random

from tidegate.compactors.strategy import Call, Reply
from tidegate.engine.effects import UpstreamError
from tidegate.upstream.client import Client
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


async def made(pool: Client, root: str, query: bytes, headers: Headers, call: Call) -> Reply:
    """What a call to the API at `root` came to. `headers` are the client's, without what belongs to its own body."""
    attempts = AsyncRetrying(
        stop=stop_after_attempt(CALL_ATTEMPTS),
        wait=CALL_WAIT,
        retry=retry_if_result(transient),
    )
    try:
        return await attempts(_made_once, pool, root, query, headers, call)
    except RetryError as error:
        reply = error.last_attempt.result()
        assert isinstance(reply, Reply)
        return reply


async def _made_once(pool: Client, root: str, query: bytes, headers: Headers, call: Call) -> Reply:
    kept = [(name, value) for name, value in headers if name.decode("latin-1") not in call.drop_headers]
    headers = with_added(
        kept,
        {
            "content-type": "application/json",
            "accept": "text/event-stream, application/json",
            **call.add_headers,
        },
    )
    request = Request("POST", join(root, call.path, query), headers, call.body)
    try:
        async with asyncio.timeout(call.timeout):
            response = await pool.send(request)
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


def transient(reply: Reply) -> bool:
    """Whether a call that was answered so is worth another try."""
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
