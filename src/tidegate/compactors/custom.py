"""A compactor of the user's own: what it is shown, what it may answer, in the calls by which it is asked.

Knows the published schema (docs/custom-compactors.md); not whether a process or an object answers. Called by the
engine.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Final

from tidegate.compactors.strategy import Call, CompactionFailed, Reply, Summary
from tidegate.wire import ANSWERS, REQUESTS
from tidegate.wire.conversation import Answer, DialectName, JsonObject, JsonValue, Usage
from tidegate.wire.jsontext import dumps, loads

WANTS_SECONDS: Final = 2.0
"""Seconds that a compactor may take to say whether it wants to: it is asked while a request waits."""

TOO_LONG: Final = 2
"""Times its room that a text may take."""

DROPPED: Final = frozenset({"idempotency-key", "x-idempotency-key", "content-encoding"})
"""Headers of the client's that are not for a call of another's making."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a compactor is shown. Sizes in tokens, as estimated."""

    dialect: DialectName
    model: str
    window: int | None
    trigger: str
    """`threshold`, `overflow` or `requested`."""
    tokens: int
    """Of the request as it would be sent."""
    room: int
    """That its text may take."""
    items: tuple[JsonObject, ...] = field(repr=False)
    """All items of the conversation, as the client sent them."""
    since: int
    """How many of them an earlier compaction stands for."""
    until: int
    """How many of them the text is to stand for: those before it, but for the earlier ones, are new to it."""
    previous: str = field(repr=False)
    """What stands for the first `since` items, empty for nothing."""
    system: JsonValue = field(repr=False)
    tools: JsonValue = field(repr=False)
    retained: tuple[int, ...] = ()
    """Items before `until` that are sent again whatever it says."""
    item_tokens: tuple[int, ...] = ()
    """Of each item."""
    threshold: int | None = None
    """Tokens from which a compaction is due; None where the window is needed for that and unknown."""
    target: int | None = None
    """Tokens that a compaction aims for, None likewise."""

    def view(self) -> JsonObject:
        """As JSON."""
        return {
            "dialect": self.dialect,
            "model": self.model,
            "window": self.window,
            "trigger": self.trigger,
            "tokens": self.tokens,
            "threshold": self.threshold,
            "target": self.target,
            "room": self.room,
            "system": self.system,
            "tools": self.tools,
            "items": [*self.items],
            "item_tokens": [*self.item_tokens],
            "since": self.since,
            "until": self.until,
            "previous": self.previous,
        }


def work(name: str, asked: Asked, timeout: float) -> Generator[Call, Reply, Summary]:
    """Asks the compactor of that name whether it wants to, and for its text; or, where it says that it plans, for the
    one call to the model in use that it wants to have made, and then for what it reads in the answer.

    Raises `CompactionFailed`: `custom_unwanted`, `custom_failed` (no answer, or an error), `custom_too_slow`,
    `custom_invalid` (not what the schema says, or nothing of use), `custom_call_failed` (the model gave no answer to
    the call that was planned).
    """
    body = dumps(asked.view())
    wants = _told((yield Call("/wants", body, timeout=min(timeout, WANTS_SECONDS), via=name)))
    if wants.get("wants") is not True:
        raise CompactionFailed("custom_unwanted")
    usage = Usage(0)
    if wants.get("plans") is True:
        told, usage = yield from _planned(name, asked, body, timeout)
    else:
        told = _told((yield Call("/compact", body, timeout=timeout, via=name)))
    text = told.get("summary")
    if text is None and "summary" in told:
        raise CompactionFailed("custom_unwanted")
    if not isinstance(text, str) or not text.strip() or len(text) > TOO_LONG * 4 * max(asked.room, 1):
        raise CompactionFailed("custom_invalid")
    if not _is_text(text):
        raise CompactionFailed("custom_invalid")
    read, written = _count(told, "input_tokens"), _count(told, "output_tokens")
    return Summary(text.strip(), 1, asked.retained, usage.input_tokens + read, usage.output_tokens + written)


def _planned(name: str, asked: Asked, view: bytes, timeout: float) -> Generator[Call, Reply, tuple[JsonObject, Usage]]:
    """(what the compactor makes of the answer to its call, what that was billed for). The call goes where the client's
    own requests go, with the client's credential: the compactor gives a body and sees neither."""
    told = _told((yield Call("/plan", view, timeout=timeout, via=name)))
    call = told.get("call")
    if call is None and "call" in told:
        raise CompactionFailed("custom_unwanted")
    body = call.get("body") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(body, dict) or not body:
        raise CompactionFailed("custom_invalid")
    accept = {"accept": "text/event-stream"} if body.get("stream") is True else {}
    reply = yield Call(
        REQUESTS[asked.dialect].PATH,
        dumps({"model": asked.model, **body}),
        add_headers=accept,
        drop_headers=DROPPED,
        timeout=timeout,
    )
    answer = ANSWERS[asked.dialect].read_answer(reply.body) if reply.status == 200 else None
    if answer is None or answer.error:
        raise CompactionFailed("custom_call_failed")
    shown = dumps({"reply": _shown(reply, answer), "keep": call.get("keep")})
    return _told((yield Call("/finish", shown, timeout=timeout, via=name))), answer.usage or Usage(0)


def _shown(reply: Reply, answer: Answer) -> JsonObject:
    """An answer as a compactor is shown it."""
    try:
        body = loads(reply.body)
    except ValueError:  # a stream
        body = None
    return {"text": answer.text, "finish": answer.finish, "refusal": answer.refusal, "body": body}


def _told(reply: Reply) -> JsonObject:
    if reply.status == 0:
        raise CompactionFailed("custom_too_slow" if "no answer within" in reply.error else "custom_failed")
    if reply.status != 200:
        raise CompactionFailed("custom_failed")
    try:
        value = loads(reply.body)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise CompactionFailed("custom_invalid")
    return value


def _is_text(text: str) -> bool:
    """Whether it has no half of a pair of surrogates: providers refuse a body with one, and so each later turn."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _count(told: JsonObject, key: str) -> int:
    value = told.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
