"""What users of other gateways met, and no other test here would notice (`docs/failure-modes.md` lists them all)."""

from __future__ import annotations

import json
from typing import Any

import pytest
import test_engine_elide as elided
import test_engine_requested as requested
from engine_world import Gateway, Provider, new_kit, reply_of, ruler, target_of
from playbook import Playbook, ok
from stage import HASHER, TENANT, body, checkpoint, history, kit, messages_of, request, target
from test_engine_native import FULL, carried_out, compacted, sent, start

from tidegate.compactors.strategy import Call, CompactionFailed, Reply
from tidegate.context.budget import Policy
from tidegate.context.ledger import Ledger
from tidegate.engine.checkpoint import Found, Report
from tidegate.engine.effects import Compact, Deliver, Finish, Save, Send
from tidegate.engine.exchange import exchange
from tidegate.engine.router import Wanted
from tidegate.engine.view import read_history
from tidegate.wire import read
from tidegate.wire.conversation import Usage

Json = dict[str, Any]
DIALECTS = pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
KEYS = {"chat": "messages", "responses": "input", "messages": "messages"}

# -- the provider's own ----------------------------------------------------------------------------------------------


def test_the_id_of_a_compaction_is_no_answer_to_go_on_from():
    """`/responses/compact` keeps nothing: its id as `previous_response_id` is refused."""
    play = start()
    carried_out(play, compacted())
    assert sent(play)
    forwarded = [play.expect(Send).body or b""]
    made = play.reply(ok()).expect(Save).record
    play.reply().expect(Deliver)
    forwarded.append(start(FULL, found=Found((made,))).expect(Send).body or b"")  # type: ignore[arg-type]
    for raw in forwarded:
        assert b"cmp_1" in raw
        assert b"resp_1" not in raw
        assert b"previous_response_id" not in raw


SIGNED: dict[str, Json] = {
    "on the call": {"extra_content": {"google": {"thought_signature": "c2lnbmVk" * 40}}},
    "named as Google does": {"thoughtSignature": "c2lnbmVk" * 40},
}


@pytest.mark.parametrize("names", [("summary",), ("elide",)], ids=["summed up", "elided"])
@pytest.mark.parametrize("where", list(SIGNED))
def test_what_gemini_signed_keeps_its_bytes_or_is_gone(where, names):
    messages = history(22)
    for message in messages:
        for one in message.get("tool_calls") or ():
            one.update(SIGNED[where])
    raw = body(messages)
    play = Playbook(exchange(request(raw, to=target(wanted=Wanted(names, "the test"))), kit())).reply(Found())
    if names == ("summary",):
        play.summarise()
    sent = play.expect(Send).body
    assert sent is not None
    assert len(sent) < len(raw)
    kept = [message for message in messages_of(sent) if message.get("tool_calls")]
    assert (0 < len(kept) < 22) if names == ("summary",) else len(kept) == 22
    for message in kept:
        assert json.dumps(message).encode() in raw


# -- what the provider counted ---------------------------------------------------------------------------------------


def test_a_compaction_that_failed_does_not_make_the_history_look_empty():
    """The provider counted more than is estimated here: that alone makes it due, before and after the failure."""
    tools, raw = kit(), body(history(14))
    past = checkpoint(raw, 40)
    report = Report(past.bucket, 40, past.chain, b"", past.head, "http://up/v1", "m", 6500)
    play = Playbook(exchange(request(raw), tools)).reply(Found((), (report,)))
    play.expect(Compact)
    play.fail(CompactionFailed("summary_empty")).reply(ok()).reply(Finish(Usage(7000, 20), "stop"))
    saved = play.expect(Save).record
    assert isinstance(saved, Report)
    assert saved.input_tokens == 7000
    play.reply().done()
    later = [*history(14), {"role": "assistant", "content": "so"}, {"role": "user", "content": "and?"}]
    again = exchange(request(body(later), at=2000.0), tools)
    Playbook(again).reply(Found((), (saved,))).expect(Compact)


def test_what_a_compaction_took_is_told_before_the_answer_begins():
    """So it is known though the client leaves within the answer, or before it."""
    play = start()
    carried_out(play, compacted())
    play.expect(Send)
    told = play.detail("compacted")
    assert (told["input_tokens"], told["output_tokens"]) == (500, 80)


STRUCTURED: dict[str, Json] = {
    "chat": {"role": "tool", "tool_call_id": "c", "content": [{"type": "json", "json": {"rows": ["word"] * 4000}}]},
    "responses": {"type": "function_call_output", "call_id": "c",
                  "output": [{"type": "json", "json": {"rows": ["word"] * 4000}}]},
    "messages": {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "json", "json": {"rows": ["word"] * 4000}}]}]},
}  # fmt: skip


@DIALECTS
def test_a_result_that_is_no_text_is_counted(dialect):
    raw = json.dumps({"model": "m", "max_tokens": 9, KEYS[dialect]: [STRUCTURED[dialect]]}).encode()
    past = read_history(read(dialect, raw), TENANT, HASHER, Ledger(HASHER)).past
    assert past.sums[-1] >= 0.6 * len(raw) / 4


# -- the call for a summary ------------------------------------------------------------------------------------------


@DIALECTS
def test_it_is_made_to_fit_the_window_of_the_model_that_sums_up(dialect):
    """Not that of the session's model, which is many times as large."""
    to = target_of(dialect, 24_000, summary_model="small", summary_window=3000)
    seen = Gateway(dialect, to, Provider(dialect, 24_000)).serve(elided.body(dialect, 120))
    assert seen.answered
    assert seen.compactions == 1
    assert len(seen.calls) > 1
    for call in seen.calls:
        assert json.loads(call.body)["model"] == "small"
        assert ruler(dialect, call.body) + 100 < 3000


@DIALECTS
def test_it_shares_no_key_of_the_prompt_cache_and_marks_nothing(dialect):
    """Its prompt has nothing in common with the session's: under the same key it would only drive that out."""
    fields: Json = {"prompt_cache_key": "ses_1"} if dialect != "messages" else {}
    raw = json.loads(elided.body(dialect, 12))
    if dialect == "messages":
        raw["system"] = [{"type": "text", "text": "Be of use.", "cache_control": {"type": "ephemeral"}}]
    seen = elided.gateway(dialect, wanted=Wanted()).serve(json.dumps({**raw, **fields}).encode())
    assert seen.calls
    for call in seen.calls:
        assert not {"prompt_cache_key", "cache_control"} & json.loads(call.body).keys()
        assert b'"cache_control"' not in call.body


@DIALECTS
def test_one_that_is_asked_for_goes_through_the_window_in_pieces_too(dialect):
    """What is due by itself, and what a user asks for, are made to fit alike."""
    world = requested.gateway(dialect, 2000)
    got, seen = requested.asked(world, requested.body(dialect, 60))
    assert ruler(dialect, requested.body(dialect, 60)) > 2 * 2000
    assert got.after < got.before / 2
    assert len(seen.calls) > 1
    assert all(ruler(dialect, call.body) < 2000 for call in seen.calls)


# -- where no summary is to be had -----------------------------------------------------------------------------------


def no_summary(kind: str) -> Any:
    def answers(call: Call) -> Reply:
        if kind == "filtered":
            told = {"error": {"message": "The response was filtered.", "code": "content_filter"}}
            return Reply(400, json.dumps(told).encode())
        return reply_of(call.path, {"refused": "I'm sorry, but I can't help with that.", "too short": "Done."}[kind])

    return answers


@pytest.mark.parametrize("kind", ["filtered", "refused", "too short"])
@DIALECTS
def test_where_every_summary_is_refused_the_largest_results_are_cut(dialect, kind):
    """The same filter or the same judgement would meet it each time: the session goes on all the same, and says how."""
    world = elided.gateway(dialect, wanted=Wanted())
    world.summarize = no_summary(kind)
    for rounds in (4, 5, 6):
        seen = world.serve(elided.body(dialect, rounds, 20, more=3000))
        assert seen.answered
        assert elided.told(seen)[0] in ("recovered", "replayed")
        assert len(seen.calls) <= 2
        assert "characters left out: too long for the window" in seen.sent[-1].decode()


# -- what can't be compacted -----------------------------------------------------------------------------------------


@DIALECTS
def test_tools_that_fill_the_window_cost_no_compaction(dialect):
    """Whatever were done to the history, it would not fit: the provider's words are the answer, at once."""
    schema = {"type": "object", "properties": {f"field_{n}": {"type": "string"} for n in range(1200)}}
    tool: Json = {"type": "function", "name": "f", "parameters": schema}
    if dialect == "chat":
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    if dialect == "messages":
        tool = {"name": "f", "input_schema": schema}
    raw = json.dumps({**json.loads(elided.body(dialect, 6)), "tools": [tool]}).encode()
    seen = elided.gateway(dialect).serve(raw)
    assert (seen.sent, seen.compactions, seen.calls) == ([raw], 0, [])
    assert seen.delivered is seen.heads[0]
    assert seen.outcome is not None
    assert seen.outcome.reason == "fixed_part_too_large"


@pytest.mark.parametrize("policy", [{}, {"merge_user": True}], ids=["separate", "merged"])
def test_there_is_never_a_second_system_message(policy):
    """Templates that take one alone answer 500 to another."""
    world = Gateway("chat", target_of("chat", 4000, **policy), Provider("chat", 4000), kit=new_kit())
    for turns in range(4, 40, 4):
        seen = world.serve(body(history(turns)))
        assert seen.answered
        assert [message["role"] for message in messages_of(seen.sent[-1])].count("system") == 1
        assert messages_of(seen.sent[-1])[0]["role"] == "system"
    assert any(hasattr(record, "artifact") for record in world.kept)


@DIALECTS
def test_what_is_kept_takes_half_the_window_at_most_whatever_is_aimed_for(dialect):
    """Aiming for 90 % must not leave a tail that the next turn is too much for."""
    policy = Policy(threshold_percent=95, target_percent=90, keep_recent_percent=100, prepare_percent=None)
    to = target_of(dialect, 8000)
    seen = Gateway(dialect, to, Provider(dialect, 8000), kit=new_kit(policy)).serve(elided.body(dialect, 40))
    assert seen.answered
    assert seen.compactions == 1
    assert ruler(dialect, seen.sent[-1]) < 0.5 * 8000 + 1000  # and the summary
