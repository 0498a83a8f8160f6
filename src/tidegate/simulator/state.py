"""What the simulator saw: one record a request, violations, facts, counters.

Keeps names of headers and never their values. Written by the app, read by tests, the demo and the admin routes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Literal, TypeAlias

from tidegate.simulator.jsontext import JsonObject, decode
from tidegate.simulator.script import Script

Outcome: TypeAlias = Literal["pending", "answered", "overflow", "refused", "faulted", "cancelled"]
"""`faulted`: a scripted fault; `cancelled`: the client left before the answer's end."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule: its short name, and what the provider said."""

    number: int
    dialect: str
    rule: str
    message: str
    param: str | None


@dataclass(slots=True)
class Record:
    """One request. Sizes in real tokens."""

    number: int
    path: str
    dialect: str
    kind: Literal["main", "summary", "compaction", "count", "models", "other"]
    headers: tuple[str, ...]
    """Names of the request's headers, lower case, in order."""
    body: bytes = field(default=b"", repr=False)
    """The request body, decompressed; empty once it was let go for room."""
    stream: bool = False
    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    status: int = 0
    """As answered; 0 where there was no answer."""
    outcome: Outcome = "pending"
    refusal: str = ""
    """Name of the rule that a refusal rests on: `window`, `auth`, or a broken rule's."""
    violation: Violation | None = None
    org: str = ""
    """Organisation (and project) of its key, where `orgs` names one."""
    facts: tuple[str, ...] = ()
    """`FACT-nn` markers in the context that the model got; of answered requests only."""
    step: str = ""
    """What the script did to it."""
    truncated: bool = False
    """The beginning was dropped to make it fit."""
    effective: bytes = field(default=b"", repr=False)
    """The items that the model got, as JSON, where the provider itself made them other than the body's: compacted items
    by their summary, cleared results by their stand-ins. Empty: as in the body."""
    verdict: str = ""
    """What became of compaction: `compacted`, `paused`, `replayed`, `failed: …`; empty where none was in play."""

    def json(self) -> JsonObject:
        """The request body as JSON."""
        value: JsonObject = decode(self.body)
        return value

    def window(self) -> list[JsonObject]:
        """The items that the model got: stored ones first, compaction items replaced by what they stand for."""
        if self.effective:
            items: list[JsonObject] = decode(self.effective)
            return items
        body = self.json()
        given = body.get("messages", body.get("input"))
        return given if isinstance(given, list) else [{"role": "user", "content": given}]


class SimulatorState:
    """The records and what follows from them. Read from any thread."""

    def __init__(self, script: Script, keep_requests: int, keep_bytes: int) -> None:
        self.script = script
        self._lock = Lock()
        self._keep_bytes = keep_bytes
        self._records: deque[Record] = deque(maxlen=keep_requests)
        self._violations: list[Violation] = []
        self._bodies: deque[Record] = deque()
        self._bytes = 0
        self._count = 0
        self._on_reset: list[Callable[[], None]] = []

    @property
    def records(self) -> list[Record]:
        """Every request remembered, oldest first."""
        with self._lock:
            return list(self._records)

    @property
    def violations(self) -> list[Violation]:
        """Every broken rule since the start or the last reset (at most 1,000)."""
        with self._lock:
            return list(self._violations)

    @property
    def facts(self) -> tuple[str, ...]:
        """The markers that the newest answered main request had in its context."""
        main = self.main()
        return main[-1].facts if main else ()

    def main(self, dialect: str | None = None) -> list[Record]:
        """Answered requests of the agent itself: no summary calls, no counting."""
        return self._answered("main", dialect)

    def summaries(self, dialect: str | None = None) -> list[Record]:
        """Answered summary calls."""
        return self._answered("summary", dialect)

    def compactions(self, dialect: str | None = None) -> list[Record]:
        """Answered calls for the provider's own compaction, those without an artifact included."""
        return self._answered("compaction", dialect)

    def overflows(self, dialect: str | None = None) -> list[Record]:
        """Requests refused because they did not fit the window."""
        return [entry for entry in self.records if entry.outcome == "overflow" and dialect in (None, entry.dialect)]

    def counters(self) -> JsonObject:
        """Numbers of everything, and tokens of what was answered."""
        records = self.records
        main, summaries, compactions = self.main(), self.summaries(), self.compactions()
        return {
            "requests": self._count,
            "main": len(main),
            "summaries": len(summaries),
            "compactions": len(compactions),
            "overflows": sum(entry.outcome == "overflow" for entry in records),
            "refused": sum(entry.outcome == "refused" for entry in records),
            "faulted": sum(entry.outcome == "faulted" for entry in records),
            "cancelled": sum(entry.outcome == "cancelled" for entry in records),
            "violations": len(self.violations),
            "truncated": sum(entry.truncated for entry in records),
            "main_input_tokens": sum(entry.input_tokens for entry in main),
            "main_output_tokens": sum(entry.output_tokens for entry in main),
            "summary_input_tokens": sum(entry.input_tokens for entry in summaries),
            "summary_output_tokens": sum(entry.output_tokens for entry in summaries),
            "compaction_input_tokens": sum(entry.input_tokens for entry in compactions),
            "compaction_output_tokens": sum(entry.output_tokens for entry in compactions),
            "script_left": len(self.script),
        }

    def begin(self, record: Record) -> Record:
        """Takes up a request; its number is set here."""
        with self._lock:
            self._count += 1
            record.number = self._count
            self._records.append(record)
            self._bodies.append(record)
            self._bytes += len(record.body)
            while self._bytes > self._keep_bytes and len(self._bodies) > 1:
                oldest = self._bodies.popleft()
                self._bytes -= len(oldest.body)
                oldest.body = oldest.effective = b""
        return record

    def violated(self, record: Record, rule: str, message: str, param: str | None) -> None:
        """Notes a broken rule."""
        record.violation = Violation(record.number, record.dialect, rule, message, param)
        with self._lock:
            if len(self._violations) < 1000:
                self._violations.append(record.violation)

    def on_reset(self, action: Callable[[], None]) -> None:
        """Runs `action` at each reset."""
        self._on_reset.append(action)

    def reset(self) -> None:
        """Forgets every request, the script and what the provider stored."""
        with self._lock:
            self._records.clear()
            self._bodies.clear()
            self._violations.clear()
            self._bytes = self._count = 0
        self.script.replace(())
        for action in self._on_reset:
            action()

    def _answered(self, kind: str, dialect: str | None) -> list[Record]:
        return [
            entry
            for entry in self.records
            if entry.kind == kind and entry.outcome == "answered" and dialect in (None, entry.dialect)
        ]
