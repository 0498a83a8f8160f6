"""A compactor of the user's own: what it is shown, what it may answer, in the calls by which it is asked.

Knows the published schema (docs/custom-compactors.md); not whether a process or an object answers. Called by the
engine.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Final

from tidegate.compactors.strategy import Call, CompactionFailed, Reply, Summary
from tidegate.wire.conversation import DialectName, JsonObject, JsonValue
from tidegate.wire.jsontext import dumps, loads

WANTS_SECONDS: Final = 2.0
"""Seconds that a compactor may take to say whether it wants to: it is asked while a request waits."""

TOO_LONG: Final = 2
"""Times its room that a text may take."""


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

    def view(self) -> JsonObject:
        """As JSON."""
        return {
            "dialect": self.dialect,
            "model": self.model,
            "window": self.window,
            "trigger": self.trigger,
            "tokens": self.tokens,
            "room": self.room,
            "system": self.system,
            "tools": self.tools,
            "items": [*self.items],
            "since": self.since,
            "until": self.until,
            "previous": self.previous,
        }


def work(name: str, asked: Asked, timeout: float) -> Generator[Call, Reply, Summary]:
    """Asks the compactor of that name whether it wants to, and for its text.

    Raises `CompactionFailed`: `custom_unwanted`, `custom_failed` (no answer, or an error), `custom_too_slow`,
    `custom_invalid` (not what the schema says, or nothing of use).
    """
    body = dumps(asked.view())
    wants = yield Call("/wants", body, timeout=min(timeout, WANTS_SECONDS), via=name)
    if _told(wants).get("wants") is not True:
        raise CompactionFailed("custom_unwanted")
    told = _told((yield Call("/compact", body, timeout=timeout, via=name)))
    text = told.get("summary")
    if not isinstance(text, str) or not text.strip() or len(text) > TOO_LONG * 4 * max(asked.room, 1):
        raise CompactionFailed("custom_invalid")
    if not _is_text(text):
        raise CompactionFailed("custom_invalid")
    return Summary(text.strip(), 1, asked.retained, _count(told, "input_tokens"), _count(told, "output_tokens"))


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
