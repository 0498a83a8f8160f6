"""Compiles the rules of the provider files: codes and types into tables, patterns when they are first needed.

Knows how a rule matches what a refusal says; not where rules come from, nor what follows from a match. Called by
`classify`, and by `tidegate.providers` to check rules as they are loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tidegate.overflow.counts import whole
from tidegate.overflow.pattern import BadRule, Index, Pattern, check_pattern, pattern_of
from tidegate.overflow.text import Text
from tidegate.overflow.unwrap import Said, unwrap
from tidegate.overflow.verdict import Action, Kind, Refusal


@dataclass(frozen=True, slots=True)
class RuleSpec:
    """One rule of a provider file. All that it names (`code`, `type`, `status`, `pattern`) must hold; of a list, one.

    `pattern` is matched against lower-cased text and marks numbers by role (`pattern.ROLES`). `unless` names
    counter-evidence of the shared file, or is a pattern itself; where one is found in the texts, the rule is off.
    """

    file: str
    id: str
    kind: Kind
    code: tuple[str, ...] = ()
    type: tuple[str, ...] = ()
    status: tuple[int, ...] = ()
    pattern: str | None = None
    unless: tuple[str, ...] = ()
    action: Action | None = None
    certain: bool = True
    sample: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class RulesFile:
    """The shared file: counter-evidence by name, the parts of two-of-three evidence, rules for any provider."""

    counter: Mapping[str, Sequence[str]] = field(default_factory=dict)
    evidence: Mapping[str, Sequence[str]] = field(default_factory=dict)
    rules: tuple[RuleSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class Match:
    """A rule that held, the words it held on, and the numbers it read there by role."""

    rule: RuleSpec
    words: str = ""
    numbers: Mapping[str, int] = field(default_factory=dict)


_PER_TIME = ("per_time",)
"""Counter-evidence of the shared file against every pattern of an overflow."""
PARTS = ("subject", "relation", "bound")
"""Of the evidence for wordings that nobody has listed."""


class Reading:
    """A refusal's text, and which patterns of the rules it may match: looked up when a rule first asks."""

    __slots__ = ("possible", "text")

    def __init__(self, text: Text) -> None:
        """For one set of rules."""
        self.text = text
        self.possible: set[int] | None = None
        """Positions among the rules' patterns."""


class Rules:
    """A provider's rules before the shared ones, compiled. Immutable; safe to share."""

    def __init__(
        self,
        own: tuple[RuleSpec, ...] = (),
        shared: RulesFile | None = None,
        others: tuple[RuleSpec, ...] = (),
    ) -> None:
        """`others` are other providers' rules: only their patterns count, last, since gateways pass on their words."""
        self._shared = shared or RulesFile()
        self.all = (*own, *self._shared.rules)
        """The provider's own rules and the shared ones, in order."""
        self._worded = tuple(r for r in (*self.all, *others) if r.pattern and not r.code and not r.type)

    @cached_property
    def _by_code(self) -> Mapping[str, tuple[RuleSpec, ...]]:
        return _table((code, rule) for rule in self.all for code in rule.code)

    @cached_property
    def _by_type(self) -> Mapping[str, tuple[RuleSpec, ...]]:
        return _table((name, rule) for rule in self.all if not rule.code for name in rule.type)

    @cached_property
    def _patterns(self) -> tuple[Pattern, ...]:
        """Those of the rules that only a pattern decides, in order; then those of counter-evidence and of evidence."""
        named = [pattern for patterns in self._shared.counter.values() for pattern in patterns]
        inline = [
            name for rule in (*self.all, *self._worded) for name in rule.unless if name not in self._shared.counter
        ]
        parts = [pattern for part in PARTS for pattern in self._shared.evidence.get(part, ())]
        sources = [*(rule.pattern or "" for rule in self._worded), *dict.fromkeys((*named, *inline, *parts))]
        return tuple(map(pattern_of, sources))

    @cached_property
    def _index(self) -> Index:
        return Index(self._patterns)

    @cached_property
    def _numbered(self) -> tuple[tuple[RuleSpec, Pattern], ...]:
        """The rules that read numbers of tokens."""
        pairs = zip(self._worded, self._patterns, strict=False)
        return tuple(
            (rule, pattern) for rule, pattern in pairs if rule.kind in ("overflow", "output_limit") and pattern.roles
        )

    @cached_property
    def _number_index(self) -> Index:
        return Index(pattern for _, pattern in self._numbered)

    @cached_property
    def _positions(self) -> Mapping[str, int]:
        """Where a pattern of counter-evidence or evidence stands."""
        first = len(self._worded)
        return {pattern.written: first + n for n, pattern in enumerate(self._patterns[first:])}

    @cached_property
    def _against(self) -> Mapping[tuple[str, ...], frozenset[int]]:
        """The positions of the patterns that turn a rule off, by its `unless`."""
        every = {rule.unless for rule in (*self.all, *self._worded)}
        every |= {self._generic_unless, self._summed_unless, _PER_TIME}
        return {
            unless: frozenset(
                self._positions[source]
                for name in unless
                for source in self._shared.counter.get(name, () if name in _PER_TIME else (name,))
            )
            for unless in every
        }

    @cached_property
    def _filters(self) -> frozenset[int]:
        return frozenset(self._positions[source] for source in self._shared.counter.get("filter", ()))

    @cached_property
    def _generic_unless(self) -> tuple[str, ...]:
        return tuple(self._shared.evidence.get("unless", ()))

    @cached_property
    def _summed_unless(self) -> tuple[str, ...]:
        return tuple(name for name in self._generic_unless if name != "output_cap")

    @cached_property
    def _evidence(self) -> Mapping[str, frozenset[int]]:
        return {
            part: frozenset(self._positions[source] for source in self._shared.evidence.get(part, ())) for part in PARTS
        }

    def by_code(self, said: Said, reading: Reading) -> Match | None:
        """The first rule that an error's structured code decides, the innermost code first."""
        return self._structured(said.codes, self._by_code, said, reading) if said.codes else None

    def by_type(self, said: Said, reading: Reading) -> Match | None:
        """The first rule that an error's type decides, with its status where the rule names one."""
        return self._structured(said.types, self._by_type, said, reading) if said.types else None

    def by_pattern(self, said: Said, reading: Reading) -> Iterator[Match]:
        """The rules whose patterns hold, the provider's own first, in the files' order."""
        for rule, found in self._found(reading):
            if not self._off(rule, found, said, reading):
                yield Match(rule, found[0], _numbers(found))

    def touched(self, said: Said, reading: Reading) -> Iterator[tuple[Match, str]]:
        """The rules whose codes, types or words are there, in the order of evidence, and what turns each off: for
        explanations.
        """
        named = [(name, rule) for name in said.codes for rule in self._by_code.get(name, ())]
        named += [(name, rule) for name in said.types for rule in self._by_type.get(name, ())]
        for name, rule in named:
            found = pattern_of(rule.pattern).search(reading.text.string) if rule.pattern else None
            if rule.type and rule.code and not set(rule.type) & set(said.types):
                continue
            if rule.pattern is None or found:
                yield Match(rule, name), self._off(rule, None, said, reading)
        for rule, found in self._found(reading):
            yield Match(rule, found[0]), self._off(rule, found, said, reading)

    def _off(self, rule: RuleSpec, found: re.Match[str] | None, said: Said, reading: Reading) -> str:
        """Why a rule does not hold, or nothing."""
        if rule.status and not _one_in(rule.status, said.statuses):
            return f"status {', '.join(map(str, said.statuses)) or 'unknown'}"
        of_words = found is not None and rule.kind == "overflow"
        quoted = (
            self._quoted(found.start(), reading) or self.countered(_PER_TIME, reading) if of_words and found else ""
        )
        return quoted or self.countered(rule.unless, reading)

    def _quoted(self, at: int, reading: Reading) -> str:
        """The words of a filter before this place, after which the user may be quoted; or nothing."""
        for position in self._filters & self._possible(reading):
            found = self._patterns[position].search(reading.text.string)
            if found and found.start() < at:
                return found[0]
        return ""

    def numbers(self, reading: Reading) -> Mapping[str, int]:
        """What overflow and output rules read from the text: the first that gives prompt and limit, or the most."""
        best: Mapping[str, int] = {}
        for position in sorted(self._number_index.among(reading.text)):
            rule, pattern = self._numbered[position]
            found = pattern.search(reading.text.string)
            if found and not self.countered(rule.unless, reading):
                read = _numbers(found)
                if ("window" in read or "limit" in read) and ("input" in read or "floor" in read):
                    return read
                best = read if len(read) > len(best) else best
        return best

    def _possible(self, reading: Reading) -> set[int]:
        if reading.possible is None:
            reading.possible = self._index.among(reading.text)
        return reading.possible

    def _found(self, reading: Reading) -> Iterator[tuple[RuleSpec, re.Match[str]]]:
        worded, patterns = self._worded, self._patterns
        for position in sorted(self._possible(reading)):
            if position >= len(worded):
                break
            found = patterns[position].search(reading.text.string)
            if found:
                yield worded[position], found

    def countered(self, unless: tuple[str, ...], reading: Reading) -> str:
        """The words of counter-evidence that is in the text, or nothing."""
        if not unless:
            return ""
        for position in self._against[unless] & self._possible(reading):
            found = self._patterns[position].search(reading.text.string)
            if found:
                return found[0]
        return ""

    def generic_counter(self, reading: Reading, *, summed: bool = False) -> str:
        """Counter-evidence against two-of-three evidence: its words, or nothing. Where prompt and output are `summed`,
        that the output's limit is named is none."""
        return self.countered(self._summed_unless if summed else self._generic_unless, reading)

    def evidence(self, reading: Reading) -> Mapping[str, tuple[Pattern, ...]]:
        """The patterns of each part of two-of-three evidence that the text may match."""
        return {
            part: tuple(self._patterns[position] for position in sorted(positions & self._possible(reading)))
            for part, positions in self._evidence.items()
        }

    def _structured(
        self, names: Sequence[str], table: Mapping[str, tuple[RuleSpec, ...]], said: Said, reading: Reading
    ) -> Match | None:
        for name in names:
            for rule in table.get(name, ()):
                if rule.type and rule.code and not set(rule.type) & set(said.types):
                    continue
                if rule.status and not _one_in(rule.status, said.statuses):
                    continue
                if not rule.pattern and not rule.unless:
                    return Match(rule, name)
                found = pattern_of(rule.pattern).search(reading.text.string) if rule.pattern else None
                if (rule.pattern and not found) or self.countered(rule.unless, reading):
                    continue
                return Match(rule, name, _numbers(found) if found else {})
        return None


def check(rules: Sequence[RuleSpec], shared: RulesFile) -> None:
    """Refuse rules that could blow up, match nothing, or whose sample they don't recognise. Raises `BadRule`."""
    compiled = Rules(tuple(rules), RulesFile(shared.counter, shared.evidence))
    seen: set[str] = set()
    for rule in rules:
        where = f"refusals.{rule.id}"
        if rule.id in seen:
            raise BadRule(f"{where}: id: used twice; ids are unique in a file")
        seen.add(rule.id)
        if not (rule.code or rule.type or rule.pattern):
            raise BadRule(f"{where}: needs one of code, type, pattern")
        if rule.pattern is not None:
            check_pattern(rule.pattern, f"{where}: pattern")
        for name in rule.unless:
            if name not in shared.counter:
                check_pattern(name, f"{where}: unless")
        _check_sample(rule, compiled, where)
    for name, patterns in (*shared.counter.items(), *shared.evidence.items()):
        for pattern in patterns:
            if pattern not in shared.counter:
                check_pattern(pattern, f"counter.{name}")


def _check_sample(rule: RuleSpec, rules: Rules, where: str) -> None:
    status = rule.status[0] if rule.status else 400
    said = unwrap(Refusal(status, rule.sample))
    own = Rules((rule,), RulesFile(rules._shared.counter))
    reading = Reading(Text(said.text))
    held = own.by_code(said, reading) or own.by_type(said, reading) or next(own.by_pattern(said, reading), None)
    if held is None:
        raise BadRule(
            f"{where}: sample: is not matched by the rule (patterns see lower-cased text, literals whole words)"
        )
    for other in rules.by_pattern(said, Reading(Text(said.text))):
        if other.rule.kind == rule.kind:
            break
        if not (rule.code or rule.type):
            raise BadRule(f"{where}: sample: is matched first by {other.rule.id!r} of kind {other.rule.kind!r}")


def _table(pairs: Iterable[tuple[str, RuleSpec]]) -> Mapping[str, tuple[RuleSpec, ...]]:
    table: dict[str, tuple[RuleSpec, ...]] = {}
    for name, rule in pairs:
        table[name.lower()] = (*table.get(name.lower(), ()), rule)
    return table


def _one_in(wanted: Sequence[int], statuses: Sequence[int]) -> bool:
    return any(status in wanted for status in statuses)


def _numbers(found: re.Match[str]) -> Mapping[str, int]:
    read = {}
    for role, digits in found.groupdict().items():
        if digits is not None:
            end = found.end(role)
            number = whole(digits, found.string[end : end + 4])
            if number is not None:
                read[role] = number
    return read
