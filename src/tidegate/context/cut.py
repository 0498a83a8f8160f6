"""Where a history may be cut so that both sides stay legal, and where it should be.

Knows facts and sizes of items, by position; knows no text, no bytes and no API. Called by the engine.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import msgspec

from tidegate.wire.conversation import Facts


@dataclass(frozen=True, slots=True)
class Cut:
    """A place to cut: items before `at` go, but for those retained."""

    at: int
    retained: tuple[int, ...]
    """Positions before `at` that are sent again verbatim, in order."""
    kept_tokens: int
    """Estimated tokens of the items from `at` on and of those retained."""


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Which items hold a call and its result. `answers` has (call position, result position), `open_calls`
    the positions of calls nobody answered, `orphans` those of results nobody asked for."""

    answers: tuple[tuple[int, int], ...]
    open_calls: tuple[int, ...]
    orphans: tuple[int, ...]


def links(facts: Sequence[Facts]) -> list[int]:
    """For every position 0 … n the earliest position it must stay with (itself where it is free).

    The last entry stands for the end: it is less than n where the history ends with something unfinished.
    """
    n = len(facts)
    back = list(range(n + 1))
    pairs = _pairs(facts)
    for earlier, later in (*((i, n) for i in _in_flight(facts, pairs.open_calls)), *_ties(facts, pairs)):
        back[later] = min(back[later], earlier)
    return back


def _ties(facts: Sequence[Facts], pairs: _Pairs) -> Iterator[tuple[int, int]]:
    """All that must stay together, whatever comes next: more items may add ties and take none away."""
    yield from pairs.answers
    # A result whose call the client itself has lost is never the first item kept.
    yield from ((i - 1, i) for i in pairs.orphans if i)
    yield from ((i, i + 1) for i, item in enumerate(facts) if item.leans_on_next)
    yield from _runs(facts)
    yield from _mentions(facts)


def safe_cuts(facts: Sequence[Facts]) -> list[bool]:
    """For every position 0 … n whether the history may be cut before it.

    No call is parted from its result, nothing unfinished is left behind, and items that name each other stay
    together. The first is always true; the last is false where a call still waits for its result.
    """
    back = links(facts)
    safe = [True] * len(back)
    earliest = len(back)
    for i in range(len(back) - 1, -1, -1):
        earliest = min(earliest, back[i])
        safe[i] = earliest >= i
    return safe


class Seam(msgspec.Struct, frozen=True, eq=False):
    """What is known of cutting a history at one place: of ties that cross it, and of what was made of the items before
    it. Of use to a longer history that begins alike."""

    at: int
    seen: int
    """How many items were looked at."""
    tied: bool
    """Something ties an item before the cut to one after it."""
    called: frozenset[str]
    """Names of the calls made before the cut."""
    named: bool
    """An item before the cut mentions others, so any later one may be what it means."""
    newest: int = -1
    words: tuple[int, ...] | None = None
    """Of the user's newest words, at `newest` before the cut, and what belongs to them; None where not yet asked."""
    speaks: int = -1
    """The first item after the cut in which the user speaks, or the assistant without calling a tool; -1 where neither
    has come yet."""
    made: object = None
    """Whatever its user wants to find again that hangs on the items before the cut and the one after it alone."""
    made_bytes: int = 0

    def __repr__(self) -> str:
        """What may be shown of it."""
        return f"Seam(at={self.at}, seen={self.seen}, tied={self.tied})"

    def cut(self, length: int) -> Seam | None:
        """What still holds of the first `length` items, None where nothing does."""
        if length <= self.at or (self.tied and length < self.seen):
            return None
        if length >= self.seen:
            return self
        return msgspec.structs.replace(self, seen=length, speaks=self.speaks if self.speaks < length else -1)

    def waits(self, facts: Sequence[Facts], over: int) -> bool:
        """Whether a call before the cut, at `over` or later, still waits for its result."""
        return any(over <= i < self.at for i in _pairs(facts).open_calls)

    def with_words(self, facts: Sequence[Facts], newest: int) -> Seam:
        """With the user's newest words: nothing crosses the cut, so what belongs to them lies before it too."""
        return msgspec.structs.replace(self, newest=newest, words=newest_words(facts[: self.at]))

    def longer(self, new: Sequence[Facts]) -> Seam | None:
        """The seam of a longer history, by its new items alone; None where one of them names something from before the
        cut, so that all must be looked at."""
        if not self.tied:
            for item in new:
                if item.mentions or not self.called.isdisjoint(item.results):
                    return None
                if self.named and (item.ids or item.calls or item.results):
                    return None
        speaks = self.speaks
        if speaks < 0 <= (place := _speaks(new)):
            speaks = self.seen + place
        return msgspec.structs.replace(self, seen=self.seen + len(new), speaks=speaks)


def seam(facts: Sequence[Facts], at: int) -> Seam:
    """The seam before position `at` (from 1 to n-1)."""
    before, speaks = facts[:at], _speaks(facts[at:])
    return Seam(
        at,
        len(facts),
        tied=any(earlier < at <= later for earlier, later in _ties(facts, _pairs(facts))),
        called=frozenset(name for item in before for name in item.calls),
        named=any(item.mentions for item in before),
        speaks=at + speaks if speaks >= 0 else -1,
    )


def _speaks(facts: Sequence[Facts]) -> int:
    for i, item in enumerate(facts):
        if item.role == "user" or (item.role == "assistant" and item.kind == "message" and not item.calls):
            return i
    return -1


def groups(facts: Sequence[Facts]) -> list[range]:
    """The history as runs of positions that must stay together, in order and without gaps."""
    n = len(facts)
    starts = [i for i, safe in enumerate(safe_cuts(facts)) if safe and i < n]
    return [range(start, end) for start, end in pairwise([*starts, n])]


def newest_turn(facts: Sequence[Facts]) -> int | None:
    """Position of the newest item with words or media of the user's own, None where there is none."""
    return next((i for i in range(len(facts) - 1, -1, -1) if facts[i].human), None)


def newest_words(facts: Sequence[Facts]) -> tuple[int, ...]:
    """The newest turn of the user with all that can't be without it, nor it without them: the calls that it answers
    and their other results, items that it names, and so on from there. Empty where there is none."""
    newest = newest_turn(facts)
    if newest is None:
        return ()
    item = facts[newest]
    if not (item.calls or item.results or any(other.mentions for other in facts)):
        return (newest,)
    partners: dict[int, set[int]] = defaultdict(set)
    for one, other in (*_pairs(facts).answers, *_runs(facts), *_mentions(facts)):
        partners[one].add(other)
        partners[other].add(one)
    found, todo = {newest}, [newest]
    while todo:
        new = partners[todo.pop()] - found
        found |= new
        todo.extend(new)
    return tuple(sorted(found))


def unanswered(facts: Sequence[Facts], safe: Callable[[int], bool]) -> int:
    """Where that begins which the model has not answered yet: the assistant's last turn and all after it, in whole
    groups; 0 where there is none. `safe` tells where the history may be cut."""
    spoke = next((i for i in range(len(facts) - 1, 0, -1) if facts[i].role == "assistant"), 0)
    return next((i for i in range(spoke, 0, -1) if safe(i)), 0)


def choose(
    facts: Sequence[Facts],
    tokens: Sequence[int],
    *,
    covered: int,
    room: int,
    tail_max: int,
    min_gain: int,
    retain_system_max: int,
    barred: Collection[int] = (),
    keep_last: int | None = None,
    head_max: int | None = None,
    unanswered_max: int = 0,
) -> Cut | None:
    """The earliest legal cut after `covered` that leaves at most `room` and `tail_max` estimated tokens, and no more
    than the last `keep_last` items; where none does, the latest that leaves the newest group whole. None where there
    is no legal cut, or less than `min_gain` tokens go.

    Where no more than `head_max` tokens may go at once, it is the latest cut by which no more do, if that leaves
    `tail_max` at most.

    Results that the model has not answered yet stay, with their calls, though more than `room` or `tail_max` is left
    then, as long as that is `unanswered_max` at most: whatever replaces them, it would answer without having seen them.

    Retained are the newest human item where it lies before the cut, with what it needs to stay legal (the
    calls that it answers, the items that it names), and system items from inside the history, newest first while
    they fit `retain_system_max`. What was covered and retained before is not gained again. `barred` are positions
    where the caller can't cut, whatever ties there are.
    """
    n = len(facts)
    if len(tokens) != n:
        raise ValueError(f"{n} items, but {len(tokens)} sizes")
    safe = safe_cuts(facts)
    candidates = [i for i in range(covered + 1, n) if safe[i] and i not in barred]
    if not candidates:
        return None
    if keep_last is not None:
        candidates = [i for i in candidates if i >= n - keep_last] or candidates[-1:]
    before = [0, *accumulate(tokens)]
    words = newest_words(facts)
    systems = [i for i in range(n - 1, -1, -1) if facts[i].role == "system" and i not in words]
    limit = min(room, tail_max)

    def cut_at(at: int) -> Cut:
        retained = _retained(at, words, systems, tokens, retain_system_max)
        return Cut(at, retained, before[n] - before[at] + sum(tokens[i] for i in retained))

    def gains(cut: Cut) -> bool:
        gone = before[cut.at] - before[covered] - sum(tokens[i] for i in cut.retained if i >= covered)
        return gone >= max(1, min_gain)

    chosen = None
    for at in candidates:
        cut = cut_at(at)
        too_much = head_max is not None and before[at] - before[covered] > head_max
        if chosen and too_much and chosen.kept_tokens <= tail_max:
            break
        chosen = cut
        if chosen.kept_tokens <= limit:
            break
    assert chosen is not None
    fresh = unanswered(facts, safe.__getitem__)
    if chosen.at > fresh and any(item.results for item in facts[fresh:]):
        latest = max((i for i in candidates if i <= fresh), default=None)
        if latest is not None and (cut := cut_at(latest)).kept_tokens <= unanswered_max and gains(cut):
            return cut
    return chosen if gains(chosen) else None


def _retained(
    at: int,
    words: Sequence[int],
    systems: Iterable[int],
    tokens: Sequence[int],
    retain_system_max: int,
) -> tuple[int, ...]:
    # A legal cut has all of them on one side.
    kept = list(words) if words and words[0] < at else []
    left = retain_system_max
    for i in systems:
        if i >= at:
            continue
        left -= tokens[i]
        if left < 0:
            # An older instruction must not outlive the newer one that may have changed it.
            break
        kept.append(i)
    return tuple(sorted(kept))


def _pairs(facts: Sequence[Facts]) -> _Pairs:
    """Pairs each result with the nearest earlier call of its id that is still open, so an id may be used
    again later.

    A second result for a call that has one belongs to that call too. A call and result inside one item are no
    matter of cuts.
    """
    waiting: dict[str, list[int]] = defaultdict(list)
    latest: dict[str, int] = {}
    answers: list[tuple[int, int]] = []
    orphans: list[int] = []
    for i, item in enumerate(facts):
        own = list(item.calls)
        for name in item.results:
            if waiting[name]:
                answers.append((waiting[name].pop(), i))
            elif name in own:
                own.remove(name)
            elif name in latest:
                answers.append((latest[name], i))
            else:
                orphans.append(i)
        for name in own:
            waiting[name].append(i)
            latest[name] = i
    open_calls = sorted({i for positions in waiting.values() for i in positions})
    return _Pairs(tuple(answers), tuple(open_calls), tuple(orphans))


def _in_flight(facts: Sequence[Facts], open_calls: Iterable[int]) -> Iterator[int]:
    """Those open calls whose results may still come: no words of the user and no new assistant turn came
    after them.

    Items of the assistant that follow without anything between are the same turn: parallel calls are one item
    each in Responses.
    """
    n = len(facts)
    latest_human = newest_turn(facts)
    latest_turn = max(
        (i for i in range(1, n) if facts[i].role == "assistant" and facts[i - 1].role != "assistant"),
        default=-1,
    )
    over = max(latest_turn, -1 if latest_human is None else latest_human)
    return (i for i in open_calls if i >= over)


def _runs(facts: Sequence[Facts]) -> Iterator[tuple[int, int]]:
    """Ties thinking to all assistant items that directly follow it.

    Responses: an item that came with reasoning is refused where the reasoning is missing, and the other way round.
    Messages: the API reads neighbouring assistant messages as one turn, and that must begin with its thinking.
    """
    start: int | None = None
    for i, item in enumerate(facts):
        if start is not None and item.role == "assistant":
            yield start, i
        else:
            start = None
        if start is None and (item.kind == "reasoning" or item.thinking):
            start = i


def _mentions(facts: Sequence[Facts]) -> Iterator[tuple[int, int]]:
    """Ties an item of unknown type to the nearest items, before and after it, that bear an id it mentions."""
    mentioned = {name for item in facts for name in item.mentions if name}
    if not mentioned:
        return
    bearers: dict[str, list[int]] = defaultdict(list)
    for i, item in enumerate(facts):
        for name in {*item.ids, *item.calls, *item.results} & mentioned:
            bearers[name].append(i)
    for i, item in enumerate(facts):
        for name in item.mentions:
            others = bearers.get(name, ())
            before, after = bisect_left(others, i), bisect_right(others, i)
            if before:
                yield others[before - 1], i
            if after < len(others):
                yield i, others[after]
