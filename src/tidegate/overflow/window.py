"""Learns the true input limit of each endpoint's models from overflow refusals and from successes.

Knows which numbers may be believed and for how long; keeps no clock (the time is given) and no file (`dump`, `load`).
Called by the engine's drivers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Literal, get_args

from tidegate.overflow.verdict import Sent, Verdict
from tidegate.wire.conversation import JsonObject, JsonValue

SMALLEST = 256
"""Local servers do run with windows this small; below 1,024 a number counts only if it fits what was sent."""
_SMALL = 1_024
LARGEST = 20_000_000
_ESTIMATE_ERROR = 3.0
"""How far the size we estimated may be from the provider's count."""
_ALIKE = 1.5
"""Sizes refused without a number that differ by no more than this speak of the same limit."""
_LONGEST_NAME = 1_024

Source = Literal["stated", "refused", "filled"]
"""A refusal stated the limit; one without numbers was of this size; or an answer ended because the window was full."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What is known of one endpoint's model. Tokens; times as they were given."""

    endpoint: str
    model: str
    limit: int | None = None
    source: Source = "stated"
    learned_at: float = 0.0
    times: int = 0
    """How often refusals have agreed on the limit."""
    doubted: int | None = None
    """A limit below what has succeeded here, believed when it comes a second time."""
    succeeded: int = 0
    """Input tokens of the largest success since the limit was learned."""


class Windows:
    """Input limits in tokens, per endpoint and model. In memory, bounded; the least recently touched goes first."""

    def __init__(self, *, size: int = 4096, lasts: float = 7 * 86_400.0, lasts_unstated: float = 3_600.0) -> None:
        """`lasts`: seconds after which a limit is forgotten; `lasts_unstated`: one that a single refusal without
        numbers showed, since compacting below it means that no success can lift it."""
        self._size = size
        self._lasts = lasts
        self._lasts_unstated = lasts_unstated
        self._known: OrderedDict[tuple[str, str], Learned] = OrderedDict()
        self.changes = 0
        """Grows with each change, so that a keeper knows when to `dump` again."""

    def learn(self, endpoint: str, model: str, verdict: Verdict, sent: Sent | None = None, *, now: float = 0.0) -> bool:
        """Take a limit from an overflow verdict; whether one was taken.

        A stated limit is taken, where none is stated the size of what was refused: no limit can be above it. So is the
        window that the refusal of an output limit states beside the input's size. Refused: other kinds, uncertain
        verdicts, numbers no window has, numbers at odds with what was sent, and a first report of a limit below what
        has succeeded here (a fallback's absurd limit).
        """
        if verdict.kind not in ("overflow", "output_limit") or not verdict.certain:
            return False
        known = self._get(endpoint, model)
        if verdict.kind == "output_limit":
            # Input and output together did not fit a window that is stated: its size all the same.
            stated = verdict.window if verdict.input_tokens is not None else None
            return stated is not None and _plausible(stated, verdict, sent) and self._take(known, stated, "stated", now)
        stated = verdict.input_limit or verdict.window
        if stated is not None:
            return _plausible(stated, verdict, sent) and self._take(known, stated, "stated", now)
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
        if input_tokens <= known.succeeded:
            return
        if known.limit is not None and input_tokens > known.limit:
            known = replace(known, limit=None, times=0, learned_at=now)
        self._put(replace(known, succeeded=input_tokens))

    def filled(self, endpoint: str, model: str, tokens: int, *, now: float = 0.0) -> None:
        """An answer was cut because input and output together, `tokens`, filled the window: that is its size."""
        known = self._get(endpoint, model)
        if SMALLEST <= tokens <= LARGEST and tokens > known.succeeded and (known.limit is None or tokens < known.limit):
            self._put(replace(known, limit=tokens, source="filled", learned_at=now, times=1))

    def limit(self, endpoint: str, model: str, *, now: float = 0.0) -> int | None:
        """The learned limit, or None where there is none or it is too old."""
        known = self._known.get((endpoint, model))
        if known is None or known.limit is None or self._stale(known, now):
            return None
        return known.limit

    def __iter__(self) -> Iterator[Learned]:
        """What is known, for diagnostics; the least recently touched first, old limits included."""
        return iter(tuple(self._known.values()))

    def dump(self) -> JsonObject:
        """All that is known, as JSON, for `load` after a restart. Names endpoints and models, nothing else."""
        kept: list[JsonValue] = [
            {name: value for name in _FIELDS if (value := getattr(known, name)) != _DEFAULTS.get(name)}
            for known in self
        ]
        return {"version": 1, "windows": kept}

    def load(self, state: JsonValue) -> int:
        """Take up what `dump` gave, where it is newer than what is known here; how much was. What is no dump of this
        version, or of no sense in it, is left out."""
        entries = state.get("windows") if isinstance(state, dict) and state.get("version") == 1 else None
        if not isinstance(entries, list):
            return 0
        taken = 0
        for entry in entries[-self._size :]:
            learned = _read(entry)
            if learned is not None and learned.learned_at >= self._get(learned.endpoint, learned.model).learned_at:
                self._put(learned)
                taken += 1
        return taken

    def _take(self, known: Learned, limit: int, source: Source, now: float) -> bool:
        repeated = known.doubted == limit or (source == "refused" and _alike(known.doubted, limit))
        if limit <= known.succeeded and not repeated:
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
                times=known.times + 1 if again else 1,
            )
        )
        return True

    def _stale(self, known: Learned, now: float) -> bool:
        weak = known.source == "refused" and known.times < 2
        return now - known.learned_at > (self._lasts_unstated if weak else self._lasts)

    def _get(self, endpoint: str, model: str) -> Learned:
        return self._known.get((endpoint, model)) or Learned(endpoint, model)

    def _put(self, known: Learned) -> None:
        key = known.endpoint, known.model
        self._known[key] = known
        self._known.move_to_end(key)
        self.changes += 1
        while len(self._known) > self._size:
            self._known.popitem(last=False)


_FIELDS = tuple(field.name for field in fields(Learned))
_DEFAULTS = {field.name: field.default for field in fields(Learned)}


def _plausible(stated: int, verdict: Verdict, sent: Sent | None) -> bool:
    if not SMALLEST <= stated <= LARGEST:
        return False
    counted = verdict.input_tokens
    if counted is not None and counted + (verdict.output_requested or 0) < stated:
        return False
    if sent is None or sent.tokens is None:
        return stated >= _SMALL
    # what was sent must have been able to exceed the limit
    return stated <= sent.tokens * _ESTIMATE_ERROR + (sent.output_limit or 0)


def _alike(one: int | None, other: int) -> bool:
    """Whether two sizes that were refused without a number speak of one limit."""
    return one is not None and max(one, other) <= min(one, other) * _ALIKE


def _read(entry: JsonValue) -> Learned | None:
    """An entry of a dump; None where it is none."""
    if not isinstance(entry, dict):
        return None
    endpoint, model = entry.get("endpoint"), entry.get("model")
    source = next((known for known in get_args(Source) if known == entry.get("source", "stated")), None)
    if not isinstance(endpoint, str) or not isinstance(model, str) or len(endpoint) + len(model) > _LONGEST_NAME:
        return None
    numbers = {name: entry.get(name) for name in ("limit", "doubted", "succeeded", "times")}
    learned_at = entry.get("learned_at", 0.0)
    if (
        source is None
        or not isinstance(learned_at, int | float)
        or not all(_is_size(number) for number in numbers.values())
    ):
        return None
    sizes = {name: number for name, number in numbers.items() if isinstance(number, int)}
    return Learned(
        endpoint,
        model,
        limit=sizes.get("limit"),
        source=source,
        learned_at=float(learned_at),
        times=sizes.get("times", 0),
        doubted=sizes.get("doubted"),
        succeeded=sizes.get("succeeded", 0),
    )


def _is_size(value: JsonValue) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 < value <= LARGEST)
