"""Server-sent events, read and written incrementally (HTML living standard, section 9.2).

Knows lines, fields and event ends; not what the events mean. Called by `watch` and the answer readers.
"""

from __future__ import annotations

import re
from typing import Final

from tidegate.wire.signals import Event

__all__ = ["Event", "Reader", "comment", "write"]

_BOM: Final = b"\xef\xbb\xbf"

# The end of a line, then an empty line. The look-ahead keeps one CRLF from counting as two ends.
_EVENT_END: Final = re.compile(rb"(?:\n|\r\n|\r(?!\n))(?:\r\n?|\n)")
_LINE_END: Final = re.compile(rb"\r\n|\r|\n")
_LONGEST_END: Final = 4
"""Bytes of CR LF CR LF, the longest event end."""


class Reader:
    """Finds events in bytes as they pass. It only looks, and no bytes make it raise.

    Takes any chunking, and time linear in what it is fed. `id` and `retry` are ignored; an event without a
    data line is dropped, as the standard says, except one that holds only comments.
    """

    __slots__ = ("_after_cr", "_crs", "_first", "_pending", "_scanned")

    def __init__(self) -> None:
        """At the beginning of a stream."""
        self._pending = bytearray()
        self._scanned = 0
        self._crs = False
        self._after_cr = False
        self._first = True

    @property
    def pending(self) -> int:
        """Bytes of the event that is not complete yet."""
        return len(self._pending)

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` completes."""
        if not chunk:
            return []
        if self._after_cr:
            self._after_cr = False
            if chunk[0] == 0x0A:  # second half of the CRLF whose CR already ended an event
                chunk = chunk[1:]
        self._crs = self._crs or chunk.find(b"\r") >= 0
        events: list[Event] = []
        if not self._crs and not self._pending and chunk[-2:] == b"\n\n" and chunk[-3:-2] != b"\n":
            for block in chunk[:-2].split(b"\n\n"):
                self._take(block, events)
            return events
        self._pending += chunk
        begin = 0
        for start, end in self._ends():
            self._take(bytes(self._pending[begin:start]), events)
            begin = end
        if begin:
            self._after_cr = self._pending[begin - 1] == 0x0D and begin == len(self._pending)
            del self._pending[:begin]
        self._scanned = max(0, len(self._pending) - _LONGEST_END + 1)
        return events

    def skip(self, chunk: bytes) -> bool:
        """Pass over whole events unread; false, with nothing done, where `chunk` isn't whole events."""
        if self._pending or not chunk.endswith((b"\n\n", b"\r\n\r\n")):
            return False
        self._after_cr = self._first = False
        return True

    def close(self) -> list[Event]:
        """The last event, if the stream ended without its blank line and it has data."""
        events: list[Event] = []
        if self._pending:
            self._take(bytes(self._pending), events)
            self._pending.clear()
            self._scanned = 0
        return [Event(e.name, e.data, unterminated=True) for e in events if not e.comment]

    def _ends(self) -> list[tuple[int, int]]:
        """Spans of the event ends in what is pending."""
        if self._crs:
            return [match.span() for match in _EVENT_END.finditer(self._pending, self._scanned)]
        spans = []
        at = self._pending.find(b"\n\n", self._scanned)
        while at >= 0:
            spans.append((at, at + 2))
            at = self._pending.find(b"\n\n", at + 2)
        return spans

    def _take(self, block: bytes, events: list[Event]) -> None:
        if self._first:
            self._first = False
            block = block.removeprefix(_BOM)
        if event := _read_block(block):
            events.append(event)


def _read_block(block: bytes) -> Event | None:
    """The event that these lines are, None where they are none."""
    if block[:6] == b"data: " and block.find(b"\n") < 0 and block.find(b"\r") < 0:
        return Event("", block[6:])  # what nearly all are
    name = ""
    data: list[bytes] = []
    comment = False
    for line in _LINE_END.split(block) if block.find(b"\r") >= 0 else block.split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ").decode("utf-8", "replace")
        elif not field and line:
            comment = True
    if data:
        return Event(name, b"\n".join(data))
    return Event(name, b"", comment=True) if comment else None


def write(data: bytes, name: str = "") -> bytes:
    """One event as bytes. A line end inside `data` makes another data line; a reader gets a newline.

    Raises ValueError for a name of more than one line.
    """
    if "\n" in name or "\r" in name:
        raise ValueError("an event's name is one line")
    lines = b"".join(b"data: " + line + b"\n" for line in _LINE_END.split(data))
    return (b"event: " + name.encode() + b"\n" if name else b"") + lines + b"\n"


def comment(text: str) -> bytes:
    """A comment as bytes, whole: clients read past it, but it keeps a connection and its timers awake."""
    lines = _LINE_END.split(text.encode())
    return b"".join(b": " + line + b"\n" if line else b":\n" for line in lines) + b"\n"
