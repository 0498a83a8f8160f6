"""The client's side of a chat conversation that is answered by the Responses API: every answer as chat completions.

Knows both sides' answers as bytes; the writing is the wire's (`wire.bridge_answers`). Driven by `tidegate.drive.aio`.
"""

from __future__ import annotations

from tidegate.drive.answer import HeldAnswer
from tidegate.drive.pieces import pieces
from tidegate.engine.bridge import Unbridged
from tidegate.engine.effects import Head, Outcome, UpstreamError
from tidegate.gateway.asgi import DECODED_LIMIT, AsgiClient, CutShort
from tidegate.upstream.decode import BodyTooLarge, BodyUnreadable, decode_body
from tidegate.upstream.http import Headers, lower
from tidegate.wire.bridge_answers import NoAnswer, Stream, completion
from tidegate.wire.conversation import Conversation
from tidegate.wire.jsontext import loads

_OF_THE_BODY = frozenset({b"content-length", b"content-encoding"})


class BridgedClient:
    """One waiting client, of a chat completion. Raises `Unbridged` for an answer that is none, while nothing of it has
    been shown."""

    def __init__(self, inner: AsgiClient, conversation: Conversation) -> None:
        """`conversation` is the client's own."""
        self._inner = inner
        self._streams, self._with_usage = conversation.stream, _asks_for_usage(conversation)

    @property
    def begun(self) -> bool:
        """A status has been sent."""
        return self._inner.begun

    @begun.setter
    def begun(self, begun: bool) -> None:
        self._inner.begun = begun

    def can_wait_awake(self) -> bool:
        """Whether heartbeats can be sent."""
        return self._streams

    async def heartbeat(self) -> None:
        """Keeps the client awake."""
        await self._inner.heartbeat()

    async def deliver(self, answer: HeldAnswer, head: Head, outcome: Outcome) -> bool:
        """Relays an answer to its end. Raises `CutShort` where it was cut."""
        if head.refusal is not None:
            return await self._inner.deliver(answer, head, outcome)  # both APIs have one shape of errors
        self._inner.outcome = outcome
        if self._streams:
            await self._stream(answer)
        else:
            await self._whole(answer)
        return True

    async def _whole(self, answer: HeldAnswer) -> None:
        body = b"".join([piece async for piece in pieces(answer)])
        try:
            if answer.encoding not in ("", "identity"):
                body = decode_body(body, answer.encoding, DECODED_LIMIT)
            made = completion(body)
        except (NoAnswer, BodyTooLarge, BodyUnreadable):
            made = b""
        if not made:
            raise Unbridged("The answer is none of the Responses API.")
        length = (b"content-length", b"%d" % len(made))
        await self._inner.answer_head(200, [*_without_its_body(answer.incoming.headers), length])
        await self._inner.piece(made)
        await self._inner.end()

    async def _stream(self, answer: HeldAnswer) -> None:
        if not answer.streamed or answer.encoding not in ("", "identity"):
            raise Unbridged("The answer is no stream of events.")
        written = Stream(with_usage=self._with_usage)
        if not self._inner.begun:
            await self._inner.answer_head(200, _without_its_body(answer.incoming.headers))
        try:
            async for piece in pieces(answer):
                if made := written.feed(piece):
                    await self._inner.piece(made)
        except UpstreamError as error:
            raise CutShort(str(error)) from error
        if made := written.close():
            await self._inner.piece(made)
        if not written.ended:
            raise CutShort("The upstream's answer ended before it was whole.")
        await self._inner.end()


def _without_its_body(headers: Headers) -> Headers:
    return [(name, value) for name, value in headers if lower(name) not in _OF_THE_BODY]


def _asks_for_usage(conversation: Conversation) -> bool:
    raw = conversation.field("stream_options")
    options = loads(raw) if raw else None
    return isinstance(options, dict) and options.get("include_usage") is True
