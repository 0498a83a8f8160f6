"""`context-edit` in the life of a request: when Anthropic is asked to clear, what is asked, and what becomes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playbook import Playbook, ok
from stage import kit
from test_engine_native import WORDS, asked, at, carried_out, messages

from tidegate.compactors.strategy import Reply
from tidegate.context.budget import Policy
from tidegate.engine.checkpoint import Found
from tidegate.engine.clearing import KEEP
from tidegate.engine.effects import Compact, Deliver, Find, Finish, Head, Prepare, Save, Send
from tidegate.engine.exchange import exchange
from tidegate.engine.request import Kit, Target
from tidegate.engine.router import CLEARING, Means
from tidegate.wire.conversation import Cleared, Usage

Json = dict[str, Any]
BETA = "context-management-2025-06-27"
CLEARS = Means(context_edit=BETA)
FULL = 17
"""Turns that are about 6,900 tokens: over the threshold of 6,800, under the window of 8,000."""
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}


def claude(*names: str, **changes: Any) -> Target:
    given = {"provider": "anthropic", "means": CLEARS, **changes}
    return at(*(names or (CLEARING, "summary")), **given)


SAID = Reply(
    200,
    json.dumps(
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": WORDS}],
            "stop_reason": "end_turn",
        }
    ).encode(),
)


def wordy(turns: int, words: int) -> bytes:
    """A conversation that begins with so many tokens of the user's."""
    body = json.loads(messages(turns))
    body["messages"][0]["content"] = "abcdefg " * (words // 2)
    return json.dumps(body).encode()


def start(raw: bytes, to: Target | None = None, tools: Kit | None = None) -> Playbook:
    play = Playbook(exchange(asked(raw, to or claude(), "messages"), tools or kit()))
    play.expect(Find)
    return play.reply(Found())


def edits(play: Playbook) -> list[Json]:
    body = play.expect(Send).body
    return json.loads(body).get("context_management", {}).get("edits", []) if body else []


def thinking(turns: int, **fields: Any) -> bytes:
    """The same conversation, with a thought before each tool call."""
    body = json.loads(messages(turns, **{"thinking": {"type": "adaptive"}, **fields}))
    for message in body["messages"][1::4]:
        message["content"] = [THOUGHT, *message["content"]]
    return json.dumps(body).encode()


def test_the_clients_request_goes_with_one_field_and_its_header_and_nothing_is_compacted():
    raw = messages(FULL)
    play = start(raw)
    send = play.expect(Send)
    assert send.body is not None
    assert send.body.startswith(raw[:-1])
    assert send.add_headers == {"anthropic-beta": BETA}
    (edit,) = edits(play)
    assert edit["type"] == "clear_tool_uses_20250919"
    assert edit["trigger"] == {"type": "input_tokens", "value": 4000}
    assert KEEP <= edit["keep"]["value"] < FULL
    least = edit["clear_at_least"]["value"]
    outcome = play.reply(ok()).expect(Deliver).outcome
    assert (outcome.action, outcome.strategy, outcome.reason) == ("relayed", "context-edit", "asked_to_clear")
    assert outcome.tokens_before is not None
    assert outcome.tokens_after is not None
    assert 2 * least <= outcome.tokens_before - outcome.tokens_after <= 2 * least + 1
    assert outcome.tokens_after < 6800
    assert outcome.compactions == 0


def test_what_the_provider_says_that_it_cleared_is_told_and_no_size_is_learned_from_its_count():
    play = start(messages(FULL)).reply(ok())
    play.reply(Finish(Usage(3900, 5, cleared=Cleared(2900, 9, 2)), "stop")).done()
    assert play.detail("cleared") == {"tokens": 2900, "tool_uses": 9, "thinking": 2}


@pytest.mark.parametrize(
    ("finish", "again"),
    [
        (Finish(Usage(4100, 5), "stop"), True),
        (Finish(Usage(5700, 5), "stop"), True),
        (Finish(None, "stop"), True),
        (Finish(Usage(5800, 5), "stop"), False),
        (Finish(Usage(7383, 5), "stop"), False),
        (Finish(None, "window"), False),
    ],
    ids=["all of it", "most of it", "no count", "too little", "nothing", "the window ran out"],
)
def test_where_a_200_says_that_nothing_was_cleared_other_ways_come_first_for_a_while(finish, again):
    tools = kit()
    first = start(messages(FULL), tools=tools).reply(ok()).reply(finish)
    if isinstance(first.effect, Save):
        first.reply()
    first.done()
    play = start(messages(FULL, system="Another agent."), tools=tools)
    assert isinstance(play.effect, Send) == again
    later = asked(messages(FULL), claude(), "messages", now=1000.0 + 301)
    assert edits(Playbook(exchange(later, tools)).reply(Found()))


@pytest.mark.parametrize(
    ("raw", "to"),
    [
        (messages(FULL - 3), claude()),
        (messages(FULL), claude("summary")),
        (messages(FULL), claude(means=Means())),
        (messages(FULL), claude(means=Means(context_edit=BETA, clears=False))),
        (messages(FULL, context_management={"edits": []}), claude()),
        (messages(FULL, context_management=None), claude()),
        (messages(3, 2100), claude()),
    ],
    ids=[
        "below the threshold",
        "not in the list",
        "not on this platform",
        "not this model",
        "the client manages its context",
        "or says that it does not",
        "too few results, each of them new",
    ],
)
def test_where_nothing_is_asked_for(raw, to):
    play = start(raw, to)
    if isinstance(play.effect, Send):
        assert play.effect.body is None
    else:
        play.expect(Compact)


def test_where_clearing_is_not_enough_the_next_way_has_its_turn():
    play = start(wordy(6, 5800))
    assert play.expect(Compact).strategy == "summary"
    carried_out(play, SAID)
    assert edits(play) == []


def test_the_boundary_stays_while_the_history_grows():
    """Else every turn would break what the provider has cached."""
    cleared = []
    for turns in range(FULL, FULL + 22):
        (edit,) = edits(start(messages(turns)))
        cleared.append(turns - edit["keep"]["value"])
    assert cleared == sorted(cleared)
    assert 2 <= len(set(cleared)) <= 4


def test_a_history_over_the_window_is_asked_to_be_cleared_too():
    play = start(messages(40))
    (edit,) = edits(play)
    assert edit["keep"]["value"] < 16


class TestThinking:
    def test_it_is_cleared_up_to_the_same_place_and_comes_first(self):
        tools, cleared = edits(start(thinking(FULL)))[::-1]
        assert cleared["type"] == "clear_thinking_20251015"
        assert cleared["keep"] == {"type": "thinking_turns", "value": tools["keep"]["value"]}

    @pytest.mark.parametrize(
        ("raw", "to"),
        [
            (thinking(FULL, thinking={"type": "disabled"}), claude()),
            (thinking(FULL, thinking=None), claude()),
            (messages(FULL, thinking={"type": "adaptive"}), claude()),
            (thinking(FULL), claude(binds_thinking=True)),
        ],
        ids=["switched off", "not asked for", "there is none", "bound to what came before"],
    )
    def test_it_is_left_alone_where_that_may_be_refused(self, raw, to):
        (edit,) = edits(start(raw, to))
        assert edit["type"] == "clear_tool_uses_20250919"


def refused(status: int, message: str, number: int = 0) -> Head:
    error = {"type": "invalid_request_error", "message": message}
    return Head(number, status, {}, json.dumps({"type": "error", "error": error}).encode())


UNKNOWN = refused(400, "context_management: Extra inputs are not permitted")


class TestRefusals:
    def test_the_same_goes_again_as_the_client_sent_it_and_the_endpoint_is_not_asked_for_a_day(self):
        tools = kit()
        play = start(messages(FULL), tools=tools)
        play.reply(UNKNOWN)
        assert play.expect(Send).body is None
        assert play.expect(Send).add_headers == {}
        outcome = play.reply(ok(1)).expect(Deliver).outcome
        assert (outcome.action, outcome.reason, outcome.strategy) == ("relayed", "clearing_refused", "")
        again = start(messages(FULL, system="Another agent."), tools=tools)
        again.expect(Compact)

    def test_a_request_that_is_wrong_by_itself_says_nothing_of_the_endpoint(self):
        tools = kit()
        play = start(messages(FULL), tools=tools)
        play.reply(refused(400, "messages.0.role: Input should be 'user' or 'assistant'"))
        assert play.expect(Send).body is None
        play.reply(refused(400, "messages.0.role: Input should be 'user' or 'assistant'", number=1))
        assert play.expect(Deliver).number == 1
        assert edits(start(messages(FULL), tools=tools))

    def test_too_long_all_the_same_is_compacted_and_not_cleared_again_for_a_while(self):
        tools = kit()
        play = start(messages(FULL), tools=tools)
        play.reply(refused(400, "prompt is too long: 9000 tokens > 8000 maximum"))
        carried_out(play, SAID)
        assert edits(play) == []
        assert play.reply(ok(1)).expect(Save)
        start(messages(FULL, system="Another agent."), tools=tools).expect(Compact)

    @pytest.mark.parametrize("status", [401, 429, 500, 529])
    def test_what_has_nothing_to_do_with_it_is_the_clients_answer(self, status):
        play = start(messages(FULL)).reply(refused(status, "no"))
        assert play.expect(Deliver).number == 0


PREPARES = Policy(threshold_percent=85, target_percent=50, prepare_percent=70)


@pytest.mark.parametrize(
    ("raw", "prepares"),
    [(messages(FULL - 2), False), (messages(FULL), False), (wordy(4, 4400), True)],
    ids=["in the band below the threshold", "cleared", "too little to clear"],
)
def test_a_compaction_is_prepared_only_where_clearing_will_not_do(raw, prepares):
    play = start(raw, tools=kit(PREPARES))
    assert play.expect(Send)
    play.reply(ok()).reply(Finish(Usage(4500, 5), "stop"))
    if isinstance(play.effect, Save):
        play.reply()
    assert isinstance(play.effect, Prepare) == prepares
