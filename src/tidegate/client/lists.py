"""Lists of messages as the three APIs' bodies, and what became of one.

Knows the shapes of those bodies; decides and asks nothing. Called by the `Compactor` and its plans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

from tidegate.compactors.strategy import Summary
from tidegate.engine.exchange import Compacted
from tidegate.wire import REQUESTS
from tidegate.wire.conversation import DialectName, JsonObject, JsonValue
from tidegate.wire.jsontext import loads

Message: TypeAlias = Mapping[str, Any]
"""A message, or an input item, as the API's own JSON."""

SYSTEM: Final[Mapping[DialectName, str]] = {"chat": "", "responses": "instructions", "messages": "system"}
NOTHING: Final = frozenset({"nothing_to_compact", "no_smaller", "empty"})
"""Reasons why there is nothing to gain, which are no failures."""


@dataclass(frozen=True, slots=True)
class CompactedMessages:
    """What became of a list. Tokens are calibrated estimates, `input_tokens` and `output_tokens` those billed."""

    messages: list[dict[str, Any]] = field(repr=False)
    """A new list, to be sent, or kept, in place of the one that was given."""
    tokens_before: int
    tokens_after: int
    dropped_count: int
    """Of the given messages: how many the new list has no more, or has only in what replaces them."""
    checkpoint: str
    """Id of what was stored: the same list, or one that goes on from it, needs no other call."""
    strategy: str
    summary: str = field(repr=False)
    """The summary's text; empty where a provider's own items replace the messages."""
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Listed:
    """A list of messages, and what is sent with it."""

    dialect: DialectName
    model: str
    messages: Sequence[Message] = field(repr=False)
    system: str | Sequence[Message] | None = field(default=None, repr=False)
    tools: Sequence[Message] | None = field(default=None, repr=False)

    def body(self) -> JsonObject:
        """A request with these messages."""
        body: dict[str, Any] = {
            "model": self.model,
            REQUESTS[self.dialect].ITEMS_KEY: [as_json(one) for one in self.messages],
        }
        key = SYSTEM[self.dialect]
        if self.system is not None and key:
            body[key] = self.system
        elif self.system is not None:
            body["messages"].insert(0, {"role": "system", "content": self.system})
        if self.tools is not None:
            body["tools"] = [dict(tool) for tool in self.tools]
        if self.dialect == "messages":
            body["max_tokens"] = 1024
        return cast(JsonObject, body)

    def told(self, made: Compacted | None) -> CompactedMessages | None:
        """What came of it, as a caller is given it; None where the list stays as it is."""
        if made is None or made.view.checkpoint is None:
            return None
        body = loads(made.view.body)
        items = body[REQUESTS[self.dialect].ITEMS_KEY] if isinstance(body, dict) else None
        assert isinstance(items, list)
        if self.system is not None and self.dialect == "chat":
            items = items[1:]
        checkpoint = made.view.checkpoint
        result = made.made.result if made.made is not None else None
        text = result.text if isinstance(result, Summary) else checkpoint.artifact.text
        return CompactedMessages(
            messages=cast(list[dict[str, Any]], items),
            tokens_before=made.before,
            tokens_after=made.after,
            dropped_count=_gone(self.messages, items),
            checkpoint=checkpoint.id,
            strategy=checkpoint.strategy,
            summary=text,
            calls=result.calls if result is not None else 0,
            input_tokens=result.input_tokens if result is not None else 0,
            output_tokens=result.output_tokens if result is not None else 0,
        )


def as_json(value: Any) -> Any:
    """A message as the SDK would write it: an answer's own object with what the provider said, and no more."""
    if (dump := getattr(value, "model_dump", None)) is not None:
        return dump(mode="json", by_alias=True, exclude_unset=True)
    if isinstance(value, Mapping):
        return {key: as_json(one) for key, one in value.items()}
    return [as_json(one) for one in value] if isinstance(value, list | tuple) else value


def _gone(before: Sequence[Message], after: Sequence[JsonValue]) -> int:
    kept = [item for item in after if isinstance(item, dict)]
    return sum(as_json(message) not in kept for message in before)
