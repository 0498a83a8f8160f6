"""Shows which rules a refusal touches, which of them hold, and what turns the others off.

Knows the order of evidence only by asking `classify` and `rules`. Pure. Called by `tidegate classify`; never on the way
of a request.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.overflow.classify import two_of_three, words_barred
from tidegate.overflow.rules import Match, Reading, Rules
from tidegate.overflow.text import Text
from tidegate.overflow.unwrap import unwrap
from tidegate.overflow.verdict import Evidence, Kind, Refusal

_MOST = 20


@dataclass(frozen=True, slots=True)
class Considered:
    """A rule whose code, type or words are in a refusal. Words are cut to 120 characters."""

    evidence: Evidence
    kind: Kind
    against: str = ""
    """What turns the rule off: counter-evidence, a status; empty where it holds."""


def considered(refusal: Refusal, rules: Rules) -> tuple[Considered, ...]:
    """The rules that a refusal touches, in the order of evidence; the first that holds decides, unless numbers do."""
    said = unwrap(refusal)
    if not said.error:
        return ()
    reading = Reading(Text(said.text))
    shown: list[Considered] = []
    for match, against in rules.touched(said, reading):
        by_words = not (match.rule.code or match.rule.type)
        if not against and by_words and match.rule.kind == "overflow" and words_barred(said, match.rule):
            against = f"status {said.statuses[0]}"
        shown.append(_shown(match, against))
    unlisted = two_of_three(said, reading, rules, vetoed=False)
    if unlisted is not None:
        against = f"status {said.statuses[0]}" if words_barred(said) else rules.generic_counter(reading)
        shown.append(_shown(unlisted, against))
    return tuple(shown[:_MOST])


def _shown(match: Match, against: str) -> Considered:
    return Considered(Evidence(match.rule.id, match.rule.file, match.words[:120]), match.rule.kind, against[:120])
