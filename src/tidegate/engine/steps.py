"""The effects that every request has (found, sent, delivered, learned, told), and their results.

Values alone, made for each request: plain classes, of which nothing changes. See `effects`, which has the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from tidegate.engine.checkpoint import Checkpoint, Report
from tidegate.wire.conversation import FinishReason, JsonValue, Usage

_NONE_ADDED: Final[Mapping[str, str]] = {}
_NO_DETAIL: Final[Mapping[str, JsonValue]] = {}


class Find:
    """Look a history up. Result: `Found`. Error: `StoreError`."""

    __slots__ = ("bucket", "chains", "tenant")

    def __init__(self, tenant: bytes, bucket: bytes, chains: Mapping[int, bytes]) -> None:
        self.tenant, self.bucket, self.chains = tenant, bucket, chains

    def __repr__(self) -> str:
        """What may be shown of it."""
        return "Find()"


class Save:
    """Keep a checkpoint or a report. Result: None. Error: `StoreError`."""

    __slots__ = ("record", "tenant")

    def __init__(self, tenant: bytes, record: Checkpoint | Report) -> None:
        self.tenant, self.record = tenant, record

    def __repr__(self) -> str:
        """What may be shown of it."""
        return f"Save({self.record!r})"


class Send:
    """Send the request upstream, with `body` in place of the client's, or as it came where `body` is None.

    Result: `Head`. Error: `UpstreamError` where no answer could be had.
    """

    __slots__ = ("add_headers", "body", "credential")

    def __init__(self, body: bytes | None, add_headers: Mapping[str, str] = _NONE_ADDED, credential: str = "") -> None:
        self.body, self.add_headers = body, add_headers
        self.credential = credential
        """Name of the one of several keys to send it with; empty where there is no choice, or any will do."""

    def __repr__(self) -> str:
        """What may be shown of it: no words."""
        size = "as it came" if self.body is None else f"{len(self.body)} bytes"
        return f"Send({size}, add_headers={self.add_headers!r})"


class Head:
    """The beginning of an answer: everything up to the first content, or the whole of a refusal. Still undelivered."""

    __slots__ = ("headers", "in_stream", "number", "refusal", "status")

    def __init__(
        self,
        number: int,
        status: int,
        headers: Mapping[str, str],
        refusal: bytes | None = None,
        in_stream: bool = False,
    ) -> None:
        self.number = number
        """Which send of this exchange it answers, from 0: what `Deliver` names."""
        self.status = status
        self.headers = headers
        """Of a refusal; names in lower case."""
        self.refusal = refusal
        """Body of a refusal: an error status, an error event before any content, or an error object in a 200 body."""
        self.in_stream = in_stream
        """The refusal came as an event of a stream that had begun with 200."""

    def __repr__(self) -> str:
        """What may be shown of it: no words."""
        refused = self.refusal is not None
        return f"Head(number={self.number}, status={self.status}, refused={refused}, in_stream={self.in_stream})"


Action: TypeAlias = Literal["relayed", "replayed", "compacted", "recovered", "unrecovered"]
"""What happened to a request: passed as it came; sent with a stored checkpoint; compacted before it was sent; changed
after the provider refused it, and answered then; refused by the provider for its size and not saved."""


class Outcome:
    """What the client is told in the `x-tidegate-*` headers. Tokens are calibrated estimates."""

    __slots__ = (
        "action", "checkpoint", "compaction_input_tokens", "compaction_output_tokens", "compactions", "reason",
        "strategy", "summary_calls", "tokens_after", "tokens_before",
    )  # fmt: skip

    def __init__(
        self,
        action: Action = "relayed",
        reason: str = "",
        strategy: str = "",
        checkpoint: str = "",
        tokens_before: int | None = None,
        tokens_after: int | None = None,
        compactions: int = 0,
        summary_calls: int = 0,
        compaction_input_tokens: int = 0,
        compaction_output_tokens: int = 0,
    ) -> None:
        self.action: Action = action
        self.reason = reason
        """Why nothing was done, or why it did not help; a short name."""
        self.strategy, self.checkpoint = strategy, checkpoint
        self.tokens_before, self.tokens_after = tokens_before, tokens_after
        self.compactions, self.summary_calls = compactions, summary_calls
        self.compaction_input_tokens = compaction_input_tokens
        """Billed for compactions of this request, those that failed included, as far as their answers said so; in no
        other number here."""
        self.compaction_output_tokens = compaction_output_tokens

    def __repr__(self) -> str:
        """All of it: names and numbers."""
        return (
            f"Outcome({self.action!r}, {self.reason!r}, strategy={self.strategy!r}, checkpoint={self.checkpoint!r}, "
            f"tokens={self.tokens_before}->{self.tokens_after}, compactions={self.compactions}, "
            f"summary_calls={self.summary_calls})"
        )


_RELAYED: Final = Outcome()


class Deliver:
    """Give the client that answer, byte for byte, and close all others. Result: `Finish`."""

    __slots__ = ("number", "outcome")

    def __init__(self, number: int, outcome: Outcome = _RELAYED) -> None:
        self.number, self.outcome = number, outcome

    def __repr__(self) -> str:
        """All of it."""
        return f"Deliver({self.number}, {self.outcome!r})"


class Finish:
    """How the delivered answer ended."""

    __slots__ = ("compacts", "complete", "finish", "usage")

    def __init__(
        self,
        usage: Usage | None = None,
        finish: FinishReason | None = None,
        complete: bool = True,
        compacts: bool = False,
    ) -> None:
        self.usage = usage
        self.finish: FinishReason | None = finish
        self.complete = complete
        """False where the stream was cut or the client left."""
        self.compacts = compacts
        """It holds an item by which the provider compacted within the request: its usage has that in it."""

    def __repr__(self) -> str:
        """All of it."""
        return f"Finish({self.usage!r}, {self.finish!r}, complete={self.complete}, compacts={self.compacts})"


Event: TypeAlias = Literal[
    "replayed",
    "measured",
    "compacting",
    "compacted",
    "compaction_failed",
    "thrashing",
    "preparing",
    "prepared",
    "prepare_failed",
    "skipped",
    "shadow",
    "refused",
    "asking",
    "dropped",
    "rekeyed",
    "learned",
    "window_full",
    "cleared",
    "fault",
]


class Notify:
    """Something worth telling: a line in the diagnostics, the headers, a listener. Holds numbers and names, never words
    of the conversation. Result: None."""

    __slots__ = ("detail", "event")

    def __init__(self, event: Event, detail: Mapping[str, JsonValue] = _NO_DETAIL) -> None:
        self.event: Event = event
        self.detail = detail

    def __eq__(self, other: object) -> bool:
        """Equal where both parts are."""
        if not isinstance(other, Notify):
            return NotImplemented
        return self.event == other.event and self.detail == other.detail

    def __hash__(self) -> int:
        """Of its name."""
        return hash(self.event)

    def __repr__(self) -> str:
        """All of it."""
        return f"Notify({self.event!r}, {self.detail!r})"
