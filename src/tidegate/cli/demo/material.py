"""What the demo's agent and its human say: deterministic, plausible, of a chosen length.

Knows words only. Read by sessions.
"""

from __future__ import annotations

from itertools import count, islice

SYSTEM = "You are a coding agent. Read what you need with the tools, then say in a sentence what you did."

TOOL_NAME = "read_file"
TOOL_SUMMARY = "Reads a text file of the project and returns its lines, numbered."
TOOL_SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string", "description": "Path below the project's folder."}},
    "required": ["path"],
}

_AREAS = ("billing", "search", "login", "export", "webhooks", "quotas", "invoices", "reports", "imports", "alerts")
_ASKS = (
    "find out why the {area} test is flaky",
    "rename the {area} helper and its callers",
    "add a time limit to the {area} client",
    "read the {area} module and tell me what it caches",
    "make the {area} errors say which record they mean",
)
_KNOWN = (
    "the {area} service listens on port {number}",
    "the {area} queue holds {number} jobs at most",
    "the {area} table was split at row {number}",
)
_LINES = (
    "def {area}_{row}(record: Record, limit: int = {number}) -> Result:",
    '    """Takes one {area} record; the caller has checked its owner."""',
    "    if record.total > limit and not record.settled:",
    "        raise TooLarge(record.id, record.total, limit)",
    "    found = index.lookup(record.key, shard={number} % SHARDS)",
    "    for entry in found.newest_first():",
    "        if entry.state is State.OPEN:",
    "            totals[entry.owner] += entry.amount  # see {area}/totals.py:{row}",
    '    log.debug("{area}: %d entries in %d ms", len(found), clock.elapsed())',
    "    return Result(tuple(found), partial=len(found) == limit)",
    "",
)


def area(turn: int) -> str:
    """What a turn is about."""
    return _AREAS[turn % len(_AREAS)]


def ask(turn: int) -> str:
    """A human's message that starts turn `turn`, counted from 1."""
    return f"Step {turn}: please {_ASKS[turn % len(_ASKS)].format(area=area(turn))}."


def fact(number: int) -> str:
    """Something worth remembering, marked `FACT-nn`; a sentence without its full stop."""
    about = _KNOWN[number % len(_KNOWN)].format(area=area(number * 7), number=1000 + number * 37)
    return f"{marker(number)}: {about}"


def marker(number: int) -> str:
    """`FACT-01`, `FACT-02`, …"""
    return f"FACT-{number:02d}"


def file_text(path: str, turn: int, length: int) -> str:
    """What the tool returns for a path: about `length` characters of numbered lines, different in each turn."""
    rows = (
        f"{row:>5} | " + _LINES[row % len(_LINES)].format(area=area(turn), row=turn * 100 + row, number=turn * 31 + row)
        for row in count(1)
    )
    text = "\n".join(islice(rows, length // 40 + 1))
    return f"{path}\n{text}"[:length]
