"""For the tests of programs that use Tidegate: a provider in this process, refusals to try, a switch that turns it off.

Knows the simulator and the provider files. Public.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tidegate.client.switch import is_testing, set_testing
from tidegate.overflow.verdict import Verdict
from tidegate.providers import classify, default
from tidegate.simulator import (
    ContextManagement,
    Record,
    ResponsesCompaction,
    Simulator,
    SimulatorSettings,
    Step,
    serve,
)

__all__ = [
    "ContextManagement",
    "Record",
    "RecordedRefusal",
    "ResponsesCompaction",
    "Simulator",
    "SimulatorSettings",
    "Step",
    "is_testing",
    "recorded_refusals",
    "set_testing",
    "simulator",
    "untouched",
]


@contextmanager
def simulator(window: int = 8000, **settings: object) -> Iterator[Simulator]:
    """A provider on a loopback port that enforces the rules of the real ones and refuses what is over its window of so
    many tokens. `settings` are fields of `SimulatorSettings`."""
    with serve(SimulatorSettings(window=window, **settings)) as running:  # type: ignore[arg-type]
        yield running


@dataclass(frozen=True, slots=True)
class RecordedRefusal:
    """A refusal in a provider's own words, and what Tidegate makes of it."""

    provider: str
    text: str
    verdict: Verdict


def recorded_refusals(provider: str | None = None) -> Sequence[RecordedRefusal]:
    """The refusals that the provider files hold as samples, of one provider or of all. Raises `ProviderError` for a
    provider that is not known."""
    known = default()
    chosen = [known.get(provider)] if provider is not None else list(known)
    return [
        RecordedRefusal(one.name, rule.sample, classify(rule.sample, provider=one.name))
        for one in chosen
        for rule in one.refusals
    ]


@contextmanager
def untouched() -> Iterator[None]:
    """In this block requests pass as they are, in all threads: nothing is compacted, and no summary is asked for."""
    before = is_testing()
    set_testing(True)
    try:
        yield
    finally:
        set_testing(before)
