"""What is known of one endpoint's model, what that makes of a table's sizes, and how two who know it put it together.

Knows values and their order of precedence; not what may be believed (`window`). Called by `window` and the stores.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal, Protocol, get_args

from tidegate.wire.conversation import JsonObject, JsonValue

SMALLEST = 256
"""Local servers do run with windows this small; below 1,024 a number counts only if it fits what was sent."""
LARGEST = 20_000_000
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
    succeeded_at: float = 0.0
    of_input: bool = False
    """The limit was stated for the input alone: what the answer takes does not count into it."""


class Sizes(Protocol):
    """What tables say of a model: the user's settings, a provider file, a server's API, litellm's table. Tokens."""

    @property
    def window(self) -> int | None:
        """The context window."""
        ...

    @property
    def input_limit(self) -> int | None:
        """Input accepted, where it is less than the window or the window is unknown."""
        ...

    @property
    def own_window(self) -> bool:
        """The user set the window: it may be smaller than the model's on purpose, and nothing raises it."""
        ...

    @property
    def own_input_limit(self) -> bool:
        """The same of the input limit."""
        ...

    @property
    def told_at(self) -> float:
        """When the server itself told the sizes, seconds since the epoch; 0 where it did not. What succeeded before
        then, it may have succeeded with another configuration."""
        ...


def effective(table: Sizes, learned: Learned | None, succeeded: int = 0) -> tuple[int | None, int | None]:
    """(window, input limit) that hold, of what tables say, what was learned (None: nothing that still counts) and the
    input tokens that have `succeeded`. Tokens, None where unknown.

    - What the user set is never raised; a learned limit below it lowers it.
    - A table is wrong where more has succeeded than it allows: it allows as much then.
    - A stated limit stands in the table's place, be it higher or lower. One of the input alone is the input limit; the
      window stays, unless it is smaller than that. Where the window turns out to be larger than in the table, the
      table's input limit, which was measured for that window, is left out.
    - A bound that was inferred (a refusal without numbers, an answer that was cut) only lowers.
    """
    window, input_limit = table.window, table.input_limit
    if window and not table.own_window:
        window = max(window, succeeded)
    if input_limit and not table.own_input_limit:
        input_limit = max(input_limit, succeeded)
    if learned is None or learned.limit is None:
        return window, input_limit
    limit = learned.limit
    if learned.of_input:
        if not table.own_window and window:
            window = max(window, limit)
        return window, min(input_limit, limit) if input_limit and table.own_input_limit else limit
    if learned.source != "stated" or table.own_window:
        return min(window, limit) if window else limit, input_limit
    if window and limit > window and not table.own_input_limit:
        input_limit = None
    return limit, input_limit


def merged(one: Learned, other: Learned) -> Learned:
    """What two who have watched the same endpoint's model know together: the newer limit, the larger success since.

    In any order the same, and nothing new where both say the same.
    """
    newer, older = (one, other) if _rank(one) >= _rank(other) else (other, one)
    largest = newer
    if older.succeeded_at >= newer.learned_at:
        largest = max(newer, older, key=lambda known: (known.succeeded, known.succeeded_at))
    both = replace(newer, succeeded=largest.succeeded, succeeded_at=largest.succeeded_at)
    if both.limit is not None and largest is older and both.succeeded > both.limit:
        both = replace(both, limit=None, of_input=False, times=0, learned_at=largest.succeeded_at)
    return both


def _rank(known: Learned) -> tuple[object, ...]:
    """Newer first; the rest decides between equals, so that the order of two does not matter."""
    return (
        known.learned_at, known.times, known.limit or 0, known.of_input, known.source, known.doubted or 0,
        known.succeeded, known.succeeded_at,
    )  # fmt: skip


def as_entry(known: Learned) -> JsonObject:
    """An entry of a dump: what is not as by default."""
    return {name: value for name in _FIELDS if (value := getattr(known, name)) != _DEFAULTS.get(name)}


_FIELDS = tuple(field.name for field in fields(Learned))
_DEFAULTS = {field.name: field.default for field in fields(Learned)}


def nameable(known: Learned) -> bool:
    """Whether its names can be kept: not too long, and text that has an encoding (clients do send half characters)."""
    names = known.endpoint + known.model
    return len(names) <= _LONGEST_NAME and (names.isascii() or names == names.encode(errors="replace").decode())


def from_entry(entry: JsonValue) -> Learned | None:
    """An entry of a dump; None where it is none."""
    if not isinstance(entry, dict):
        return None
    endpoint, model = entry.get("endpoint"), entry.get("model")
    source = next((known for known in get_args(Source) if known == entry.get("source", "stated")), None)
    if not isinstance(endpoint, str) or not isinstance(model, str):
        return None
    numbers = {name: entry.get(name) for name in ("limit", "doubted", "succeeded", "times")}
    times = [_time(entry.get(name, 0.0)) for name in ("learned_at", "succeeded_at")]
    of_input = entry.get("of_input", False)
    if source is None or None in times or not isinstance(of_input, bool):
        return None
    if not all(_is_size(number) for number in numbers.values()):
        return None
    sizes = {name: number for name, number in numbers.items() if isinstance(number, int)}
    read = Learned(
        endpoint,
        model,
        limit=sizes.get("limit"),
        source=source,
        learned_at=times[0] or 0.0,
        times=sizes.get("times", 0),
        doubted=sizes.get("doubted"),
        succeeded=sizes.get("succeeded", 0),
        succeeded_at=times[1] or 0.0,
        of_input=of_input,
    )
    return read if nameable(read) else None


def _time(value: JsonValue) -> float | None:
    """Seconds since the epoch; None for what is no time."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        return None
    return float(value)


def _is_size(value: JsonValue) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 < value <= LARGEST)
