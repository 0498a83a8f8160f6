"""What a client gets where a heartbeat has begun its stream before the upstream's answer came."""

from __future__ import annotations

import gzip

import pytest

from tidegate.drive.answer import HeldAnswer
from tidegate.engine.effects import Outcome
from tidegate.gateway.asgi import AsgiClient, CutShort

STREAM = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\ndata: [DONE]\n\n'


class Incoming:
    def __init__(self, *pieces: bytes) -> None:
        self.status = 200
        self.headers = [(b"content-type", b"text/event-stream"), (b"content-encoding", b"gzip")]
        self.pieces = list(pieces)

    async def read(self) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""

    async def close(self) -> None:
        pass


async def delivered(*pieces: bytes, late: bool) -> tuple[bytes, list[bytes]]:
    """(body, names of the headers) that the client got."""
    told: list[dict] = []

    async def send(message):
        told.append(message)

    client = AsgiClient(send, "chat", "r1", [], streams=True)
    if late:
        await client.heartbeat()
    answer = HeldAnswer(0, Incoming(*pieces), "chat", hold_seconds=1, hold_bytes=1000)
    await client.deliver(answer, await answer.head(), Outcome())
    return b"".join(message.get("body", b"") for message in told), [name for name, _ in told[0]["headers"]]


async def test_a_stream_compressed_unasked_is_plain_where_a_plain_one_was_begun():
    raw = gzip.compress(STREAM)
    body, headers = await delivered(raw[:20], raw[20:], late=True)
    assert body == b": keep-alive\n\n" + STREAM
    assert b"content-encoding" not in headers


async def test_it_passes_as_it_came_where_nothing_was_begun():
    raw = gzip.compress(STREAM)
    body, headers = await delivered(raw, late=False)
    assert body == raw
    assert b"content-encoding" in headers


async def test_what_can_not_be_read_is_cut():
    with pytest.raises(CutShort):
        await delivered(b"no gzip at all", late=True)
