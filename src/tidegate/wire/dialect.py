"""The questions every dialect's two modules answer: one for requests, one for answers.

`wire.REQUESTS` and `wire.ANSWERS` map a dialect's name to its module; modules satisfy these protocols as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from tidegate.wire.body import Body
from tidegate.wire.conversation import (
    Answer,
    Conversation,
    DialectName,
    Facts,
    Item,
    JsonObject,
    JsonValue,
    Part,
    Role,
)
from tidegate.wire.sse import Event
from tidegate.wire.watch import Signal


class Requests(Protocol):
    """How one API writes a conversation (`wire.chat`, `wire.responses`, `wire.messages`)."""

    NAME: DialectName
    PATH: str
    """Path below the API root: `/chat/completions`, `/responses`, `/messages`."""

    ITEMS_KEY: str
    """Name of the top-level field that holds the items."""

    def read(self, body: bytes) -> Conversation:
        """Raises `UnreadableBody` where the body is no conversation of this dialect."""
        ...

    def compose(self, top: Body, items: Sequence[Item], lead: int, *, refers: bool = False) -> Conversation:
        """What `read` gives, from the body's fields, its items, how many of them lead, and whether one refers to an
        item that the server holds. Raises `UnreadableBody`."""
        ...

    def refers(self, item: Item) -> bool:
        """Whether an item stands for one that the server holds."""
        ...

    def facts(self, item: JsonObject) -> Facts:
        """What the cutter and the engine need to know of an item. Never raises, whatever is in it."""
        ...

    def parts(self, item: JsonObject) -> Iterator[Part]:
        """The item's pieces, in order, unknown ones included as `json` parts."""
        ...

    def canonical(self, item: JsonObject) -> JsonValue:
        """The item with what may differ between two sendings of the same history made equal: `cache_control` of the
        item, its parts and the parts of its tool results dropped (never inside tool arguments or results' own JSON);
        a string content written as its one-text-part form."""
        ...

    def text_item(self, role: Role, text: str) -> bytes:
        """Raw JSON of a new message with these words."""
        ...

    def prepend_text(self, item: JsonObject, text: str) -> bytes | None:
        """Raw JSON of a user item with words put before its own (string stays string, list stays list); None where
        the item can't take any (not a user message, or tool results must come first)."""
        ...

    def drop_thinking(self, item: JsonObject) -> bytes | None:
        """Raw JSON of the item without its thinking blocks; None where nothing would be left."""
        ...

    def with_output_limit(self, conversation: Conversation, tokens: int) -> bytes | None:
        """The body with its own output limit lowered to `tokens`, all else as it is; None where it states none, or
        where something in it needs more (Anthropic's thinking budget)."""
        ...

    def text_request(
        self,
        *,
        model: str,
        system: str,
        prompt: str,
        max_output: int | None,
        stream: bool,
        like: Conversation | None = None,
        extra: Mapping[str, JsonValue] | None = None,
    ) -> bytes:
        """Body of a plain call: one system text, one user text, no tools, no thinking effort. `like` lends the name of
        its output-limit field. `extra` fields are added, or removed where the value is None."""
        ...


class Answers(Protocol):
    """How one API writes an answer and an error (`wire.chat_answers` and its like)."""

    def read_answer(self, body: bytes) -> Answer:
        """A whole answer body, JSON or SSE (told apart by its first bytes). Never raises."""
        ...

    def signal(self, event: Event) -> Signal:
        """What one SSE event of an answer means."""
        ...

    def error_body(self, status: int, message: str, *, code: str | None = None, request_id: str = "") -> bytes:
        """An error answer in this dialect's own shape."""
        ...

    def error_event(self, message: str, *, status: int = 500, code: str | None = None) -> bytes:
        """The same inside a stream that has begun: whole SSE frames, ended as the dialect ends a failed stream."""
        ...

    def heartbeat(self, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
        """SSE bytes that keep a waiting client awake, by the request headers' client (Codex needs a real event)."""
        ...
