"""A history that its provider can't read any more, in part: sent once without, by the rules of its API."""

from __future__ import annotations

import json
from typing import Any

import pytest
from engine_world import Exchange, Gateway, Summarizer, breaks, target_of
from histories import SENTINEL, Json, Talk, examples, lawful
from hypothesis import assume, event, given
from hypothesis import strategies as st
from playbook import Playbook, ok, overflow, refused
from stage import body, checkpoint, history, kit, messages_of, request, target

from tidegate.engine.checkpoint import Found
from tidegate.engine.effects import Deliver, Find, Finish, Head, Save, Send, UpstreamError
from tidegate.engine.exchange import exchange
from tidegate.simulator.profiles import PROFILES, error_body
from tidegate.simulator.refusals import Refusal
from tidegate.wire.conversation import Usage

SEALED: Json = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAseal"}
SAID: Json = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]}
ASK: Json = {"role": "user", "content": "go on"}
COMPACTED: Json = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAcomp"}


def responses(*items: Json) -> bytes:
    return json.dumps({"model": "m", "input": list(items), "store": False}).encode()


def stale(number: int, name: str = "rs_1", *, in_stream: bool = False) -> Head:
    head = refused(
        number, 400, f"The encrypted content for item {name} could not be verified.", code="invalid_encrypted_content"
    )
    return Head(head.number, 200, head.headers, head.refusal, in_stream=True) if in_stream else head


def start(*items: Json) -> Playbook:
    play = Playbook(exchange(request(responses(*items), dialect="responses"), kit()))
    if isinstance(play.effect, Find):
        play.reply(Found())
    assert play.expect(Send).body is None
    return play


def sent(play: Playbook) -> list[Any]:
    found = json.loads(play.expect(Send).body or b"")["input"]
    assert isinstance(found, list)
    return found


LOOSE = {key: value for key, value in SAID.items() if key != "id"}


@pytest.mark.parametrize("in_stream", [False, True])
def test_stale_reasoning_is_left_out_once(in_stream):
    play = start(ASK, SEALED, SAID, ASK).reply(stale(0, in_stream=in_stream))
    assert sent(play) == [ASK, LOOSE, ASK]
    deliver = play.reply(ok(1)).expect(Deliver)
    assert (deliver.number, deliver.outcome.action, deliver.outcome.reason) == (1, "recovered", "artifact_dropped")
    assert play.detail("dropped") == {"artifacts": "thinking"}
    play.reply(Finish(Usage(40), "stop"))
    play.done()


def test_what_the_provider_counts_without_it_is_not_the_size_of_the_history():
    play = start(ASK, SEALED, SAID, ASK).reply(stale(0)).reply(ok(1)).reply(Finish(Usage(40), "stop"))
    play.done()
    play = start(ASK, SEALED, SAID, ASK).reply(stale(0)).reply(ok(1)).reply(Finish(Usage(40), "window"))
    assert play.expect(Save).record.input_tokens == 8000


@pytest.mark.parametrize(
    ("second", "delivered", "reason"),
    [
        (stale(1, "rs_2"), 0, "stale_artifact"),
        (refused(1, 400, "Unknown parameter: 'x'.", code="unknown_parameter"), 0, "stale_artifact"),
        (refused(1, 429, "Rate limit reached", code="rate_limit_exceeded"), 1, "rate_limit"),
        (refused(1, 500, "The server had an error", kind="server_error"), 1, "server"),
    ],
    ids=["stale again", "another mistake", "come again later", "trouble"],
)
def test_where_that_does_not_help_the_client_gets_the_first_answer(second, delivered, reason):
    play = start(ASK, SEALED, SAID, ASK).reply(stale(0)).reply(second)
    deliver = play.expect(Deliver)
    assert (deliver.number, deliver.outcome.action, deliver.outcome.reason) == (delivered, "relayed", reason)
    play.reply(Finish())
    play.done()


def test_an_upstream_lost_meanwhile_gives_the_first_answer():
    play = start(ASK, SEALED, SAID, ASK).reply(stale(0))
    play.expect(Send)
    play.fail(UpstreamError("connection refused"))
    assert play.expect(Deliver).number == 0


@pytest.mark.parametrize(
    "items", [(ASK, SAID, ASK), (ASK, {**SEALED, "encrypted_content": ""}, SAID, ASK)], ids=["none", "not sealed"]
)
def test_where_there_is_nothing_to_leave_out_the_refusal_is_passed_on(items):
    play = start(*items).reply(stale(0))
    deliver = play.expect(Deliver)
    assert (deliver.number, deliver.outcome.action, deliver.outcome.reason) == (0, "relayed", "stale_artifact")


def test_thinking_that_must_stay_where_it_is_is_passed_on():
    use = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}}
    thought = {"type": "thinking", "thinking": "hm", "signature": "sig"}
    asked = {
        "model": "m", "max_tokens": 99, "thinking": {"type": "adaptive"},
        "messages": [ASK, {"role": "assistant", "content": [thought, use]},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}]}],
    }  # fmt: skip
    play = Playbook(exchange(request(json.dumps(asked).encode(), dialect="messages"), kit())).reply(Found())
    play.reply(refused(0, 400, "messages.1.content.0: Invalid `signature` in `thinking` block"))
    assert play.expect(Deliver).number == 0


# -- the client's own compactions ------------------------------------------------------------------------------------


def test_a_compaction_the_provider_can_not_read_is_left_out():
    play = start(ASK, COMPACTED, SAID, ASK).reply(stale(0, "cmp_1"))
    assert sent(play) == [ASK, SAID, ASK]
    deliver = play.reply(ok(1)).expect(Deliver)
    assert (deliver.number, deliver.outcome.action, deliver.outcome.reason) == (1, "recovered", "artifact_dropped")
    play.reply(Finish())
    play.done()


@pytest.mark.parametrize(
    ("second", "delivered"),
    [(stale(1, "cmp_1"), 0), (overflow(1), 0), (refused(1, 429, "slow down", code="rate_limit_exceeded"), 1)],
    ids=["stale again", "too long without", "come again later"],
)
def test_where_leaving_it_out_does_not_help_the_first_answer_counts(second, delivered):
    play = start(ASK, COMPACTED, SAID, ASK).reply(stale(0, "cmp_1")).reply(second)
    deliver = play.expect(Deliver)
    assert (deliver.number, deliver.outcome.action, deliver.outcome.reason) == (delivered, "relayed", "opaque_history")
    play.reply(Finish())
    play.done()


def test_an_opaque_history_that_is_refused_for_another_cause_is_sent_once():
    for head in (overflow(0), refused(0, 500, "trouble", kind="server_error"), stale(0, "rs_other")):
        play = start(COMPACTED, SAID).reply(head)
        assert play.expect(Deliver).number == 0


def test_an_opaque_history_whose_second_try_is_lost_gives_the_first_answer():
    play = start(ASK, COMPACTED, SAID, ASK).reply(stale(0, "cmp_1"))
    play.fail(UpstreamError("connection refused"))
    assert play.expect(Deliver).number == 0


# -- with the rest of a request's life -------------------------------------------------------------------------------


def signed(turns: int) -> bytes:
    """A chat whose newest answer bears something sealed; about 400 tokens a turn."""
    messages = history(turns)
    messages[-2] = {**messages[-2], "reasoning_details": [{"type": "reasoning.encrypted", "data": "gAAA"}]}
    return body(messages)


def bad(number: int) -> Head:
    return refused(number, 400, "messages.9.content.0: Invalid `signature` in `thinking` block")


def test_what_was_left_out_stays_out_when_the_history_is_compacted_then():
    play = Playbook(exchange(request(signed(22), to=target(None)), kit())).reply(Found())
    play.reply(bad(0))
    assert b"reasoning_details" not in (play.expect(Send).body or b"reasoning_details")
    play.reply(overflow(1)).summarise()
    smaller = play.expect(Send).body or b"reasoning_details"
    assert b"reasoning_details" not in smaller
    assert len(smaller) < len(signed(22)) * 0.6
    play.reply(ok(2))
    play.expect(Save)
    deliver = play.reply().expect(Deliver)
    assert (deliver.outcome.action, deliver.outcome.reason, deliver.outcome.compactions) == (
        "recovered",
        "artifact_dropped",
        1,
    )


def test_an_overflow_first_and_stale_then():
    play = Playbook(exchange(request(signed(22), to=target(None)), kit())).reply(Found())
    play.reply(overflow(0)).summarise()
    compacted = messages_of(play.expect(Send).body)
    assert "reasoning_details" in compacted[-2]
    play.reply(bad(1))
    without = messages_of(play.expect(Send).body)
    assert [{k: v for k, v in m.items() if k != "reasoning_details"} for m in compacted] == without
    play.reply(bad(2))
    deliver = play.expect(Deliver)
    assert (deliver.number, deliver.outcome.action) == (0, "unrecovered")


def test_a_replayed_history_loses_it_too_and_the_clients_own_bytes_get_their_chance():
    raw = signed(18)
    play = Playbook(exchange(request(raw), kit())).reply(Found((checkpoint(raw, 40),)))
    play.reply(bad(0))
    assert "Earlier work." in messages_of(play.expect(Send).body)[1]["content"]
    play.reply(bad(1))
    assert play.expect(Send).body is None
    deliver = play.reply(ok(2)).expect(Deliver)
    assert (deliver.number, deliver.outcome.action, deliver.outcome.reason) == (
        2,
        "relayed",
        "rewritten_history_refused",
    )


# -- by the provider's own rules -------------------------------------------------------------------------------------


class Forgetful:
    """A provider that refuses what was sealed before its key changed, and judges all else by its rules."""

    def __init__(self, made: Talk) -> None:
        self.made = made

    def __call__(self, seen: Exchange, raw: bytes) -> Head:
        number = len(seen.sent) - 1
        told = breaks(self.made.dialect, raw, self.made.world)
        if not told:
            return Head(number, 200, {"x-size": "9"})
        rule, _, message = told.partition(": ")
        seen.violations.append(told)
        code = "invalid_encrypted_content" if rule == "encrypted-content" else None
        profile = PROFILES["anthropic" if self.made.dialect == "messages" else "openai"]
        shaped = error_body(profile, self.made.dialect, Refusal(message, rule=rule, code=code), "req_1")  # type: ignore[arg-type]
        return Head(number, 400, {}, json.dumps(shaped).encode())


def spoil(made: Talk, which: int) -> int:
    """Breaks the seal of every third artifact or of all; how many were."""
    found = [item for item in made.writer.items if item.get("type") == "reasoning" and item.get("encrypted_content")]
    found += [
        block
        for item in made.writer.items
        if isinstance(item.get("content"), list)
        for block in item["content"]
        if block.get("type") == "thinking"
    ]
    chosen = [thing for n, thing in enumerate(found) if which == 3 or n % 3 == which]
    for thing in chosen:
        key = "encrypted_content" if "encrypted_content" in thing else "signature"
        thing[key] = "gAAAAstale" if key == "encrypted_content" else "EuYstale"
    return len(chosen)


@examples(120)
@given(st.sampled_from(["responses", "messages"]).flatmap(lambda dialect: lawful(dialect)), st.integers(0, 3))
def test_a_lawful_history_stays_lawful_without_what_was_sealed(made: Talk, which: int) -> None:
    assume(not breaks(made.dialect, made.body(), made.world))
    broken = spoil(made, which)
    gateway = Gateway(made.dialect, target_of(made.dialect, None), Forgetful(made), Summarizer())
    seen = gateway.serve(made.body())
    assert len(seen.sent) <= 2
    if not broken:
        assert len(seen.sent) == 1
        return
    assert all(notice.event != "fault" for notice in seen.notices)
    assert SENTINEL not in " ".join(map(repr, [*seen.notices, seen.outcome, *seen.effects]))
    if seen.answered:
        assert len(seen.sent) == 2
        assert len(seen.violations) == 1
        event("left out")
        return
    # Thinking of an answer that still goes on must stay as it is: where that can't be read, nothing helps.
    assert made.dialect == "messages"
    assert {told.partition(":")[0] for told in seen.violations} == {"signature"}
    last = json.loads(seen.sent[-1])["messages"]
    latest = max(i for i, item in enumerate(last) if item["role"] == "assistant")
    assert f"messages.{latest}" in seen.violations[-1] or last[latest - 1]["role"] == "assistant"
    assert seen.delivered is seen.heads[0]
    event("passed on")
