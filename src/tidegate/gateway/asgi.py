"""The client's side of an exchange over ASGI: heartbeats, the answer's bytes, errors that come too late for a status.

Knows ASGI's send and the dialects' heartbeats and error events; decides nothing. Driven by `tidegate.drive.aio`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tidegate.drive.answer import HeldAnswer
from tidegate.engine.effects import Head, Outcome, UpstreamError
from tidegate.gateway.messages import outcome_headers, refusal_text, returned
from tidegate.wire import ANSWERS
from tidegate.wire.conversation import DialectName

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]


class CutShort(Exception):
    """The upstream's stream broke after it had begun: the client's connection must end without a proper end."""


@dataclass(slots=True)
class AsgiClient:
    """One waiting client."""

    send: Send
    dialect: DialectName
    request_id: str
    streams: bool
    """The client asked for a stream."""
    request_headers: Sequence[tuple[bytes, bytes]] = field(repr=False)
    begun: bool = False
    ended: bool = False
    outcome: Outcome = field(default_factory=Outcome)
    status: int = 0

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
                    (b"x-tidegate-request-id", self.request_id.encode()),
                ],
            )
        await self._piece(ANSWERS[self.dialect].heartbeat(self.request_headers))

    async def deliver(self, answer: HeldAnswer, head: Head, outcome: Outcome) -> bool:
        """Relays an answer to its end. Raises `CutShort` where it was cut, so that the client sees the cut too."""
        self.outcome = outcome
        if self.begun and head.refusal is not None and not head.in_stream:
            text, code = refusal_text(head.refusal)
            await self._piece(ANSWERS[self.dialect].error_event(text, status=head.status, code=code or None))
            await self.end()
            return True
        if not self.begun:
            await self._begin(
                head.status, [*returned(answer.incoming.headers), *outcome_headers(self.request_id, outcome)]
            )
        try:
            async for piece in answer.pieces():
                await self._piece(piece)
        except UpstreamError as error:
            raise CutShort(str(error)) from error
        await self.end()
        return True

    async def fail(self, status: int, text: str, code: str | None = None) -> None:
        """An error of the gateway's own, in the dialect's shape, or inside the stream where it has begun."""
        answers = ANSWERS[self.dialect]
        if self.begun:
            await self._piece(answers.error_event(text, status=status, code=code))
            await self.end()
            return
        await self.answer(status, answers.error_body(status, text, code=code, request_id=self.request_id))

    async def answer(self, status: int, body: bytes) -> None:
        """A whole answer of the gateway's own."""
        await self._begin(
            status,
            [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                *outcome_headers(self.request_id, self.outcome),
            ],
        )
        await self.send({"type": "http.response.body", "body": body})
        self.ended = True

    async def end(self) -> None:
        """Ends the answer properly."""
        if not self.ended:
            self.ended = True
            await self.send({"type": "http.response.body", "body": b""})

    async def _begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.begun, self.status = True, status
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def _piece(self, piece: bytes) -> None:
        await self.send({"type": "http.response.body", "body": piece, "more_body": True})
