"""What every way of making a conversation smaller is given and gives back.

Pure: a strategy describes its slow calls and reads their replies; a driver makes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate.wire.conversation import Conversation, JsonObject


@dataclass(frozen=True, slots=True)
class Call:
    """One slow call upstream, made with the caller's own credential to the same provider."""

    path: str
    """Path below the API root, like `/chat/completions`."""
    body: bytes = field(repr=False)
    add_headers: Mapping[str, str] = field(default_factory=dict)
    drop_headers: frozenset[str] = frozenset()
    """Request headers of the client (lower case) that must not go along."""
    timeout: float = 180.0
    """Seconds for the whole call."""
    credential: str = ""
    """Name of the one of several keys to make it with; the engine's to say, not a strategy's."""
    via: str = ""
    """Name of the user's own compactor that is asked in the provider's place, without any credential."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The whole reply to a call. Status 0: no answer could be had, and `error` says why."""

    status: int
    body: bytes = field(default=b"", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


class CompactionFailed(Exception):
    """The strategy gave no usable artifact. `reason` is a short name for logs and headers, like
    `summary_refused`; nothing in it is text of the conversation or of the provider's reply."""

    def __init__(self, reason: str, *, overflow: bool = False, missing: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.overflow = overflow
        self.missing = missing
        """The endpoint can't do this at all: it need not be asked again for a while."""


@dataclass(frozen=True, slots=True)
class Ride:
    """The session's request as it is forwarded, for a call that continues it. Sizes in real tokens, as estimated."""

    body: bytes = field(repr=False)
    after: int
    """Items at its end that stand after the cut."""
    tail: bytes = field(repr=False)
    """Their bytes, from the first to the last, as the client sent them."""
    tokens: int
    """Of all before the cut: system prompt, tools, items."""
    cached: int
    """Those of them that the provider is thought to have in its cache."""


@dataclass(frozen=True, slots=True)
class Span:
    """What is to be compacted, and the room there is for it."""

    conversation: Conversation
    values: tuple[JsonObject, ...] = field(repr=False)
    """The items to be summarised, in order, parsed: those after the previous summary, before the cut."""
    retained: tuple[int, ...]
    """Chain positions that will be sent verbatim after the artifact (the strategy passes them on)."""
    previous: str = field(default="", repr=False)
    """The earlier summary that stands before these items, empty for none."""
    model: str = ""
    """Model to ask, as the upstream names it."""
    window: int | None = None
    """Context window of that model in tokens, None where unknown."""
    room: int = 0
    """Tokens the artifact may take at most."""
    size: int = 0
    """Estimated tokens of what it replaces (previous summary and items)."""
    ratio: float = 1.0
    """How many real tokens one estimated token has proved to be, at least 1."""
    max_calls: int = 32
    ride: Ride | None = None
    """The request that the first call may continue, None where it may not."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What the `summary` strategy gives: the engine wraps it into a text artifact."""

    text: str = field(repr=False)
    calls: int
    retained: tuple[int, ...] = ()
    """Taken over from the span."""
    input_tokens: int = 0
    """Tokens the calls were billed for, as far as their answers said so."""
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Elided:
    """What leaving tool results out gives: nobody was asked, and nothing was billed."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Passage:
    """What a provider is to compact by itself: a beginning of the conversation as that provider would be shown it."""

    conversation: Conversation
    """The client's request: model settings, instructions and tools are its own."""
    items: tuple[bytes, ...] = field(repr=False)
    """Raw JSON of what stands before the cut: what an earlier compaction put there, then the client's own items.
    Leading system items are left out: they are sent again with every request."""
    retained: tuple[int, ...]
    """Chain positions that will be sent verbatim after the artifact (the strategy passes on those it needs)."""
    model: str = ""
    """Model to ask, as the upstream names it."""
    window: int | None = None
    """Context window of that model in tokens, None where unknown."""
    size: int = 0
    """Calibrated tokens of a request with these items: instructions and tools included."""


@dataclass(frozen=True, slots=True)
class Minted:
    """What a provider's own compaction gives: the engine wraps it into an opaque artifact."""

    items: tuple[bytes, ...] = field(repr=False)
    """Raw JSON, byte for byte as minted, in the order in which they are sent: they replace the passage."""
    calls: int
    retained: tuple[int, ...] = ()
    """Chain positions to be sent verbatim after them."""
    input_tokens: int = 0
    """Tokens the calls were billed for, as far as their answers said so."""
    output_tokens: int = 0
