"""What a Messages request asks of the provider's own context management, and what came of it.

Values only. Filled in by `messages` and the modules it calls, read when the answer is written.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.simulator.jsontext import JsonObject


@dataclass(frozen=True, slots=True)
class Threshold:
    """A `compact_20260112` edit."""

    trigger: int
    """Input tokens from which on it compacts."""
    pause: bool = False


@dataclass(slots=True)
class Managed:
    """One request's context management."""

    itemised: bool = False
    """Usage tells its iterations: a compaction beta is on."""
    on_demand: bool = False
    """The request is a compaction (`compaction: {"type": "summarize"}`)."""
    threshold: Threshold | None = None
    applied: list[JsonObject] | None = None
    """`applied_edits`; None where the request sent no `context_management`."""
    reports: bool = False
    """The answer lists `input_transformations`."""
    base: str = ""
    """Hash of system and tools."""
    source: str = ""
    """Hash of the whole conversation as sent, which a compaction stands for."""
    answered: str = ""
    """Hash of what precedes the answer, which its thinking is bound to."""
    last_role: str = ""
    preserved: bool = False
    """The model is one that binds thinking to what came before."""
    replayed: JsonObject | None = field(default=None, repr=False)
    """The compaction block that stands for the beginning."""
    tool_changes: list[JsonObject] | None = field(default=None, repr=False)
    original: int = 0
    """Estimated tokens as sent, before anything was replaced or cleared."""
    changed: bool = False
    """The model gets other items than the body's."""
    made: list[JsonObject] = field(default_factory=list, repr=False)
    """Compaction blocks of this answer."""
    iterations: list[JsonObject] = field(default_factory=list)
    before: JsonObject | None = None
    """Usage as a stream first tells it, where a compaction then made the input smaller."""
    verdict: str = ""
