"""What the life of a request asks of the world: the exchange yields these, a driver sends back the results.

A driver may throw the named error into the exchange instead of a result. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import msgspec

from tidegate.compactors.strategy import Call, CompactionFailed, Elided, Minted, Reply, Summary
from tidegate.engine.checkpoint import Checkpoint, Report
from tidegate.wire.conversation import FinishReason, JsonValue, Usage
from tidegate.wire.discreet import Discreet


@dataclass(frozen=True, slots=True)
class Cost:
    """Calls upstream, and the tokens they were billed for, as far as their answers said so."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """A strategy that gave nothing of use; the next one was tried."""

    strategy: str
    reason: str
    missing: bool = False
    """The endpoint does not have it."""
    calls: int = 0
    """Made for it."""
    input_tokens: int = 0
    """Billed for it, as far as the answers said so."""
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Made:
    """What a compaction gave, by the first of its strategies that did."""

    result: Summary | Minted | Elided
    strategy: str
    failed: tuple[Failure, ...] = ()
    """Those tried before it."""

    @property
    def cost(self) -> Cost:
        """Of the result and of all that was tried before it."""
        return cost_of(self.failed, Cost(self.result.calls, self.result.input_tokens, self.result.output_tokens))


class NothingHelped(CompactionFailed):
    """No strategy of a compaction gave anything of use. `reason` is the last one's."""

    def __init__(self, failed: tuple[Failure, ...]) -> None:
        super().__init__(failed[-1].reason if failed else "no_strategy")
        self.failed = failed

    @property
    def cost(self) -> Cost:
        """Of all that was tried in vain."""
        return cost_of(self.failed)


class OutOfTime(CompactionFailed):
    """Thrown into a compaction's work where all its calls together took too long: nothing more is tried."""


def cost_of(failed: tuple[Failure, ...], beside: Cost = Cost()) -> Cost:
    """Of what was tried in vain, and what is given `beside`."""
    return Cost(
        beside.calls + sum(it.calls for it in failed),
        beside.input_tokens + sum(it.input_tokens for it in failed),
        beside.output_tokens + sum(it.output_tokens for it in failed),
    )


Work: TypeAlias = Generator[Call, Reply, Made]


class Find(Discreet, frozen=True):
    """Look a history up. Result: `Found`. Error: `StoreError`."""

    hidden: ClassVar[frozenset[str]] = frozenset({"chains"})

    tenant: bytes
    bucket: bytes
    chains: Mapping[int, bytes]


class Save(msgspec.Struct, frozen=True):
    """Keep a checkpoint or a report. Result: None. Error: `StoreError`."""

    tenant: bytes
    record: Checkpoint | Report


class Compact(Discreet, frozen=True):
    """Run the calls of one strategy after the other, until one of them gives something; once for all requests that wait
    for the same `key`. Result: `Made`.

    Error: `CompactionFailed`. `work()` makes a fresh generator that yields `Call`s, is sent `Reply`s and returns what
    was made; a driver that joins a running flight never calls it.
    """

    hidden: ClassVar[frozenset[str]] = frozenset({"work"})

    key: bytes
    strategy: str
    """The first of them."""
    work: Callable[[], Work]


class Prepare(Discreet, frozen=True):
    """Run a strategy's calls in the background, so that a later turn's `Compact` of the same `key` finds them made.

    Result: whether that has begun; False where as many run already as may, or nothing runs in the background. The
    driver tells `ended` what came of it, what was made or why nothing was, and passes its notice on. Cancelled work is
    not told.
    """

    hidden: ClassVar[frozenset[str]] = frozenset({"work", "ended"})

    key: bytes
    strategy: str
    work: Callable[[], Work]
    ended: Callable[[Made | CompactionFailed], Notify]


class Send(Discreet, frozen=True):
    """Send the request upstream, with `body` in place of the client's, or as it came where `body` is None.

    Result: `Head`. Error: `UpstreamError` where no answer could be had.
    """

    hidden: ClassVar[frozenset[str]] = frozenset({"body"})

    body: bytes | None
    add_headers: Mapping[str, str] = {}
    credential: str = ""
    """Name of the one of several keys to send it with; empty where there is no choice, or any will do."""


class Head(Discreet, frozen=True):
    """The beginning of an answer: everything up to the first content, or the whole of a refusal. Still undelivered."""

    hidden: ClassVar[frozenset[str]] = frozenset({"refusal"})

    number: int
    """Which send of this exchange it answers, from 0: what `Deliver` names."""
    status: int
    headers: Mapping[str, str]
    """Of a refusal; names in lower case."""
    refusal: bytes | None = None
    """Body of a refusal: an error status, an error event before any content, or an error object in a 200 body."""
    in_stream: bool = False
    """The refusal came as an event of a stream that had begun with 200."""


Action: TypeAlias = Literal["relayed", "replayed", "compacted", "recovered", "unrecovered"]
"""What happened to a request: passed as it came; sent with a stored checkpoint; compacted before it was sent; changed
after the provider refused it, and answered then; refused by the provider for its size and not saved."""


class Outcome(msgspec.Struct, frozen=True):
    """What the client is told in the `x-tidegate-*` headers. Tokens are calibrated estimates."""

    action: Action = "relayed"
    reason: str = ""
    """Why nothing was done, or why it did not help; a short name."""
    strategy: str = ""
    checkpoint: str = ""
    tokens_before: int | None = None
    tokens_after: int | None = None
    compactions: int = 0
    summary_calls: int = 0
    compaction_input_tokens: int = 0
    """Billed for compactions of this request, those that failed included, as far as their answers said so; in no other
    number here."""
    compaction_output_tokens: int = 0


class Deliver(msgspec.Struct, frozen=True):
    """Give the client that answer, byte for byte, and close all others. Result: `Finish`."""

    number: int
    outcome: Outcome = Outcome()


class Finish(msgspec.Struct, frozen=True):
    """How the delivered answer ended."""

    usage: Usage | None = None
    finish: FinishReason | None = None
    complete: bool = True
    """False where the stream was cut or the client left."""
    compacts: bool = False
    """It holds an item by which the provider compacted within the request: its usage has that in it."""


class Notify(msgspec.Struct, frozen=True):
    """Something worth telling: a line in the diagnostics, the headers, a listener. Holds numbers and names, never words
    of the conversation. Result: None."""

    event: Literal[
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
    detail: Mapping[str, JsonValue] = {}


class UpstreamError(Exception):
    """No answer could be had from the upstream (refused, timed out, cut before the head). `status` is what a gateway
    should answer: 502, or 504 for a timeout. The message is for the person at the client."""

    def __init__(self, message: str, *, status: int = 502) -> None:
        super().__init__(message)
        self.status = status


Effect: TypeAlias = Find | Save | Compact | Prepare | Send | Deliver | Notify
