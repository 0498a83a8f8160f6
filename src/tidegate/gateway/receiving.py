"""What ASGI brings after a request's head: the body, at once or as it comes, and the news that the client has left.

Knows ASGI's receive; nothing of what the request asks for. Called by what answers requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from tidegate.gateway.arrival import Arrival, ClientGone, Receive
from tidegate.upstream.decode import BodyTooLarge


async def whole_body(arrival: Arrival, receive: Receive, limit: int) -> bytes:
    """The body. Raises `BodyTooLarge` over `limit` bytes, before any is read where its length is announced, and
    `ClientGone`."""
    if (arrival.length or 0) > limit:
        raise too_large(limit)
    pieces: list[bytes] = []
    size = 0
    async for piece in body_pieces(receive):
        size += len(piece)
        if size > limit:
            raise too_large(limit)
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def too_large(limit: int) -> BodyTooLarge:
    """The error of a body over the limit."""
    return BodyTooLarge(
        f"The request body is larger than {limit} bytes, this gateway's limit. "
        "Raise server.body_limit_bytes to allow it."
    )


async def body_pieces(receive: Receive) -> AsyncIterator[bytes]:
    """The body as it comes. Raises `ClientGone` where it stops."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        if piece := message.get("body", b""):
            yield piece
        if not message.get("more_body", False):
            return


async def while_connected(
    work: Awaitable[None], receive: Receive, answered: Callable[[], bool], read: asyncio.Event | None = None
) -> None:
    """Awaits the work, which a client that leaves before it is `answered` cancels. Raises `ClientGone` then.

    What is left to do after the answer is done in peace: a client may well close the moment it has all. `read` is set
    once the work has done with the body; until then the work itself sees a client leave.
    """
    task = asyncio.current_task()
    assert task is not None
    gone = False

    async def watch() -> None:
        nonlocal gone
        if read is not None:
            await read.wait()
        while (await receive())["type"] != "http.disconnect":
            pass  # the rest of a body that the upstream did not want
        if not answered():
            gone = True
            task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        await work
    except asyncio.CancelledError:
        if gone and task.uncancel() == 0:
            raise ClientGone from None
        raise
    finally:
        watcher.cancel()
