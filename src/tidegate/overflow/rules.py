"""Compiles the rules of the provider files: codes and types into tables, patterns when they are first needed.

Knows how a rule matches what a refusal says; not where rules come from, nor what follows from a match. Called by
`classify`, and by `tidegate.providers` to check rules as they are loaded.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from tidegate.overflow.unwrap import Said, unwrap
from tidegate.overflow.verdict import Action, Kind, Refusal

ROLES = (
    "input", "more_input", "floor", "total", "output", "window", "limit", "excess", "cap", "short", "allowance",
    "requested",
)  # fmt: skip
"""What a number in a pattern may mean, written `<input>` there:

`input` tokens of the prompt, `more_input` to be added to them (tools), `floor` "at least so many", `total` prompt and
output, `output` asked for, `window` of prompt and output, `limit` of the prompt alone, `excess` over the limit, `cap`
the largest output allowed, `short` a negative output left over, `allowance` and `requested` of a rate refusal.
"""
_NUMBER = re.compile(rf"<({'|'.join(ROLES)})>")
_MAX_REPEAT = 400
_REACH = 400
"""Characters around an anchor in which a pattern is tried, and the longest span one may match."""
_SHORT = 1200
_MAX_HITS = 8


class BadRule(ValueError):
    """A rule that can't be used. The text names the rule, the field and what is allowed."""


@dataclass(frozen=True, slots=True)
class RuleSpec:
    """One rule of a provider file. All that it names (`code`, `type`, `status`, `pattern`) must hold; of a list, one.

    `pattern` is matched against lower-cased text and marks numbers by role (`ROLES`). `unless` names counter-evidence
    of the shared file, or is a pattern itself; where one is found in the texts, the rule is off.
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
    def _patterns(self) -> tuple[tuple[RuleSpec, Pattern], ...]:
        return tuple(
            (rule, Pattern(rule.pattern))
            for rule in (*self._all, *self._others)
            if rule.pattern and not rule.code and not rule.type
        )

    @cached_property
    def _counter(self) -> Mapping[str, tuple[Pattern, ...]]:
        return {name: tuple(map(Pattern, patterns)) for name, patterns in self._shared.counter.items()}

    @cached_property
    def evidence(self) -> Mapping[str, tuple[Pattern, ...]]:
        """The shared file's `subject`, `relation` and `bound` patterns."""
        parts = ("subject", "relation", "bound")
        return {part: tuple(map(Pattern, self._shared.evidence.get(part, ()))) for part in parts}

    def by_code(self, said: Said, text: str) -> Match | None:
        """The first rule that an error's structured code decides, the innermost code first."""
        return self._structured(said.codes, self._by_code, said, text)

    def by_type(self, said: Said, text: str) -> Match | None:
        """The first rule that an error's type decides, with its status where the rule names one."""
        return self._structured(said.types, self._by_type, said, text)

    def by_pattern(self, said: Said, text: str) -> Iterator[Match]:
        """The rules whose patterns hold, the provider's own first, in the files' order. `text` is lower case."""
        for rule, pattern in self._patterns:
            if rule.status and not _one_in(rule.status, said.statuses):
                continue
            found = pattern.search(text)
            if found and not self.countered(rule.unless, text):
                yield Match(rule, found[0], _numbers(found))

    def numbers(self, text: str) -> Match | None:
        """The first pattern of an overflow or output rule that reads numbers from the text."""
        for rule, pattern in self._patterns:
            if rule.kind in ("overflow", "output_limit") and pattern.reads:
                found = pattern.search(text)
                if found and not self.countered(rule.unless, text):
                    return Match(rule, found[0], _numbers(found))
        return None

    def countered(self, unless: Sequence[str], text: str) -> str:
        """The name of the counter-evidence that is in the text, or nothing."""
        for name in unless:
            patterns = self._counter.get(name)
            if patterns is None:
                patterns = (_pattern(name),)
            if any(pattern.search(text) for pattern in patterns):
                return name
        return ""

    def generic_counter(self, text: str) -> str:
        """Counter-evidence against two-of-three evidence."""
        return self.countered(tuple(self._shared.evidence.get("unless", ())), text)

    def _structured(
        self, names: Sequence[str], table: Mapping[str, tuple[RuleSpec, ...]], said: Said, text: str
    ) -> Match | None:
        for name in names:
            for rule in table.get(name, ()):
                if rule.type and rule.code and not set(rule.type) & set(said.types):
                    continue
                if rule.status and not _one_in(rule.status, said.statuses):
                    continue
                found = _pattern(rule.pattern).search(text) if rule.pattern else None
                if (rule.pattern and not found) or self.countered(rule.unless, text):
                    continue
                return Match(rule, name, _numbers(found) if found else {})
        return None


class Pattern:
    """A regular expression over lower-cased text, compiled when its anchor (a literal it needs) is first found."""

    __slots__ = ("_anchor", "_compiled", "reads", "source")

    def __init__(self, source: str) -> None:
        self.source = _NUMBER.sub(r"(?P<\1>\\d[\\d,_]{0,14})", source)
        self.reads = self.source != source
        self._anchor: str | None = None
        self._compiled: re.Pattern[str] | None = None

    def search(self, text: str) -> re.Match[str] | None:
        """The first match, looked for around the first few places where the anchor stands."""
        if self._anchor is None:
            self._anchor = _anchor(self.source)
        anchor = self._anchor
        at = text.find(anchor)
        if at < 0:
            return None
        if self._compiled is None:
            self._compiled = re.compile(self.source, re.MULTILINE)
        if len(text) <= _SHORT or not anchor:
            return self._compiled.search(text, 0, _SHORT if not anchor else len(text))
        for _ in range(_MAX_HITS):
            found = self._compiled.search(text, max(0, at - _REACH), at + _REACH)
            if found:
                return found
            at = text.find(anchor, at + _REACH // 2)
            if at < 0:
                break
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
            _check_pattern(rule.pattern, f"{where}: pattern")
        for name in rule.unless:
            if name not in shared.counter:
                _check_pattern(name, f"{where}: unless")
        _check_sample(rule, compiled, where)
    for name, patterns in (*shared.counter.items(), *shared.evidence.items()):
        for pattern in patterns:
            if pattern not in shared.counter:
                _check_pattern(pattern, f"counter.{name}")


def _check_sample(rule: RuleSpec, rules: Rules, where: str) -> None:
    status = rule.status[0] if rule.status else 400
    said = unwrap(Refusal(status, rule.sample))
    text = said.text
    own = Rules((rule,), RulesFile(rules._shared.counter))
    held = own.by_code(said, text) or own.by_type(said, text) or next(own.by_pattern(said, text), None)
    if held is None:
        raise BadRule(f"{where}: sample: is not matched by the rule (patterns see lower-cased text)")
    for other in rules.by_pattern(said, text):
        if other.rule.kind == rule.kind:
            break
        if not (rule.code or rule.type):
            raise BadRule(f"{where}: sample: is matched first by {other.rule.id!r} of kind {other.rule.kind!r}")


def _check_pattern(source: str, where: str) -> None:
    expanded = Pattern(source).source
    try:
        parsed = _parse(expanded)
    except re.error as error:
        raise BadRule(f"{where}: {error}") from None
    unbounded = _longest(parsed)
    if unbounded is None:
        raise BadRule(f"{where}: every repeat needs an upper bound: {{0,80}} instead of *, {{1,12}} instead of +")
    if unbounded > _MAX_REPEAT:
        raise BadRule(f"{where}: repeats up to {unbounded} characters; allowed: {_MAX_REPEAT}")


@lru_cache(maxsize=512)
def _pattern(source: str) -> Pattern:
    return Pattern(source)


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


_SRE: Any = importlib.import_module("re._parser")
"""The standard library's own parser of patterns: the one that knows what a pattern repeats and needs."""


def _parse(source: str) -> Any:
    return _SRE.parse(source)


def _anchor(source: str) -> str:
    """The longest literal every match contains; empty where there is none."""
    runs = [""]
    _collect_literals(_parse(source), runs)
    return max(runs, key=len)


def _collect_literals(parsed: Any, runs: list[str]) -> None:
    for op, value in parsed:
        name = str(op)
        if name == "LITERAL":
            runs[-1] += chr(value)
        elif name == "SUBPATTERN":
            _collect_literals(value[3], runs)
        else:
            runs.append("")
            if name == "MAX_REPEAT" and value[0] > 0:
                _collect_literals(value[2], runs)
                runs.append("")


def _longest(parsed: Any) -> int | None:
    """The most characters a match can have; None where there is no bound."""
    total = 0
    for op, value in parsed:
        name = str(op)
        inner: list[int | None] = [1]
        times = 1
        if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            times = int(value[1])
            inner = [_longest(value[2])]
            if times >= int(_SRE.MAXREPEAT):
                return None
        elif name == "SUBPATTERN":
            inner = [_longest(value[3])]
        elif name == "BRANCH":
            inner = [_longest(branch) for branch in value[1]]
        elif name in ("ASSERT", "ASSERT_NOT"):
            inner = [_longest(value[1])]
        elif name == "AT":
            inner = [0]
        if any(length is None for length in inner):
            return None
        total += times * max(length for length in inner if length is not None)
    return total
