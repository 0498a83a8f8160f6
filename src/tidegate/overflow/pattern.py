"""Patterns of rules: numbers marked by role, compiled when a literal they need is found, and unable to blow up.

Knows regular expressions; not what a rule means. Called by `rules`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tidegate.overflow.counts import NUMBER
from tidegate.overflow.text import STEM, Text

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
class Need:
    """What must be in a text for a pattern to match: one of the pattern's needs, all of this one's parts."""

    anchor: str
    words: frozenset[bytes] = frozenset()
    stem: bytes = b""
    """The beginning of one more word."""


class Pattern:
    """A regular expression over lower-cased text, compiled when what it needs is first found.

    A literal it needs begins where a word begins: `exceed` is looked for in "exceeds", not in "unexceeded".
    """

    __slots__ = ("_compiled", "anchors", "needs", "roles", "source", "written")

    def __init__(self, source: str) -> None:
        """`source` marks numbers by role: `<input>`."""
        self.written = source
        self.roles = tuple(_NUMBER.findall(source))
        self.source = _NUMBER.sub(lambda role: f"(?P<{role[1]}>{NUMBER})", source)
        marked = _anchors(_parse(self.source)) or ("",)
        self.needs = tuple(map(_need, marked))
        self.anchors = tuple(need.anchor for need in self.needs)
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


class Index:
    """Tells which of many patterns a text may match, by the words each needs."""

    __slots__ = ("_anchors", "_by_stem", "_by_word", "_foreign", "_stems", "_words")

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        """Patterns are told by their position."""
        by_word: dict[bytes, list[tuple[int, Need]]] = {}
        by_stem: dict[bytes, set[int]] = {}
        self._anchors: list[tuple[int, str]] = []
        self._foreign: list[tuple[int, str]] = []
        for position, pattern in enumerate(patterns):
            for need in pattern.needs:
                if need.words:
                    by_word.setdefault(max(need.words, key=len), []).append((position, need))
                elif need.stem:
                    by_stem.setdefault(need.stem, set()).add(position)
                else:
                    (self._anchors if need.anchor.isascii() else self._foreign).append((position, need.anchor))
        self._by_word = {word: _settled(word, needs) for word, needs in by_word.items()}
        self._by_stem = by_stem
        self._words, self._stems = frozenset(by_word), frozenset(by_stem)

    def among(self, text: Text) -> set[int]:
        """Positions of the patterns whose words are in the text."""
        words = text.words
        possible: set[int] = set()
        for word in self._words & words:
            alone, more = self._by_word[word]
            possible |= alone
            for position, others, stem in more:
                if others <= words and (not stem or stem in text.stems):
                    possible.add(position)
        if self._stems:
            for stem in self._stems & text.stems:
                possible |= self._by_stem[stem]
        for position, anchor in self._anchors if text.ascii else (*self._anchors, *self._foreign):
            if position not in possible and anchor in text.string:
                possible.add(position)
        return possible


def _settled(
    word: bytes, needs: Iterable[tuple[int, Need]]
) -> tuple[frozenset[int], tuple[tuple[int, frozenset[bytes], bytes], ...]]:
    """Of the patterns that need a word: those that need nothing else, and what else the others need."""
    alone = frozenset(position for position, need in needs if need.words == {word} and not need.stem)
    more = ((position, need.words - {word}, need.stem) for position, need in needs if position not in alone)
    return alone, tuple(more)


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


_BEGIN, _END, _EDGE = "\2", "\1", "\0"
"""Stand around a literal: the part of the pattern it is of begins or ends there; a word begins or ends there."""
_MARKS = _BEGIN + _END + _EDGE


def _anchors(parsed: Any) -> tuple[str, ...]:
    """Literals of which every match contains at least one; of several such sets the one that narrows most, or none."""
    candidates: list[tuple[str, ...]] = []
    run = _BEGIN
    for op, value in [*parsed, ("END", None)]:
        name = str(op)
        if name == "LITERAL":
            run += chr(value)
            continue
        edge = (name == "AT" and str(value) == "AT_BOUNDARY") or (name == "IN" and _separates(value))
        follows = _END if name == "END" else _EDGE if edge else ""
        literal = _size(run) > 0
        if literal:
            candidates.append((run + follows,))
        elif candidates:
            candidates[-1] = tuple(anchor.replace(_END, follows) for anchor in candidates[-1])
        if name in ("AT", "END"):
            run = ("" if literal else run) + (_EDGE if edge else "")
            continue
        candidates.append(tuple(_after(run, anchor) for anchor in _inside(name, value)))
        run = _EDGE if edge else ""
    best = max(candidates, key=lambda anchors: min(map(_worth, anchors), default=0), default=())
    return tuple(dict.fromkeys(best)) if best and all(map(_size, best)) else ()


def _separates(choice: Any) -> bool:
    """Whether all characters of a class stand between words: `[- _]`."""
    return all(str(op) == "LITERAL" and not _WORD.match(chr(value)) for op, value in choice)


def _worth(marked: str) -> float:
    """How much a literal narrows a search: by its size, and more where its words can be looked up."""
    need = _need(marked)
    return _size(marked) + (100 if need.words or need.stem else 0)


def _inside(name: str, value: Any) -> tuple[str, ...]:
    """The anchors of a group, of a choice or of what is repeated; none of anything else."""
    if name == "SUBPATTERN":
        return _anchors(value[3])
    if name == "BRANCH":
        branches = [_anchors(branch) for branch in value[1]]
        return tuple(anchor for branch in branches for anchor in branch) if all(branches) else ()
    if name == "MAX_REPEAT" and value[0] > 0:
        return tuple(anchor.replace(_END, "") for anchor in _anchors(value[2]))
    return ()


def _after(run: str, anchor: str) -> str:
    """An anchor with the literal right before it, where it stands at the beginning of its group."""
    return run + anchor[1:] if anchor.startswith(_BEGIN) else anchor


def _size(anchor: str) -> int:
    return len(anchor.strip(_MARKS))


def _need(marked: str) -> Need:
    """The words of an anchor: whole ones, and the beginning of the last where it may go on."""
    anchor = marked.strip(_MARKS)
    if not anchor.isascii():
        return Need(anchor)
    words = [word.encode() for word in _WORD.findall(anchor)]
    if words and marked[0] not in _MARKS and _WORD.match(anchor):
        del words[0]  # it may begin earlier
    last = b""
    if words and not marked.endswith(_EDGE) and _WORD.match(anchor[-1]):
        last = words.pop()
    return Need(anchor, frozenset(words), last[:STEM] if len(last) >= STEM else b"")


_WORD = re.compile(r"[a-z0-9]+")


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
