"""Learns the true input limit of each endpoint's models from overflow refusals and from successes.

Knows which numbers may be believed and for how long; keeps no clock (the time is given) and no file (`dump`, `load`).
Called by the engine's drivers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from tidegate.overflow.learned import (
    LARGEST,
    SMALLEST,
    Learned,
    Sizes,
    Source,
    as_entry,
    effective,
    from_entry,
    merged,
    nameable,
)
from tidegate.overflow.verdict import Sent, Verdict
from tidegate.wire.conversation import JsonObject, JsonValue

_SMALL = 1_024
_ESTIMATE_ERROR = 3.0
"""How far the size we estimated may be from the provider's count."""
_ABSURD = 200
"""No conversation grows to so many times its window."""
_SAME = 0.02
_ALIKE = 1.5
"""Sizes refused without a number that differ by no more than this speak of the same limit."""


class Windows:
    """Input limits in tokens, per endpoint and model. In memory, bounded; the least recently touched goes first."""

    def __init__(
        self,
        *,
        size: int = 4096,
        lasts: float = 7 * 86_400.0,
        lasts_once: float = 6 * 3_600.0,
        lasts_unstated: float = 3_600.0,
    ) -> None:
        """`lasts`: seconds after which a limit is forgotten; `lasts_once`: one that a single refusal stated, and that
        nothing else confirmed; `lasts_unstated`: one that a single refusal without numbers showed. Compacting below a
        limit means that no success can lift it: an odd one must not last."""
        self._size = size
        self._lasts = lasts
        self._lasts_once = min(lasts_once, lasts)
        self._lasts_unstated = lasts_unstated
        self._known: OrderedDict[tuple[str, str], Learned] = OrderedDict()
        self._unsaved: set[tuple[str, str]] = set()
        self.changes = 0
        """How often something was learned: as long as it is the same, so are the answers at one time."""

    def learn(self, endpoint: str, model: str, verdict: Verdict, sent: Sent | None = None, *, now: float = 0.0) -> bool:
        """Take a limit from an overflow verdict; whether one was taken.

        A stated limit is taken, where none is stated the size of what was refused: no limit can be above it. So is the
        window that the refusal of an output limit states beside the input's size. Refused: other kinds, uncertain
        verdicts, numbers no window has, numbers at odds with what was sent, and a first report of a limit below what
        has succeeded here (a fallback's absurd limit). A stated limit is confirmed by a second refusal that states it,
        or by the window that was known beforehand (`sent.window`).
        """
        if verdict.kind not in ("overflow", "output_limit") or not verdict.certain:
            return False
        known = self._get(endpoint, model)
        if verdict.kind == "output_limit":
            # Input and output together did not fit a window that is stated: its size all the same.
            stated = verdict.window if verdict.input_tokens is not None else None
            if stated is None or not _plausible(stated, verdict, sent):
                return False
            return self._take(known, stated, "stated", now, confirmed=_known_before(stated, sent))
        stated = verdict.input_limit or verdict.window
        if stated is not None:
            of_input = verdict.input_limit is not None
            if not _plausible(stated, verdict, sent):
                return False
            return self._take(known, stated, "stated", now, of_input, confirmed=_known_before(stated, sent))
        refused = verdict.input_tokens or (sent.tokens if sent else None)
        if refused is None or not SMALLEST <= refused <= LARGEST:
            return False
        if known.limit is not None and not self._stale(known, now):
            if known.source == "refused":
                return refused <= known.limit and self._take(known, refused, "refused", now)
            if not (refused * _ALIKE <= known.limit and _alike(known.doubted, refused)):
                if refused < known.limit:
                    self._put(replace(known, doubted=refused))
                return False  # the number says more, until twice a much smaller size is refused
        return self._take(known, refused, "refused", now)

    def succeeded(self, endpoint: str, model: str, input_tokens: int, *, now: float = 0.0) -> None:
        """A request of this size was answered: a smaller limit is forgotten."""
        known = self._get(endpoint, model)
        if input_tokens <= self._success(known, now):
            return
        if known.limit is not None and input_tokens > known.limit:
            known = replace(known, limit=None, of_input=False, times=0, learned_at=now)
        self._put(replace(known, succeeded=input_tokens, succeeded_at=now))

    def filled(self, endpoint: str, model: str, tokens: int, *, now: float = 0.0) -> None:
        """An answer was cut because input and output together, `tokens`, filled the window: that is its size."""
        known = self._get(endpoint, model)
        above = tokens > self._success(known, now)
        if SMALLEST <= tokens <= LARGEST and above and (known.limit is None or tokens < known.limit):
            self._put(replace(known, limit=tokens, of_input=False, source="filled", learned_at=now, times=1))

    def limit(self, endpoint: str, model: str, *, now: float = 0.0) -> int | None:
        """The learned limit, or None where there is none or it is too old."""
        known = self._known.get((endpoint, model))
        if known is None or known.limit is None or self._stale(known, now):
            return None
        return known.limit

    def within(self, endpoint: str, model: str, table: Sizes, *, now: float = 0.0) -> tuple[int | None, int | None]:
        """(window, input limit) to go by: what the tables say, put right by what is known here. See `effective`."""
        known = self._known.get((endpoint, model))
        if known is None:
            return table.window, table.input_limit
        success = self._success(known, now) if known.succeeded_at >= table.told_at else 0
        return effective(table, None if known.limit is None or self._stale(known, now) else known, success)

    def changed(self) -> tuple[Learned, ...]:
        """What has changed since this was asked last, for a keeper that saves entry by entry."""
        keys, self._unsaved = self._unsaved, set()
        return tuple(known for key in keys if (known := self._known.get(key)) and nameable(known))

    def unsaved(self, entries: Iterable[Learned]) -> None:
        """These could not be saved: they count as changed again."""
        self._unsaved |= {(entry.endpoint, entry.model) for entry in entries}

    def __iter__(self) -> Iterator[Learned]:
        """What is known, for diagnostics; the least recently touched first, old limits included."""
        return iter(tuple(self._known.values()))

    def dump(self) -> JsonObject:
        """All that is known, as JSON, for `load` after a restart. Names endpoints and models, nothing else."""
        return {"version": 1, "windows": [as_entry(known) for known in self]}

    def load(self, state: JsonValue) -> int:
        """Take up what `dump` gave, where it says more than what is known here (see `merged`); how much did. What is no
        dump of this version, or of no sense in it, is left out."""
        entries = state.get("windows") if isinstance(state, dict) and state.get("version") == 1 else None
        if not isinstance(entries, list):
            return 0
        return self.take_in(learned for entry in entries[-self._size :] if (learned := from_entry(entry)) is not None)

    def take_in(self, entries: Iterable[Learned]) -> int:
        """The same of entries that were saved."""
        taken = 0
        for learned in entries:
            key = learned.endpoint, learned.model
            known = self._known.get(key)
            both = learned if known is None else merged(known, learned)
            if both != known:
                waits = key in self._unsaved
                self._put(both)
                if both == learned and not waits:
                    self._unsaved.discard(key)
                taken += 1
        return taken

    def _take(
        self, known: Learned, limit: int, source: Source, now: float, of_input: bool = False, *, confirmed: bool = False
    ) -> bool:
        repeated = known.doubted == limit or (source == "refused" and _alike(known.doubted, limit))
        if limit <= self._success(known, now) and not repeated:
            self._put(replace(known, doubted=limit))
            return False
        again = known.source == source and (
            known.limit == limit or (source == "refused" and _alike(known.limit, limit))
        )
        self._put(
            Learned(
                known.endpoint,
                known.model,
                limit=limit,
                source=source,
                learned_at=now,
                times=known.times + 1 if again else 2 if (confirmed or repeated) else 1,
                of_input=of_input,
            )
        )
        return True

    def _stale(self, known: Learned, now: float) -> bool:
        lasts = self._lasts
        if known.times < 2:
            lasts = {"refused": self._lasts_unstated, "stated": self._lasts_once}.get(known.source, lasts)
        return now - known.learned_at > lasts

    def _success(self, known: Learned, now: float) -> int:
        """Input tokens that have succeeded not too long ago."""
        return known.succeeded if now - known.succeeded_at <= self._lasts else 0

    def _get(self, endpoint: str, model: str) -> Learned:
        return self._known.get((endpoint, model)) or Learned(endpoint, model)

    def _put(self, known: Learned) -> None:
        key = known.endpoint, known.model
        self.changes += 1
        self._known[key] = known
        self._known.move_to_end(key)
        self._unsaved.add(key)
        while len(self._known) > self._size:
            gone, _ = self._known.popitem(last=False)
            self._unsaved.discard(gone)


def _plausible(stated: int, verdict: Verdict, sent: Sent | None) -> bool:
    if not SMALLEST <= stated <= LARGEST:
        return False
    counted = verdict.input_tokens
    if counted is not None and counted + (verdict.output_requested or 0) < stated:
        return False
    if sent is None or sent.tokens is None:
        return stated >= _SMALL
    if max(stated, counted or 0) * _ABSURD < sent.tokens:
        return False  # a number read wrong, or of something else
    # what was sent must have been able to exceed the limit
    return stated <= sent.tokens * _ESTIMATE_ERROR + (sent.output_limit or 0)


def _known_before(stated: int, sent: Sent | None) -> bool:
    """Whether the window that is stated is the one that tables, the user or the server's API had told."""
    return sent is not None and sent.window is not None and abs(stated - sent.window) <= _SAME * sent.window


def _alike(one: int | None, other: int) -> bool:
    """Whether two sizes that were refused without a number speak of one limit."""
    return one is not None and max(one, other) <= min(one, other) * _ALIKE
