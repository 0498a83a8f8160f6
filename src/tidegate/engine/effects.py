"""What the life of a request asks of the world: the exchange yields these, a driver sends back the results.

A driver may throw the named error into the exchange instead of a result. Nothing here does I/O. Those that
every request has are in `steps`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from tidegate.compactors.strategy import Call, CompactionFailed, Elided, Minted, Reply, Summary
from tidegate.engine.steps import Action, Deliver, Find, Finish, Head, Notify, Outcome, Save, Send
from tidegate.wire.discreet import Discreet

__all__ = [
    "Action", "Compact", "Cost", "Deliver", "Effect", "Failure", "Find", "Finish", "Head", "Made", "NothingHelped",
    "Notify", "OutOfTime", "Outcome", "Prepare", "Save", "Send", "UpstreamError", "Work", "cost_of",
]  # fmt: skip


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


class UpstreamError(Exception):
    """No answer could be had from the upstream (refused, timed out, cut before the head). `status` is what a gateway
    should answer: 502, or 504 for a timeout. The message is for the person at the client."""

    def __init__(self, message: str, *, status: int = 502) -> None:
        super().__init__(message)
        self.status = status


Effect: TypeAlias = Find | Save | Compact | Prepare | Send | Deliver | Notify
