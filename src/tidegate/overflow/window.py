"""Learns the true input limit of each endpoint's models from overflow refusals and from successes.

Knows which numbers may be believed; keeps no clock (the time is given) and no file. Called by the engine's drivers.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

from tidegate.overflow.verdict import Sent, Verdict

SMALLEST = 256
"""Local servers do run with windows this small; below 1,024 a number counts only if it fits what was sent."""
_SMALL = 1_024
LARGEST = 20_000_000
_ESTIMATE_ERROR = 3.0
"""How far the size we estimated may be from the provider's count."""


@dataclass(frozen=True, slots=True)
class _Known:
    limit: int | None = None
    stated_at: float = 0.0
    doubted: int | None = None
    """A limit below what has succeeded here, believed when it is stated a second time."""
    succeeded: int = 0
    """Input tokens of the largest success since the limit was learned."""


class Windows:
    """Input limits in tokens, per endpoint and model. In memory, bounded; the least recently touched goes first."""

    def __init__(self, *, size: int = 4096, lasts: float = 7 * 86_400.0) -> None:
        """`lasts`: seconds after which a stated limit is forgotten."""
        self._size = size
        self._lasts = lasts
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()

    def learn(self, endpoint: str, model: str, verdict: Verdict, sent: Sent | None = None, *, now: float = 0.0) -> bool:
        """Take a stated limit from an overflow verdict; whether it was taken.

        Refused: other kinds, uncertain verdicts, numbers no window has, numbers at odds with what was sent, and a
        first report of a limit below what has succeeded here (F82: a fallback's absurd limit).
        """
        stated = verdict.input_limit or verdict.window
        if verdict.kind != "overflow" or not verdict.certain or stated is None or not _plausible(stated, verdict, sent):
            return False
        known = self._get(endpoint, model)
        if stated <= known.succeeded and known.doubted != stated:
            self._put(endpoint, model, replace(known, doubted=stated))
            return False
        self._put(endpoint, model, _Known(limit=stated, stated_at=now))
        return True

    def succeeded(self, endpoint: str, model: str, input_tokens: int, *, now: float = 0.0) -> None:
        """A request of this size was answered: a smaller limit is forgotten."""
        known = self._get(endpoint, model)
        if input_tokens <= known.succeeded:
            return
        known = replace(known, succeeded=input_tokens)
        if known.limit is not None and input_tokens > known.limit:
            known = replace(known, limit=None, stated_at=now)
        self._put(endpoint, model, known)

    def filled(self, endpoint: str, model: str, tokens: int, *, now: float = 0.0) -> None:
        """An answer was cut because input and output together, `tokens`, filled the window: that is its size."""
        known = self._get(endpoint, model)
        if SMALLEST <= tokens <= LARGEST and tokens > known.succeeded and (known.limit is None or tokens < known.limit):
            self._put(endpoint, model, replace(known, limit=tokens, stated_at=now))

    def limit(self, endpoint: str, model: str, *, now: float = 0.0) -> int | None:
        """The learned limit, or None where there is none or it is too old."""
        known = self._known.get((endpoint, model))
        if known is None or known.limit is None or now - known.stated_at > self._lasts:
            return None
        return known.limit

    def _get(self, endpoint: str, model: str) -> _Known:
        return self._known.get((endpoint, model), _Known())

    def _put(self, endpoint: str, model: str, known: _Known) -> None:
        self._known[endpoint, model] = known
        self._known.move_to_end((endpoint, model))
        while len(self._known) > self._size:
            self._known.popitem(last=False)


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
