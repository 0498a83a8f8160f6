"""What a provider is likely to have in its prompt cache, and which summary calls ride because of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from engine_world import SHORT, Exchange, Gateway, Provider, new_kit, reply_of, target_of
from stage import TENANT

from tidegate.compactors.ride import Caching
from tidegate.compactors.strategy import Call, Reply
from tidegate.engine import warmth
from tidegate.engine.effects import Deliver, Finish
from tidegate.engine.exchange import exchange
from tidegate.engine.request import Request
from tidegate.engine.warmth import Sending, Warmth
from tidegate.wire import read
from tidegate.wire.conversation import Usage

Json = dict[str, Any]
KEY = (b"bucket", b"", "http://up/v1", "m")
FIVE = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}


def test_what_was_sent_is_remembered() -> None:
    known = Warmth()
    assert known.sendings(KEY) == ()
    known.answered(KEY, 3, 0, now=10.0)
    known.answered(KEY, 5, 700, now=20.0)
    assert known.sendings(KEY) == (Sending(3, 10.0), Sending(5, 20.0))
    assert known.sendings((b"another", *KEY[1:])) == ()


def test_a_provider_that_reports_nothing_cached_is_not_trusted_until_it_does() -> None:
    known = Warmth()
    known.answered(KEY, 3, 0, now=10.0)
    known.answered(KEY, 5, 0, now=20.0)
    assert known.sendings(KEY) == ()
    known.answered(KEY, 7, 700, now=30.0)
    assert known.sendings(KEY)[-1] == Sending(7, 30.0)


def test_memory_is_bounded() -> None:
    known = Warmth(size=3)
    for n in range(5):
        known.answered((bytes([n]), *KEY[1:]), 1, 0, now=1.0)
    assert len(known) == 3
    assert known.sendings((bytes([0]), *KEY[1:])) == ()
    for n in range(1000):
        known.answered(KEY, n, 1, now=float(n))
    assert len(known.sendings(KEY)) <= 2 * warmth.SENDINGS
    assert known.sendings(KEY)[-1] == Sending(999, 999.0)


# -- which calls ride --------------------------------------------------------------------------------------------------


@dataclass
class Session:
    """A session at one provider, whose turns come at given times and report cached tokens."""

    dialect: str
    caching: Caching | None
    ride: str = "auto"
    cached: int = 500
    fields: Json = field(default_factory=dict)
    mark: Json | None = None
    thinks: bool = False
    to: Json = field(default_factory=dict)
    items: list[Json] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        options = replace(SHORT, ride_prompt="Sum up.", ride=self.ride, caching=self.caching)  # type: ignore[arg-type]
        kit = new_kit(options=lambda target, dialect: options)
        target = target_of(self.dialect, 3000, **self.to)
        self.gateway = Gateway(self.dialect, target, Provider(self.dialect), summarize=self.summarize, kit=kit)

    def summarize(self, call: Call) -> Reply:
        self.calls.append(call)
        return reply_of(call.path, "## Goal\nGo on with the work, step by step, until all tests pass.")

    def turn(self, number: int, now: float) -> None:
        if self.items:
            thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
            text = {"type": "text", "text": f"done {number}"}
            content: Any = [thought, text] if self.thinks else f"done {number}"
            self.items.append({"role": "assistant", "content": content})
        self.items.append({"role": "user", "content": f"step {number} " + "word " * 120})
        sent = list(self.items)
        if self.mark:
            sent[-1] = {
                "role": "user",
                "content": [{"type": "text", "text": sent[-1]["content"], "cache_control": self.mark}],
            }
        limit = {"max_tokens": 400} if self.dialect == "messages" else {}
        raw = json.dumps({"model": "m", **limit, **self.fields, "messages": sent}).encode()
        request = Request("r", read(self.dialect, raw), TENANT, self.gateway.to, now)  # type: ignore[arg-type]
        self.drive(request)

    def drive(self, request: Request) -> None:
        seen, running, result = Exchange(request), exchange(request, self.gateway.kit), None
        try:
            effect = next(running)
            while True:
                result = self.gateway._perform(effect, seen)
                if isinstance(effect, Deliver) and isinstance(result, Finish) and result.usage:
                    result = Finish(Usage(result.usage.input_tokens, 5, self.cached), "stop")
                effect = running.send(result)
        except StopIteration:
            pass

    def run(self, turns: int = 40, gap: float = 30.0) -> list[bool]:
        """Whether each summary call rode."""
        for number in range(turns):
            self.turn(number, 1000.0 + number * gap)
        assert len(self.calls) >= 2
        return [b"<summary_request>" in call.body for call in self.calls]


TENTH = Caching(read=0.1, minimum=100)
MARKED = Caching(read=0.1, write=1.25, marks=True, minimum=100)


@pytest.mark.parametrize(
    ("story", "session", "gap", "rides"),
    [
        ("cached, told so, recent", Session("chat", TENTH), 30, True),
        ("long silence before each turn", Session("chat", TENTH), 400, False),
        ("the provider is said to cache, but tells of nothing cached", Session("chat", TENTH, cached=0), 30, False),
        ("not known to cache", Session("chat", None), 30, False),
        ("off", Session("chat", TENTH, ride="off"), 30, False),
        ("always", Session("chat", None, ride="always", cached=0), 4000, True),
        ("another model sums up", Session("chat", TENTH, to={"summary_model": "small"}), 30, False),
        ("it would be the second user message in a row", Session("chat", TENTH, to={"merge_user": True}), 30, False),
        ("an answer in JSON is asked for", Session("chat", TENTH, fields={"response_format": {"type": "json_object"}}),
         30, False),
        ("marked", Session("messages", MARKED, mark=FIVE), 10, True),
        ("marked, but not lately", Session("messages", MARKED, mark=FIVE), 120, False),
        ("marked for an hour", Session("messages", MARKED, mark=HOUR), 120, True),
        ("not marked", Session("messages", MARKED), 10, False),
        ("marked by the API itself", Session("messages", MARKED, fields={"cache_control": FIVE}), 10, True),
        ("thinking, which is left out after new words", Session("messages", MARKED, mark=FIVE, thinks=True), 10, False),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_which_calls_ride(story: str, session: Session, gap: float, rides: bool) -> None:
    assert set(session.run(gap=gap)) == {rides}


def test_it_shows_what_the_summary_stands_for_and_nothing_later() -> None:
    session = Session("chat", TENTH)
    session.run()
    checkpoints = [record for record in session.gateway.kept if hasattr(record, "artifact")]
    assert len(checkpoints) == len(session.calls)
    for call, checkpoint in zip(session.calls, checkpoints, strict=True):
        shown = json.loads(call.body)["messages"][:-1]
        assert shown[-1] == session.items[checkpoint.length - 1]
