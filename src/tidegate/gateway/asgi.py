"""The client's side of an exchange over ASGI: heartbeats, the answer's bytes, errors that come too late for a status.

Knows ASGI's send and the dialects' heartbeats and error events; decides nothing. Driven by `tidegate.drive.aio`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tidegate.drive.answer import HeldAnswer
from tidegate.drive.pieces import pieces
from tidegate.engine.effects import Head, Outcome, UpstreamError
from tidegate.gateway.arrival import Send
from tidegate.gateway.messages import answer_headers, own_headers, refusal_text
from tidegate.upstream.decode import BodyTooLarge, BodyUnreadable, decode_body
from tidegate.upstream.http import Headers
from tidegate.wire import ANSWERS
from tidegate.wire.conversation import DialectName

NO_STREAM = "The provider did not answer with a stream, though one was asked for and has begun."

DECODED_LIMIT = 64 << 20
"""Bytes of an answer that an upstream compressed although it was asked not to."""


class CutShort(Exception):
    """The upstream's answer broke after it had begun: the client's connection must end without a proper end."""


class Seen(Protocol):
    """What the log says of a request that is over."""

    @property
    def outcome(self) -> Outcome:
        """What happened to it."""
        ...

    @property
    def status(self) -> int:
        """Of the answer; 0 where there was none."""
        ...

    @property
    def own(self) -> str:
        """Why the answer was the gateway's own; empty where it was an upstream's."""
        ...

    @property
    def provider(self) -> str:
        """Whose answer it was."""
        ...

    @property
    def model(self) -> str:
        """And of which model."""
        ...


@dataclass(slots=True)
class AsgiClient:
    """One waiting client."""

    send: Send
    dialect: DialectName
    request_id: str
    request_headers: Sequence[tuple[bytes, bytes]] = field(repr=False)
    streams: bool = False
    """The client asked for a stream."""
    begun: bool = False
    """A status has been sent: a heartbeat's, or the answer's."""
    answering: bool = False
    """The status was the answer's own."""
    ended: bool = False
    outcome: Outcome = field(default_factory=Outcome)
    status: int = 0
    own: str = ""
    """Why the answer is the gateway's own; empty where it is an upstream's."""
    provider: str = ""
    model: str = ""
    """Whose answer it is, and of which model; for the log."""
    bridge: str = ""
    """What became of a chat conversation that another API might have served; for the client."""

    def can_wait_awake(self) -> bool:
        """Whether heartbeats can be sent."""
        return self.streams

    async def heartbeat(self) -> None:
        """Keeps the client awake; begins a stream of events with the first."""
        if not self.begun:
            await self._begin(
                200,
                [
                    (b"content-type", b"text/event-stream; charset=utf-8"),
                    (b"cache-control", b"no-cache"),
                    *own_headers(self.request_id),
                ],
            )
        await self.piece(ANSWERS[self.dialect].heartbeat(self.request_headers))

    async def deliver(self, answer: HeldAnswer, head: Head, outcome: Outcome) -> bool:
        """Relays an answer to its end. Raises `CutShort` where it was cut, so that the client sees the cut too."""
        self.outcome = outcome
        body = pieces(answer)
        if not self.begun:
            await self.answer_head(head.status, answer.incoming.headers)
        elif head.refusal is not None and not head.in_stream:
            text, code = refusal_text(head.refusal)
            await self._tell_late(head.status if head.status >= 400 else 502, text, code or None)
            return True
        elif not answer.streamed:
            await self.fail(502, NO_STREAM, "no_stream")
            return True
        elif answer.encoding not in ("", "identity"):
            body = _decoded(body, answer.encoding)
        try:
            async for piece in body:
                await self.piece(piece)
        except UpstreamError as error:
            raise CutShort(str(error)) from error
        await self.end()
        return True

    async def answer_head(self, status: int, headers: Headers) -> None:
        """Begins with the head of an upstream's answer. Raises `UpstreamError` for a status that HTTP does not have."""
        given = answer_headers(status, headers, self.request_id, self.outcome)
        if self.bridge:
            given = [*given, (b"x-tidegate-bridge", self.bridge.encode())]
        self.answering = True
        await self._begin(status, given)

    async def piece(self, piece: bytes) -> None:
        """The next piece of the answer's body."""
        await self.send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self) -> None:
        """Ends the answer properly."""
        if not self.ended:
            self.ended = True
            await self.send({"type": "http.response.body", "body": b""})

    async def fail(self, status: int, text: str, code: str) -> None:
        """An error of the gateway's own, in the dialect's shape, or inside the stream where a heartbeat has begun it.

        Nothing can be said inside an upstream's answer: it is left without an end.
        """
        if not self.begun:
            body = ANSWERS[self.dialect].error_body(status, text, code=code, request_id=self.request_id)
            await self.answer(status, body, code)
        elif not self.answering:
            self.own = code
            await self._tell_late(status, text, code)

    async def answer(self, status: int, body: bytes, reason: str) -> None:
        """A whole answer of the gateway's own, and why it gives one: a short name."""
        self.own = reason
        await self._begin(
            status,
            [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                *own_headers(self.request_id, reason),
            ],
        )
        self.ended = True
        await self.send({"type": "http.response.body", "body": body})

    async def _tell_late(self, status: int, text: str, code: str | None) -> None:
        """Ends a stream that a heartbeat has begun with an error."""
        await self.piece(ANSWERS[self.dialect].error_event(text, status=status, code=code))
        await self.end()

    async def _begin(self, status: int, headers: Headers) -> None:
        self.begun, self.status = True, status
        await self.send({"type": "http.response.start", "status": status, "headers": headers})


async def _decoded(compressed: AsyncIterator[bytes], encoding: str) -> AsyncIterator[bytes]:
    """A compressed stream in plain, all at once, since a heartbeat has begun a plain one. Raises `UpstreamError`
    where it can't be read."""
    body = b"".join([piece async for piece in compressed])
    try:
        yield decode_body(body, encoding, DECODED_LIMIT)
    except (BodyTooLarge, BodyUnreadable) as error:
        raise UpstreamError("The upstream's answer is compressed in a way that can't be read.") from error
