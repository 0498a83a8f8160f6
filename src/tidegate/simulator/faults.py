"""Scripted faults: errors, pages, garbage, broken and silent connections.

Knows how a fault looks on the wire; which request it hits is the script's. Called by the app.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tidegate.simulator.jsontext import JsonObject, encode
from tidegate.simulator.profiles import Profile, error_body, error_type
from tidegate.simulator.refusals import Refusal
from tidegate.simulator.script import Step
from tidegate.simulator.stream import Frame, write
from tidegate.simulator.transport import Exchange
from tidegate.simulator.turn import Turn
from tidegate.simulator.world import Desk

BREAKING = frozenset({"error", "html", "garbage", "cut", "drop", "hang"})
"""Steps that end in something other than an ordinary answer."""

_PAGE = b"<html><head><title>%d</title></head><body><center><h1>%d</h1></center><hr>gateway</body></html>\n"
_EVENT_STREAM = [("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-cache")]

ErrorFrames = Callable[[JsonObject, str, int], Iterator[Frame]]


async def early_fault(exchange: Exchange, turn: Turn, step: Step, profile: Profile) -> bool:
    """Plays a fault that needs no answer to break. False for those that do: `cut`, and errors inside a stream."""
    headers = list(step.headers.items())
    match step.do:
        case "error" if not (turn.stream and step.in_stream):
            status = step.status or 500
            if isinstance(step.body, str):
                kind = (
                    []
                    if "content-type" in {name.lower() for name in step.headers}
                    else [("content-type", "text/plain")]
                )
                await exchange.whole(status, step.body.encode(), [*kind, *headers])
            else:
                await exchange.json(status, _error(turn, step, profile), headers)
        case "html":
            status = step.status or 502
            await exchange.whole(status, _PAGE % (status, status), [("content-type", "text/html"), *headers])
        case "garbage":
            if turn.stream:
                await exchange.whole(200, b"\xff\x00 not an event\n\ndata: {broken\n\n", [*_EVENT_STREAM, *headers])
            else:
                await exchange.whole(200, b'{"id": "x", "cho\xff', [("content-type", "application/json"), *headers])
        case "drop":
            await exchange.abort()
        case "hang":
            await exchange.wait(step.seconds)
            await exchange.abort()
        case _:
            return False
    return True


async def break_off(
    exchange: Exchange,
    turn: Turn,
    step: Step,
    desk: Desk,
    whole: JsonObject,
    frames: list[bytes],
    error_frames: ErrorFrames,
) -> None:
    """Begins the ordinary answer and breaks it: the connection goes (`cut`), or an error comes in the stream."""
    if not frames:
        body = encode(whole)
        length = str(len(body))
        await exchange.start(200, [("content-type", "application/json"), ("content-length", length)])
        await exchange.part(body[: len(body) // 2])
        await exchange.abort()
        return
    await exchange.start(200, _EVENT_STREAM)
    if step.do == "cut":
        count = len(frames) // 2 if step.after is None else step.after
        for data in frames[:count]:
            await exchange.part(data)
        await exchange.abort()
        return
    count = (2 if turn.dialect == "responses" else 1) if step.after is None else step.after
    for data in frames[:count]:
        await exchange.part(data)
    error = _error(turn, step, desk.profile)
    for frame in error_frames(error, step.event, count):
        await exchange.part(write(frame, crlf=desk.world.settings.crlf, framing=turn.framing))
    await exchange.end()


def failing(frames: Iterator[Frame], opening: int, error: Callable[[int], Iterator[Frame]]) -> Iterator[Frame]:
    """The first `opening` events of a stream, then an error."""
    count = 0
    for frame in frames:
        if count >= opening:
            break
        yield frame
        count += 1
    yield from error(count)


def _error(turn: Turn, step: Step, profile: Profile) -> JsonObject:
    if isinstance(step.body, dict):
        return step.body
    status = step.status or 500
    text = step.text or f"Simulated error {status}."
    refusal = Refusal(text, rule="script", status=status, type=error_type(turn.dialect, status))
    return error_body(profile, turn.dialect, refusal, "req_scripted")
