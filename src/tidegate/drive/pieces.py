"""The body of an answer, for a client that is driven on asyncio.

Knows an answer (`drive.answer`), not whom it is for. Called by the gateway.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from tidegate.drive.answer import HeldAnswer


async def pieces(answer: HeldAnswer) -> AsyncIterator[bytes]:
    """The whole body, held pieces first. Raises `UpstreamError` where it is cut."""
    answer.opened = True
    for piece in answer.held:
        yield piece
    answer.held = []
    if answer.broken is not None:
        raise answer.broken
    while not answer.at_end:
        piece = await answer.read()
        if piece:
            yield piece
            answer.show(piece)
        else:
            answer.at_end = True
