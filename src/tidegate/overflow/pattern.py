"""Patterns of rules: numbers marked by role, compiled when a literal they need is found, and unable to blow up.

Knows regular expressions; not what a rule means. Called by `rules`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

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


class Pattern:
    """A regular expression over lower-cased text, compiled when one of the literals it needs is first found."""

    __slots__ = ("_compiled", "anchors", "source")

    def __init__(self, source: str) -> None:
        """`source` marks numbers by role: `<input>`."""
        self.source = _NUMBER.sub(r"(?P<\1>\\d[\\d,_]{0,14})", source)
        self.anchors = _anchors(_parse(self.source)) or ("",)
        self._compiled: re.Pattern[str] | None = None

    def search(self, text: str) -> re.Match[str] | None:
        """The first match, in a long text looked for around the first few places where an anchor stands."""
        for anchor in self.anchors:
            at = text.find(anchor)
            if at < 0:
                continue
            if self._compiled is None:
                self._compiled = re.compile(self.source, re.MULTILINE)
            if len(text) <= _SHORT or not anchor:
                return self._compiled.search(text, 0, _SHORT)
            for _ in range(_MAX_HITS):
                found = self._compiled.search(text, max(0, at - _REACH), at + _REACH)
                if found:
                    return found
                at = text.find(anchor, at + _REACH // 2)
                if at < 0:
                    break
        return None


@lru_cache(maxsize=4096)
def pattern_of(source: str) -> Pattern:
    """The pattern, made once."""
    return Pattern(source)


def first_of(patterns: Iterable[Pattern], text: str) -> str:
    """The words that the first pattern to match matches, or nothing."""
    for pattern in patterns:
        found = pattern.search(text)
        if found:
            return found[0]
    return ""


def check_pattern(source: str, where: str) -> None:
    """Refuse a pattern that is none or could blow up. Raises `BadRule`, which begins with `where`."""
    try:
        parsed = _parse(Pattern(source).source)
    except (re.error, OverflowError, RecursionError) as error:
        raise BadRule(f"{where}: {error}") from None
    unbounded = _longest(parsed)
    if unbounded is None:
        raise BadRule(f"{where}: every repeat needs an upper bound: {{0,80}} instead of *, {{1,12}} instead of +")
    if unbounded > _MAX_REPEAT:
        raise BadRule(f"{where}: repeats up to {unbounded} characters; allowed: {_MAX_REPEAT}")


_SRE: Any = importlib.import_module("re._parser")
"""The standard library's own parser of patterns: the one that knows what a pattern repeats and needs."""


def _parse(source: str) -> Any:
    return _SRE.parse(source)


def _anchors(parsed: Any) -> tuple[str, ...]:
    """Literals of which every match contains at least one, as long as can be had; none where there is no such set."""
    candidates: list[tuple[str, ...]] = []
    run = ""
    for op, value in parsed:
        name = str(op)
        if name == "LITERAL":
            run += chr(value)
            continue
        candidates.append((run,))
        run = ""
        if name == "SUBPATTERN":
            candidates.append(_anchors(value[3]))
        elif name == "BRANCH":
            branches = [_anchors(branch) for branch in value[1]]
            if all(branches):
                candidates.append(tuple(anchor for branch in branches for anchor in branch))
        elif name == "MAX_REPEAT" and value[0] > 0:
            candidates.append(_anchors(value[2]))
    candidates.append((run,))
    best = max(candidates, key=lambda anchors: min(map(len, anchors), default=0))
    return tuple(dict.fromkeys(best)) if all(best) else ()


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
