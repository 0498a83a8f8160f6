"""The simulated summarizer: reads only what the fence holds, writes only what its limit allows.

Knows the fence and the headings; keeps `FACT-nn` markers so that tests can see what memory survives. Called by the
model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tidegate.simulator import tokens
from tidegate.simulator.jsontext import JsonValue
from tidegate.simulator.settings import Forgetful
from tidegate.simulator.turn import Turn

HEADINGS = (
    "Goal",
    "Constraints & preferences",
    "Progress",
    "Key decisions",
    "Files",
    "Errors & fixes",
    "Next steps",
    "Critical context",
)
_REQUEST = re.compile(r"<summary_request>.*</summary_request>\s*\Z", re.DOTALL)
_OPENING = re.compile(r"<\s*(transcript|previous_summary)\b[^>]*>", re.IGNORECASE)
_CLOSING = {kind: re.compile(rf"<\s*/\s*{kind}\s*>", re.IGNORECASE) for kind in ("transcript", "previous_summary")}
_FACT = re.compile(r"(FACT-\d+)((?:(?!FACT-\d)[^\n.!?]){0,80})")


@dataclass(frozen=True, slots=True)
class Fence:
    """What a summary call asks to have summarised."""

    transcript: str = field(repr=False)
    previous: str = field(default="", repr=False)


def find(turn: Turn) -> Fence | None:
    """What a summary call asks to have summarised: in a request without tools, what the newest user text has in a
    `<transcript>`; in one that ends with a `<summary_request>`, all that comes before it."""
    if _REQUEST.search(turn.last_text) and turn.rounds == 0:
        return Fence("\n".join(_texts(turn.items[:-1])))
    return None if turn.body.get("tools") else fence_in(turn.last_text)


def _texts(value: JsonValue) -> Iterator[str]:
    """Every text in it, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _texts(part)


def fence_in(text: str) -> Fence | None:
    """Reads `<transcript …>…</transcript>` and `<previous_summary>…</previous_summary>`, the first of each.

    As for a real model, the first closing tag, however spaced or capitalised, ends the material: what a gateway fails
    to escape is cut off there.
    """
    found: dict[str, str] = {}
    at = 0
    while opening := _OPENING.search(text, at):
        kind = opening.group(1).lower()
        closing = _CLOSING[kind].search(text, opening.end())
        found.setdefault(kind, text[opening.end() : closing.start() if closing else len(text)])
        if closing is None:
            break
        at = closing.end()
    if "transcript" not in found:
        return None
    return Fence(found["transcript"], found.get("previous_summary", ""))


def summarize(fence: Fence, cap: int, forgetful: Forgetful = False) -> str:
    """A summary of at most `cap` tokens, unless its bare headings need more (the answer is then cut by its limit).

    Facts come from the previous summary, then the transcript, each with up to 80 characters of its sentence. Where
    they don't fit, first the sentences go, then the newest facts: what only the summary still knows is kept longest.
    """
    facts = remembered(facts_of(fence.previous, fence.transcript), forgetful)
    lines = sum(1 for line in fence.transcript.splitlines() if line.strip())
    full = _write(lines, [f"- {marker}{rest}" for marker, rest in facts.items()], bool(fence.previous))
    if tokens.words(full) <= cap:
        return full
    markers = list(facts)
    while markers:
        short = _write(lines, ["- " + ", ".join(markers)], bool(fence.previous))
        if tokens.words(short) <= cap:
            return short
        markers.pop()
    return _write(lines, [], bool(fence.previous))


def facts_of(*texts: str) -> dict[str, str]:
    """The markers in texts, each once and in order, to the words after it in its sentence (80 characters at most)."""
    facts: dict[str, str] = {}
    for text in texts:
        for marker, rest in _FACT.findall(text):
            facts.setdefault(marker, rest.rstrip(" ,;"))
    return facts


def remembered(facts: dict[str, str], forgetful: Forgetful) -> dict[str, str]:
    """What a summarizer keeps of them, good or bad as the settings want it."""
    if forgetful is True:
        return {}
    return dict(list(facts.items())[::2]) if forgetful == "half" else facts


def _write(lines: int, facts: list[str], continued: bool) -> str:
    notes = {
        "Goal": "Go on with the user's task.",
        "Progress": f"Done: {lines} lines {'more ' if continued else ''}were worked through.",
        "Next steps": "Go on from the newest message.",
    }
    parts = [f"## {heading}\n{notes.get(heading, '(none)')}" for heading in HEADINGS[:-1]]
    return "\n".join([*parts, f"## {HEADINGS[-1]}", *(facts or ["(none)"])])
