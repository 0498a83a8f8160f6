"""A rate refusal whose one request is above the whole allowance: the client's affair, unless it is to be shrunk."""

from __future__ import annotations

import json

import pytest
from playbook import Playbook, ok, refused
from stage import HASHER, TENANT, body, history, kit, request, target

from tidegate.compactors.strategy import CompactionFailed
from tidegate.context.ledger import Ledger
from tidegate.engine.checkpoint import Checkpoint, Found
from tidegate.engine.effects import Compact, Deliver, Finish, Head, Save, Send
from tidegate.engine.exchange import exchange
from tidegate.engine.view import plain, read_history
from tidegate.wire import read
from tidegate.wire.conversation import Usage

LARGE = body(history(18), max_tokens=500)
"""About 7,400 tokens, and 500 for the answer."""


def above(number: int, limit: int = 6000, requested: int = 7900) -> Head:
    text = f"Request too large for m on tokens per min (TPM): Limit {limit}, Requested {requested}."
    return refused(number, 429, text, code="rate_limit_exceeded", kind="tokens")


def start(raw: bytes = LARGE, *, shrink: bool = True):
    tools = kit(shrink_on_admission=shrink)
    return Playbook(exchange(request(raw, to=target(None)), tools)).reply(Found()), tools


def tokens(raw: bytes) -> int:
    return plain(read_history(read("chat", raw), TENANT, HASHER, Ledger(HASHER))).tokens


def test_it_is_passed_on_by_default():
    play, tools = start(shrink=False)
    deliver = play.reply(above(0)).expect(Deliver)
    assert (deliver.number, deliver.outcome.action, deliver.outcome.reason) == (0, "relayed", "rate_limit")
    play.reply(Finish()).done()
    assert tools.windows.limit("http://up/v1", "m") is None


def test_where_that_is_wanted_it_is_compacted_below_the_allowance_and_sent_once_more():
    play, tools = start()
    play.reply(above(0)).summarise()
    sent = play.expect(Send).body or b""
    assert tokens(sent) + 500 <= 6000 * 0.9
    assert json.loads(sent)["max_tokens"] == 500
    saved = play.reply(ok(1)).expect(Save).record
    assert isinstance(saved, Checkpoint)
    deliver = play.reply().expect(Deliver)
    assert (deliver.number, deliver.outcome.action, deliver.outcome.compactions) == (1, "recovered", 1)
    play.reply(Finish(Usage(3000, 20), "stop"))
    play.expect(Save)
    play.reply().done()
    assert tools.windows.limit("http://up/v1", "m") is None


def test_what_the_provider_counted_puts_the_estimate_right():
    play, _ = start()
    play.reply(above(0, requested=2 * 7400 + 500)).summarise()
    assert tokens(play.expect(Send).body or b"") * 1.9 + 500 <= 6000 * 0.9


@pytest.mark.parametrize(
    ("second", "delivered"),
    [
        (above(1), 1),
        (refused(1, 429, "Rate limit reached", code="rate_limit_exceeded"), 1),
        (refused(1, 400, "Unknown parameter: 'x'.", code="unknown_parameter"), 0),
    ],
    ids=["still above it", "all used up by now", "another mistake"],
)
def test_it_is_shrunk_once(second, delivered):
    play, tools = start()
    play.reply(above(0)).summarise().reply(second)
    assert play.expect(Deliver).number == delivered
    play.reply(Finish()).done()
    assert tools.windows.limit("http://up/v1", "m") is None


def test_a_summary_that_fails_gives_the_refusal():
    play, _ = start()
    play.reply(above(0))
    play.expect(Compact)
    play.fail(CompactionFailed("summary_empty"))
    assert play.expect(Deliver).number == 0
    play.reply(Finish()).done()


def test_where_the_answer_alone_is_above_it_nothing_is_tried():
    play, _ = start(body(history(18), max_tokens=6000))
    assert play.reply(above(0, requested=13_400)).expect(Deliver).number == 0


def test_where_the_newest_turn_alone_is_above_it_that_costs_one_summary_a_while():
    raw = body([*history(10)[:-1], {"role": "user", "content": "word " * 7000}])
    play, tools = start(raw)
    play.reply(above(0, requested=12_000)).summarise()
    assert play.expect(Deliver).number == 0
    again = Playbook(exchange(request(raw, to=target(None)), tools)).reply(Found()).reply(above(0, requested=12_000))
    assert again.expect(Deliver).number == 0


def test_a_request_below_the_allowance_waits():
    play, _ = start()
    assert play.reply(above(0, limit=30_000)).expect(Deliver).outcome.reason == "rate_limit"
