"""Server-sent events as providers write them: frames, line ends, heartbeats, pieces broken anywhere.

Knows bytes only, not what events mean. Called by the dialect modules (frames) and the app (bytes).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from tidegate.simulator import eventstream
from tidegate.simulator.jsontext import JsonValue, encode


@dataclass(frozen=True, slots=True)
class Frame:
    """One event. `opening` frames show the client nothing of the answer yet."""

    data: JsonValue = field(repr=False)
    """A JSON value, or a string that is sent as it is."""
    event: str = ""
    opening: bool = False
    comment: bool = False


HEARTBEATS = {
    "chat": Frame("heartbeat", comment=True),
    "responses": Frame("heartbeat", comment=True),
    "messages": Frame({"type": "ping"}, "ping"),
}


def write(frame: Frame, *, crlf: bool = False, framing: str = "sse") -> bytes:
    """The frame's bytes: lines with a closing blank one, or Amazon's binary frame (`eventstream`)."""
    if framing == "eventstream":
        return eventstream.frame(frame.data)
    data = frame.data.encode() if isinstance(frame.data, str) else encode(frame.data)
    end = b"\r\n" if crlf else b"\n"
    if frame.comment:
        return b": " + data + end + end
    name = b"event: " + frame.event.encode() + end if frame.event else b""
    return name + b"data: " + data + end + end


def pieces(data: bytes, most: int, random: Random) -> Iterator[bytes]:
    """The bytes in pieces of 1 to `most`, cut wherever that falls; whole where `most` is 0."""
    if most <= 0:
        yield data
        return
    at = 0
    while at < len(data):
        size = random.randint(1, most)
        yield data[at : at + size]
        at += size


def deltas(text: str, size: int) -> Iterator[str]:
    """A text in runs of `size` characters."""
    for at in range(0, len(text), size):
        yield text[at : at + size]
