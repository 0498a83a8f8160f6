"""The scripted steps: what the next requests get instead of the model's ordinary answer.

Knows steps and their order; a step is chosen by path and by who asks, never by a request header, which a gateway
may strip. Called by the app and the admin routes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from threading import Lock
from typing import Literal, TypeAlias, get_args

from tidegate.simulator.jsontext import JsonObject, JsonValue

Do: TypeAlias = Literal[
    "answer",  # the ordinary answer (with `delay`, or to let one request pass)
    "text",  # these words: `text`
    "echo",  # the request's last words
    "long",  # `tokens` tokens of words
    "tool_call",  # a call of `name` with `arguments`, asked for or not
    "empty",  # an answer without words
    "refusal",  # the API's own refusal
    "refusal_text",  # words that refuse, in an ordinary answer
    "error_text",  # words of an error, in an ordinary answer
    "longer",  # words longer than the request's own last words
    "length",  # an answer cut by its output limit
    "window_exceeded",  # an answer cut because the window ran out
    "no_artifact",  # a 200 that compacted nothing, where a compaction was due; elsewhere the ordinary answer
    "null_artifact",  # a compaction that failed and says so (`content: null`)
    "bad_artifact",  # a compaction whose seal or signature is false
    "two_artifacts",  # two compactions where one was due
    "extra_item",  # a compaction with an assistant message beside it (Responses)
    "unavailable",  # the provider's own "no compaction just now"
    "overflow",  # the profile's overflow refusal, whatever the size
    "error",  # `status`, `body`, `headers`; or inside the stream after `after` events
    "html",  # `status` (502) with a page
    "garbage",  # 200 and no JSON, or no SSE
    "cut",  # the connection breaks after `after` events, or half-way through a JSON body
    "drop",  # the connection closes without an answer
    "hang",  # nothing for `seconds`, then the connection closes
]
DOINGS: tuple[str, ...] = get_args(Do)
PATHS = ("any", "chat", "responses", "messages", "compact", "count")
ASKERS = ("any", "main", "summary", "compaction")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One scripted answer. Steps are used in order; each request takes the first that fits it.

    Raises `ValueError` that names the field and what is allowed.
    """

    do: Do
    path: str = "any"
    """Which API: `chat`, `responses`, `messages`, `compact` (`/responses/compact`), `count` (the counting endpoints) or
    `any` but the last."""
    on: str = "any"
    """`summary` calls, `compaction` calls (the provider's own), `main` requests, or `any`."""
    times: int = 1
    delay: float = 0.0
    """Seconds to wait before the first byte, on top of the setting."""
    status: int = 0
    body: JsonValue = None
    headers: Mapping[str, str] = field(default_factory=dict)
    in_stream: bool = False
    """An error or overflow comes as an event in a 200 stream, if the request streams."""
    event: str = "error"
    """Responses only: the event of an in-stream failure, `error` or `response.failed`."""
    after: int | None = None
    """Events sent before the fault; None: the stream's opening events for an error, half the events for a cut."""
    seconds: float = 3600.0
    text: str = ""
    tokens: int = 1000
    name: str = ""
    arguments: JsonObject = field(default_factory=dict)
    usage: Mapping[str, int] = field(default_factory=dict)
    """`input` and `output` tokens to report instead of the true ones."""

    def __post_init__(self) -> None:
        """Checks names."""
        for name, allowed in (("do", DOINGS), ("path", PATHS), ("on", ASKERS), ("event", EVENTS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}: {getattr(self, name)!r} is not one of {', '.join(allowed)}")
        if self.times < 1:
            raise ValueError(f"times: {self.times} is less than 1")

    def fits(self, path: str, asker: str) -> bool:
        """Whether a request at this path by this asker takes it."""
        at = self.path == path or (self.path == "any" and path != "count")
        return at and self.on in ("any", asker)


EVENTS = ("error", "response.failed")
_NAMES = frozenset(entry.name for entry in fields(Step))


def read_steps(value: JsonValue) -> list[Step]:
    """Steps from JSON: one object or a list of them. Raises `ValueError`."""
    entries = value if isinstance(value, list) else [value]
    steps = []
    for position, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise ValueError(f"step {position}: expected an object")  # noqa: TRY004 - one error type for bad input
        unknown = sorted(set(entry) - _NAMES)
        if unknown:
            raise ValueError(f"step {position}: unknown {unknown[0]!r}; allowed: {', '.join(sorted(_NAMES))}")
        try:
            steps.append(Step(**entry))
        except (TypeError, ValueError) as error:
            raise ValueError(f"step {position}: {error}") from None
    return steps


class Script:
    """The steps still to come. Safe to fill from another thread."""

    def __init__(self, steps: Iterable[Step] = ()) -> None:
        self._lock = Lock()
        self._steps = list(steps)

    def push(self, *steps: Step) -> None:
        """Adds steps at the end."""
        with self._lock:
            self._steps.extend(steps)

    def replace(self, steps: Iterable[Step]) -> None:
        """Takes these steps instead of all others."""
        with self._lock:
            self._steps = list(steps)

    def take(self, path: str, asker: str) -> Step | None:
        """The next step for a request at this path, used up by one."""
        with self._lock:
            for position, step in enumerate(self._steps):
                if step.fits(path, asker):
                    if step.times > 1:
                        self._steps[position] = replace(step, times=step.times - 1)
                    else:
                        del self._steps[position]
                    return step
        return None

    def __len__(self) -> int:
        """Requests that the script still has an answer for."""
        return sum(step.times for step in self._steps)
