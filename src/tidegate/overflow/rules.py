"""Compiles the rules of the provider files: codes and types into tables, patterns when they are first needed.

Knows how a rule matches what a refusal says; not where rules come from, nor what follows from a match. Called by
`classify`, and by `tidegate.providers` to check rules as they are loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

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
        self._all = (*own, *self._shared.rules)
        self._others = others

    @cached_property
    def _by_code(self) -> Mapping[str, tuple[RuleSpec, ...]]:
        return _table((code, rule) for rule in self._all for code in rule.code)

    @cached_property
    def _by_type(self) -> Mapping[str, tuple[RuleSpec, ...]]:
        return _table((name, rule) for rule in self._all if not rule.code for name in rule.type)

    @cached_property
    def _worded(self) -> tuple[tuple[RuleSpec, Pattern], ...]:
        """The rules that only a pattern decides, in order."""
        return tuple(
            (rule, pattern_of(rule.pattern))
            for rule in (*self._all, *self._others)
            if rule.pattern and not rule.code and not rule.type
        )

    @cached_property
    def _index(self) -> Index:
        return Index(pattern for _, pattern in self._worded)

    @cached_property
    def _counter(self) -> Mapping[str, tuple[Pattern, ...]]:
        return {name: tuple(map(pattern_of, patterns)) for name, patterns in self._shared.counter.items()}

    @cached_property
    def evidence(self) -> Mapping[str, tuple[Pattern, ...]]:
        """The shared file's `subject`, `relation` and `bound` patterns."""
        parts = ("subject", "relation", "bound")
        return {part: tuple(map(pattern_of, self._shared.evidence.get(part, ()))) for part in parts}

    def by_code(self, said: Said, text: Text) -> Match | None:
        """The first rule that an error's structured code decides, the innermost code first."""
        return self._structured(said.codes, self._by_code, said, text)

    def by_type(self, said: Said, text: Text) -> Match | None:
        """The first rule that an error's type decides, with its status where the rule names one."""
        return self._structured(said.types, self._by_type, said, text)

    def by_pattern(self, said: Said, text: Text) -> Iterator[Match]:
        """The rules whose patterns hold, the provider's own first, in the files' order."""
        for rule, found in self._found(text):
            if rule.status and not _one_in(rule.status, said.statuses):
                continue
            if not self.countered(rule.unless, text):
                yield Match(rule, found[0], _numbers(found))

    def numbers(self, text: Text) -> Mapping[str, int]:
        """What the first pattern of an overflow or output rule that has numbers reads from the text."""
        for rule, found in self._found(text):
            if rule.kind in ("overflow", "output_limit") and found.re.groups and not self.countered(rule.unless, text):
                return _numbers(found)
        return {}

    def _found(self, text: Text) -> Iterator[tuple[RuleSpec, re.Match[str]]]:
        worded = self._worded
        for position in self._index.among(text):
            rule, pattern = worded[position]
            found = pattern.found(text)
            if found:
                yield rule, found

    def countered(self, unless: Sequence[str], text: Text) -> str:
        """The name of the counter-evidence that is in the text, or nothing."""
        for name in unless:
            patterns = self._counter.get(name)
            if patterns is None:
                patterns = (pattern_of(name),)
            for pattern in patterns:
                if pattern.found(text):
                    return name
        return ""

    def generic_counter(self, text: Text) -> str:
        """Counter-evidence against two-of-three evidence."""
        return self.countered(tuple(self._shared.evidence.get("unless", ())), text)

    def _structured(
        self, names: Sequence[str], table: Mapping[str, tuple[RuleSpec, ...]], said: Said, text: Text
    ) -> Match | None:
        for name in names:
            for rule in table.get(name, ()):
                if rule.type and rule.code and not set(rule.type) & set(said.types):
                    continue
                if rule.status and not _one_in(rule.status, said.statuses):
                    continue
                found = pattern_of(rule.pattern).found(text) if rule.pattern else None
                if (rule.pattern and not found) or self.countered(rule.unless, text):
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
    text = Text(said.text)
    own = Rules((rule,), RulesFile(rules._shared.counter))
    held = own.by_code(said, text) or own.by_type(said, text) or next(own.by_pattern(said, text), None)
    if held is None:
        raise BadRule(f"{where}: sample: is not matched by the rule (patterns see lower-cased text)")
    for other in rules.by_pattern(said, text):
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
            read[role] = int(digits.replace(",", "").replace("_", ""))
    return read
