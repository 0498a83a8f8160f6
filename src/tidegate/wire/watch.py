"""Watches an answer pass: has content begun, did an error come, what usage and ending were reported.

Never changes or holds a byte that passes. Called by the drivers with each chunk of a 200 answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from tidegate.wire import chat_answers, messages_answers, responses_answers
from tidegate.wire.answers import is_json, looks_like_sse
from tidegate.wire.conversation import Answer, DialectName, FinishReason, JsonObject, Usage
from tidegate.wire.signals import Signal, SignalKind
from tidegate.wire.sse import Event, Reader

__all__ = ["Signal", "SignalKind", "Watch"]

MOST_BYTES: Final = 16 << 20
"""A JSON body or one event of more bytes than this is not looked into."""
MOST_ERROR_BYTES: Final = 64 << 10
"""A JSON body of more bytes than this is an answer and no error, as far as holding it back goes."""


class _Dialect(Protocol):
    @property
    def HOT(self) -> tuple[bytes, ...]: ...
    @property
    def HOT_UNLESS_NULL(self) -> tuple[bytes, ...]: ...
    @property
    def OPENING(self) -> bytes: ...
    def signal(self, event: Event) -> Signal: ...
    def usage_of(self, counts: JsonObject) -> Usage | None: ...
    def read_answer(self, body: bytes) -> Answer: ...
    def read_end(self, body: bytes) -> Answer: ...


_DIALECTS: Final[Mapping[DialectName, _Dialect]] = {
    "chat": chat_answers,
    "responses": responses_answers,
    "messages": messages_answers,
}


_ERROR: Final = b"error"


class _Marks:
    """A dialect's marks, so that few searches tell that a chunk has none: those that speak of errors share a word."""

    __slots__ = ("marks", "nullable", "of_errors", "of_errors_nullable", "opening")

    def __init__(self, dialect: _Dialect) -> None:
        self.opening = dialect.OPENING
        self.marks = [mark for mark in dialect.HOT if mark.find(_ERROR) < 0]
        self.of_errors = [mark for mark in dialect.HOT if mark.find(_ERROR) >= 0]
        self.nullable = [key for key in dialect.HOT_UNLESS_NULL if key.find(_ERROR) < 0]
        self.of_errors_nullable = [key for key in dialect.HOT_UNLESS_NULL if key.find(_ERROR) >= 0]

    def open(self, data: bytes) -> bool:
        """Whether an event is content and nothing else, as most streams begin: told without reading it. A string in it
        can't hold the opening, whose quotes would be escaped there."""
        opening = self.opening
        at = data.find(opening) if opening else -1
        if at < 0:
            return False
        at += len(opening)
        return data[at : at + 1] not in (b'"', b"") and not self.stand_in(data)

    def stand_in(self, data: bytes) -> bool:
        """Whether one of them does. `find`, not `in`: CPython's `in` raises and drops an error each time, in front of a
        search that takes a tenth of that (measured)."""
        for mark in self.marks:
            if data.find(mark) >= 0:
                return True
        for key in self.nullable:
            if _says_more_than_null(data, key):
                return True
        if data.find(_ERROR) < 0:
            return False
        for key in self.of_errors_nullable:
            if _says_more_than_null(data, key):
                return True
        return any(data.find(mark) >= 0 for mark in self.of_errors)


def _says_more_than_null(data: bytes, key: bytes) -> bool:
    at = data.find(key)
    while at >= 0:
        at += len(key)
        if data[at : at + 5] != b":null" and data[at : at + 6] != b": null":
            return True
        at = data.find(key, at)
    return False


_MARKS: Final[dict[DialectName, _Marks]] = {name: _Marks(dialect) for name, dialect in _DIALECTS.items()}


class Watch:
    """Watches one answer, streamed or not. No bytes make it raise.

    Until content has begun every event is read; then only those whose bytes hold one of the dialect's marks,
    and a chunk of whole events without a mark costs a few searches. Answers must not be compressed.
    """

    __slots__ = (
        "_body", "_calls", "_counts", "_dialect", "_is_json", "_marks", "_reader", "_says_sse", "_whole",
        "begun", "compacts", "ended", "error", "error_before_content", "finish",
    )  # fmt: skip

    def __init__(self, dialect: DialectName, content_type: str) -> None:
        """`content_type` is the answer's header; the first bytes overrule it where it is wrong."""
        self._dialect = _DIALECTS[dialect]
        self._marks = _MARKS[dialect]
        self._says_sse = "event-stream" in content_type.lower()
        self._reader: Reader | None = None
        self._body: bytearray | None = bytearray()
        self._is_json: bool | None = None
        self._whole: Usage | None = None
        self._counts: JsonObject = {}
        self._calls = False
        self.compacts = False
        """It holds a compaction item of the Responses API."""
        self.begun = False
        """Something was shown to the client. A JSON body begins at its close, unless it is an error, or when
        it is too big to be one."""
        self.error = b""
        """Raw JSON of the first error event, or of a JSON body that is an error; empty where none came."""
        self.error_before_content = False
        self.finish: FinishReason | None = None
        """How the answer ended, as far as it said so."""
        self.ended = False
        """The terminal event came (`[DONE]`, `message_stop`, `response.completed`, …); or, at the close, the
        answer had said how it ended, since many servers leave `[DONE]` out."""

    @property
    def usage(self) -> Usage | None:
        """Tokens of this answer as reported so far, None where the report is absent or zero."""
        return self._whole or self._dialect.usage_of(self._counts)

    def feed(self, chunk: bytes) -> None:
        """Look at the next bytes of the answer."""
        if self._reader is not None:
            self._feed_events(self._reader, chunk)
        elif self._body is not None:
            self._body += chunk
            self._look_at_body(self._body, chunk)

    def close(self) -> None:
        """The answer is over, whole or cut."""
        if self._reader is not None:
            for event in self._reader.close():
                self._take(event)
        elif self._body:
            self._read_body(bytes(self._body))
        self.ended = self.ended or self.finish is not None
        self._reader = self._body = None

    def _look_at_body(self, body: bytearray, chunk: bytes) -> None:
        """Decide what the answer is at its first byte that isn't space; where it is JSON, wait for all of
        it."""
        if self._is_json is None:
            self._is_json = is_json(chunk)
        if self._is_json is False:
            if not self._says_sse and not looks_like_sse(chunk):
                self._give_up()
                return
            self._body, self._reader = None, Reader()
            self._feed_events(self._reader, bytes(body))
        elif len(body) > MOST_BYTES:
            self._give_up()
        elif len(body) > MOST_ERROR_BYTES:
            self.begun = True

    def _give_up(self) -> None:
        self._reader = self._body = None
        self.begun = True

    def _feed_events(self, reader: Reader, chunk: bytes) -> None:
        if self.begun and not self._marks.stand_in(chunk) and reader.skip(chunk):
            return
        for event in reader.feed(chunk):
            self._take(event)
        if reader.pending > MOST_BYTES:
            self._give_up()

    def _take(self, event: Event) -> None:
        if self.ended or (self.begun and event.name != "error" and not self._marks.stand_in(event.data)):
            return
        if not self.begun and event.name != "error" and not event.comment and self._marks.open(event.data):
            self.begun = True
            return
        seen = self._dialect.signal(event)
        if seen.counts:
            self._counts |= {key: value for key, value in seen.counts.items() if value}
        self._calls = self._calls or seen.calls
        self.compacts = self.compacts or seen.compacts
        if seen.finish is not None:
            self.finish = "tool_call" if self._calls and seen.finish == "stop" else seen.finish
        if seen.kind == "error":
            self._fail(seen.error)
        elif seen.kind == "content":
            self.begun = True
        self.ended = seen.kind == "end" or (seen.kind == "error" and seen.finish == "error")

    def _fail(self, error: bytes) -> None:
        self.finish = self.finish or "error"
        if not self.error:
            self.error = error
            self.error_before_content = not self.begun

    def _read_body(self, body: bytes) -> None:
        read = self._dialect.read_end if self._is_json else self._dialect.read_answer
        answer = read(body)
        self._whole = answer.usage
        self.finish = answer.finish
        self.compacts = answer.compacts
        if answer.error:
            self._fail(answer.error)
        else:
            self.begun = True
