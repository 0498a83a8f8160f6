"""The life of a request, each path told as a script without a socket."""

from __future__ import annotations

import json

import pytest
from playbook import Playbook, ok, overflow, refused
from stage import TENANT, body, checkpoint, history, kit, messages_of, request, target

from tidegate.compactors.strategy import Call, CompactionFailed
from tidegate.context.budget import Policy
from tidegate.engine.checkpoint import Checkpoint, Found, Report, StoreError
from tidegate.engine.effects import Compact, Deliver, Find, Finish, Head, Save, Send, UpstreamError
from tidegate.engine.exchange import counted, exchange
from tidegate.engine.request import Kit, Request
from tidegate.wire import read
from tidegate.wire.conversation import Usage

SMALL = body(history(2))
FULL = body(history(18))
"""About 7,400 tokens: over the threshold of 6,800, under the window of 8,000."""
HUGE = body(history(22))
"""About 9,000 tokens: over the window."""


def start(raw: bytes, found: Found | None = None, *, policy: Policy | None = None, window: int | None = 8000, **kits):
    play = Playbook(exchange(request(raw, to=target(window)), kit(policy, **kits)))
    play.expect(Find)
    return play.reply(found or Found())


# -- untouched ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "dialect", "hands_off", "reason"),
    [
        (FULL, "chat", "bypassed", "bypassed"),
        (FULL, "chat", "own_compaction", "own_compaction"),
        (body([]), "chat", "", "empty"),
        (body([{"role": "system", "content": "only this"}]), "chat", "", "empty"),
        (b'{"model":"m","previous_response_id":"resp_1","input":[{"role":"user","content":"x"}]}', "responses", "",
         "server_held"),
        (b'{"model":"m","input":[{"type":"compaction","id":"cmp_1","encrypted_content":"gAAA"},'
         b'{"role":"user","content":"x"}]}', "responses", "", "opaque_history"),
    ],
)  # fmt: skip
def test_what_must_not_be_touched_is_sent_as_it_came(raw, dialect, hands_off, reason):
    play = Playbook(exchange(request(raw, dialect=dialect, hands_off=hands_off), kit()))
    assert play.expect(Send).body is None
    play.reply(ok())
    assert play.expect(Deliver).outcome.action == "relayed"
    assert play.expect(Deliver).outcome.reason == reason
    play.reply(Finish())
    play.done()


def test_a_short_conversation_is_sent_as_it_came():
    play = start(SMALL)
    assert play.expect(Send).body is None
    play.reply(ok())
    assert play.expect(Deliver).outcome.reason == "below_threshold"
    play.reply(Finish())
    play.done()


@pytest.mark.parametrize(
    ("policy", "window", "reason"),
    [(Policy(enabled=False), 8000, "disabled"), (None, None, "unknown_window")],
)
def test_no_compaction_before_sending_where_it_is_off_or_the_window_unknown(policy, window, reason):
    play = start(FULL, policy=policy, window=window)
    assert play.expect(Send).body is None
    play.reply(ok())
    assert play.expect(Deliver).outcome.reason == reason


# -- replay -------------------------------------------------------------------------------------------------------


def test_a_matching_checkpoint_stands_for_the_beginning():
    point = checkpoint(FULL, 40)
    play = start(FULL, Found((point,)))
    sent = messages_of(play.expect(Send).body)
    kept = json.loads(FULL)["messages"][41:]
    assert sent[0] == json.loads(FULL)["messages"][0]
    assert "Earlier work." in sent[1]["content"]
    assert sent[2:] == kept
    play.reply(ok())
    assert play.expect(Deliver).outcome.action == "replayed"
    assert play.expect(Deliver).outcome.checkpoint == point.id
    play.reply(Finish(Usage(3000), "stop"))
    report = play.expect(Save).record
    assert isinstance(report, Report)
    assert (report.input_tokens, report.checkpoint) == (3000, point.chain)


def test_the_longest_applicable_checkpoint_wins():
    long, short = checkpoint(FULL, 60, "the longer"), checkpoint(FULL, 20, "the shorter")
    play = start(FULL, Found((long, short)))
    assert "the longer" in messages_of(play.expect(Send).body)[1]["content"]


def test_a_checkpoint_that_would_split_this_history_is_passed_over():
    one_human = [json.loads(FULL)["messages"][0], *history(18)[1:5]]
    raw = body(one_human)
    play = start(raw, Found((checkpoint(raw, 2),)))
    assert play.expect(Send).body is None


def test_words_that_are_the_newest_again_stay_though_the_checkpoint_does_not_say_so():
    one_human = [json.loads(FULL)["messages"][0], *history(18)[1:5]]
    raw = body(one_human)
    play = start(raw, Found((checkpoint(raw, 3),)))
    assert messages_of(play.expect(Send).body)[2:] == [one_human[1], one_human[4]]


def test_a_checkpoint_of_the_whole_history_is_passed_over():
    raw = body(history(18))
    length = len(json.loads(raw)["messages"]) - 1
    play = start(raw, Found((checkpoint(raw, length, retained=(length - 1,)),)), window=None)
    assert play.expect(Send).body is None


def test_an_unreachable_store_costs_the_replay_only():
    play = Playbook(exchange(request(SMALL), kit()))
    play.expect(Find)
    play.fail(StoreError("checkpoints.db is locked"))
    assert play.expect(Send).body is None
    assert "fault" in play.events()


# -- compaction before sending ------------------------------------------------------------------------------------


def test_a_conversation_at_the_threshold_is_compacted_before_it_is_sent():
    calls: list[Call] = []
    play = start(FULL).summarise("## Goal\nMend the tests of the shop.\nFACT-01 is kept.", calls)
    assert len(calls) == 1
    sent = messages_of(play.expect(Send).body)
    assert "FACT-01 is kept." in sent[1]["content"]
    assert sent[-1]["content"] == "what next?"
    play.reply(ok())
    saved = play.expect(Save).record
    assert isinstance(saved, Checkpoint)
    assert saved.tokens_after <= 4000
    play.reply()
    outcome = play.expect(Deliver).outcome
    assert (outcome.action, outcome.strategy, outcome.compactions, outcome.summary_calls) == (
        "compacted",
        "summary",
        1,
        1,
    )
    assert outcome.tokens_before > 6800 > outcome.tokens_after
    play.reply(Finish())
    play.done()


def test_a_second_compaction_carries_the_summary_forward_and_covers_the_original_items():
    point = checkpoint(HUGE, 8, "## Goal\nEarlier work, FACT-07.")
    calls: list[Call] = []
    play = start(HUGE, Found((point,))).summarise("## Goal\nMend the tests of the shop. Now both.", calls)
    assert b"Earlier work, FACT-07." in calls[0].body
    sent = messages_of(play.expect(Send).body)
    assert "Now both." in sent[1]["content"]
    assert not any("Earlier work" in str(message) for message in sent)
    saved = play.reply(ok()).expect(Save).record
    assert isinstance(saved, Checkpoint)
    assert saved.length > 8


def test_a_summary_that_failed_leaves_the_request_as_it_came():
    play = start(FULL)
    play.expect(Compact)
    play.fail(CompactionFailed("summary_empty"))
    assert play.expect(Send).body is None
    play.reply(ok())
    assert play.expect(Deliver).outcome.reason == "summary_empty"
    play.reply(Finish())
    play.done()


def test_nothing_is_kept_of_a_failed_exchange():
    play = start(FULL).summarise()
    play.expect(Send)
    play.reply(refused(0, 503, "overloaded", kind="server_error"))
    assert play.expect(Deliver).number == 0
    play.reply(Finish())
    play.done()


def test_a_report_over_the_estimate_makes_a_compaction_due():
    raw = body(history(14))
    past = checkpoint(raw, 40)
    report = Report(past.bucket, 40, past.chain, b"", past.head, "http://up/v1", "m", 6500)
    play = start(raw, Found((), (report,)))
    play.expect(Compact)


def test_a_report_of_another_model_or_endpoint_counts_for_nothing():
    raw = body(history(14))
    past = checkpoint(raw, 40)
    for endpoint, model in (("http://other/v1", "m"), ("http://up/v1", "other")):
        report = Report(past.bucket, 40, past.chain, b"", past.head, endpoint, model, 6500)
        start(raw, Found((), (report,))).expect(Send)


# -- recovery -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_stream", [False, True])
def test_an_overflow_is_compacted_and_sent_again(in_stream):
    play = start(HUGE, window=None)
    assert play.expect(Send).body is None
    play.reply(overflow(0, in_stream=in_stream)).summarise()
    smaller = play.expect(Send).body
    assert smaller is not None
    assert len(smaller) < len(HUGE) * 0.6
    play.reply(ok(1))
    assert isinstance(play.expect(Save).record, Checkpoint)
    play.reply()
    deliver = play.expect(Deliver)
    assert (deliver.number, deliver.outcome.action) == (1, "recovered")


def test_a_window_stated_in_a_refusal_is_learned():
    tools = kit()
    play = Playbook(exchange(request(HUGE, to=target(None)), tools))
    play.reply(Found()).reply(overflow(0, window=8000, tokens=9000))
    play.expect(Compact)
    assert tools.windows.limit("http://up/v1", "m") == 8000
    Playbook(exchange(request(FULL, to=target(None)), tools)).reply(Found()).expect(Compact)


def test_recovery_ends_after_two_compactions_with_the_providers_first_answer():
    play = start(body(history(40)), window=None)
    first = overflow(0, window=8000, tokens=16000)
    play.reply(first).summarise().reply(overflow(1)).summarise().reply(overflow(2))
    deliver = play.expect(Deliver)
    assert (deliver.number, deliver.outcome.action, deliver.outcome.compactions) == (0, "unrecovered", 2)
    play.reply(Finish())
    play.done()


def test_an_overflow_with_nothing_to_compact_is_passed_on():
    play = start(body([{"role": "user", "content": "word " * 9000}]), window=None)
    play.reply(overflow(0))
    deliver = play.expect(Deliver)
    assert (deliver.outcome.action, deliver.outcome.reason) == ("unrecovered", "nothing_to_compact")


def test_overflow_is_passed_on_where_recovery_is_off():
    play = start(HUGE, policy=Policy(enabled=False, on_overflow=False))
    play.reply(overflow(0))
    assert play.expect(Deliver).outcome.reason == "overflow_off"


def test_a_summary_that_fails_in_recovery_gives_the_providers_answer():
    play = start(HUGE, window=None).reply(overflow(0))
    play.expect(Compact)
    play.fail(CompactionFailed("summary_refused"))
    assert play.expect(Deliver).number == 0
    assert play.expect(Deliver).outcome.reason == "summary_refused"


def test_a_transient_refusal_after_a_recovery_is_what_the_client_sees():
    play = start(HUGE, window=None).reply(overflow(0)).summarise()
    play.reply(refused(1, 429, "slow down", code="rate_limit_exceeded", kind="requests"))
    assert play.expect(Deliver).number == 1


def test_a_bad_request_after_a_recovery_gives_the_first_answer():
    play = start(HUGE, window=None).reply(overflow(0)).summarise()
    play.reply(refused(1, 400, "Unknown parameter: 'x'.", code="unknown_parameter"))
    deliver = play.expect(Deliver)
    assert (deliver.number, deliver.outcome.action) == (0, "unrecovered")


def test_an_upstream_lost_after_a_refusal_gives_the_refusal():
    play = start(HUGE, window=None).reply(overflow(0)).summarise()
    play.expect(Send)
    play.fail(UpstreamError("connection refused"))
    assert play.expect(Deliver).number == 0


def test_an_upstream_lost_at_once_is_told_as_such():
    play = start(SMALL)
    with pytest.raises(UpstreamError):
        play.fail(UpstreamError("connection refused"))


@pytest.mark.parametrize(
    ("status", "message", "code", "kind"),
    [
        (429, "Rate limit reached", "rate_limit_exceeded", "requests"),
        (429, "Too large on tokens per min (TPM): Limit 30000, Requested 342389.", "rate_limit_exceeded", "tokens"),
        (500, "The server had an error", None, "server_error"),
        (401, "Incorrect API key provided", "invalid_api_key", "invalid_request_error"),
        (400, "Unknown parameter: 'x'.", "unknown_parameter", "invalid_request_error"),
    ],
)  # fmt: skip
def test_what_is_no_overflow_is_passed_on_with_one_send(status, message, code, kind):
    play = start(SMALL).reply(refused(0, status, message, code=code, kind=kind))
    assert play.expect(Deliver).outcome.action == "relayed"
    play.reply(Finish())
    play.done()


# -- a rewritten history that is refused ---------------------------------------------------------------------------


def test_where_the_rewritten_history_is_refused_the_clients_own_bytes_get_their_chance():
    play = start(FULL, Found((checkpoint(FULL, 40),)))
    assert play.expect(Send).body is not None
    play.reply(refused(0, 400, "messages: something is wrong with them"))
    assert play.expect(Send).body is None
    play.reply(ok(1))
    deliver = play.expect(Deliver)
    assert (deliver.number, deliver.outcome.action, deliver.outcome.reason) == (
        1,
        "relayed",
        "rewritten_history_refused",
    )


@pytest.mark.parametrize(
    ("second", "delivered"),
    [(refused(1, 400, "Unknown parameter: 'x'.", code="unknown_parameter"), 1), (overflow(1), 0)],
    ids=["the same mistake", "too long as it came"],
)
def test_a_mistake_of_the_client_is_told_by_the_answer_that_names_it(second, delivered):
    play = start(FULL, Found((checkpoint(FULL, 40),)))
    play.reply(refused(0, 400, "Unknown parameter: 'x'.", code="unknown_parameter")).reply(second)
    assert play.expect(Deliver).number == delivered
    play.reply(Finish())
    play.done()


# -- learning -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("finish", "reported"),
    [
        (Finish(Usage(1234), "stop"), 1234),
        (Finish(Usage(1234), "window"), 8000),
        (Finish(None, "window"), 8000),
    ],
)
def test_usage_is_reported_for_the_very_view_it_measured(finish, reported):
    play = start(SMALL).reply(ok()).reply(finish)
    record = play.expect(Save).record
    assert isinstance(record, Report)
    assert record.input_tokens == reported
    play.reply()
    play.done()


@pytest.mark.parametrize("finish", [Finish(Usage(1234), "stop", complete=False), Finish(None, "stop"), Finish()])
def test_nothing_is_learned_of_a_cut_or_silent_answer(finish):
    play = start(SMALL).reply(ok()).reply(finish)
    play.done()


def test_a_store_that_fails_to_save_costs_nothing_else():
    play = start(FULL).summarise().reply(ok())
    play.expect(Save)
    play.fail(StoreError("disk full"))
    assert play.expect(Deliver).outcome.action == "compacted"


# -- counting -----------------------------------------------------------------------------------------------------


def test_a_count_counts_what_would_be_forwarded():
    play = Playbook(counted(request(FULL), kit()))
    play.reply(Found((checkpoint(FULL, 40),)))
    assert "Earlier work." in messages_of(play.expect(Send).body)[1]["content"]
    play.reply(ok())
    assert play.expect(Deliver).outcome.action == "replayed"


def test_a_count_never_compacts():
    play = Playbook(counted(request(HUGE), kit()))
    play.reply(Found())
    assert play.expect(Send).body is None
    play.reply(Head(0, 400, {}, overflow().refusal))
    play.expect(Deliver)


# -- output that does not fit --------------------------------------------------------------------------------------


def too_much(number: int, tokens: int, asked: int, window: int = 8000) -> Head:
    message = (
        f"This model's maximum context length is {window} tokens. However, you requested {tokens + asked} tokens "
        f"({tokens} in the messages, {asked} in the completion). Please reduce the length of either."
    )
    return refused(number, 400, message, code="context_length_exceeded")


def test_where_only_the_output_does_not_fit_less_is_asked_for_and_nothing_compacted():
    raw = body(history(10), max_tokens=6000)
    play = start(raw, window=None).reply(too_much(0, 4200, 6000))
    sent = json.loads(play.expect(Send).body or b"")
    assert sent["max_tokens"] == 8000 - 4200
    assert {**sent, "max_tokens": 6000} == json.loads(raw)
    play.reply(ok(1))
    outcome = play.expect(Deliver).outcome
    assert (outcome.action, outcome.reason, outcome.compactions) == ("recovered", "output_clamped", 0)
    play.reply(Finish())
    play.done()


def test_less_output_is_asked_for_once():
    play = start(body(history(10), max_tokens=6000), window=None).reply(too_much(0, 4200, 6000))
    play.reply(too_much(1, 4200, 3800)).summarise()
    sent = json.loads(play.expect(Send).body or b"")
    assert sent["max_tokens"] == 3800
    play.reply(too_much(2, 4200, 3800))
    while isinstance(play.effect, Compact):
        play.fail(CompactionFailed("nothing_to_compact"))
    assert play.expect(Deliver).number == 0


def later(tools: Kit, turns: int, asked: int, now: float = 1000.0) -> Playbook:
    """A later turn of the conversation."""
    request = Request("r2", read("chat", body(history(turns), max_tokens=asked)), TENANT, target(None), now)
    play = Playbook(exchange(request, tools))
    play.expect(Find)
    return play.reply(Found())


def clamped(tools: Kit) -> None:
    """A first turn, whose output limit was refused once and lowered."""
    play = later(tools, 10, 6000).reply(too_much(0, 4200, 6000)).reply(ok(1))
    play.reply(Finish()).done()


def test_the_next_turns_of_that_conversation_ask_for_less_at_once():
    tools = kit()
    clamped(tools)
    play = later(tools, 11, 6000)
    sent = json.loads(play.expect(Send).body or b"")
    assert 1024 <= sent["max_tokens"] < 8000 - 4200
    outcome = play.reply(ok()).expect(Deliver).outcome
    assert (outcome.action, outcome.reason) == ("recovered", "output_clamped")


@pytest.mark.parametrize(
    ("turns", "asked", "now"),
    [(11, 500, 1000.0), (11, 6000, 1000.0 + 7 * 3600), (3, 4000, 1000.0)],
    ids=["it fits", "hours later", "a shorter history leaves room"],
)
def test_less_is_asked_for_only_where_it_would_be_refused(turns: int, asked: int, now: float):
    tools = kit()
    clamped(tools)
    play = later(tools, turns, asked, now)
    assert play.expect(Send).body is None
    assert play.reply(ok()).expect(Deliver).outcome.action == "relayed"


def test_another_conversation_is_asked_as_it_comes():
    tools = kit()
    clamped(tools)
    raw = body([{"role": "user", "content": "another beginning"}, *history(11)[2:]], max_tokens=6000)
    play = Playbook(exchange(Request("r3", read("chat", raw), TENANT, target(None), 1000.0), tools))
    assert play.reply(Found()).expect(Send).body is None


def test_what_is_remembered_wrongly_is_put_right_by_the_next_refusal():
    tools = kit()
    clamped(tools)
    play = later(tools, 11, 6000).reply(too_much(0, 5500, 3000))
    assert json.loads(play.expect(Send).body or b"")["max_tokens"] == 8000 - 5500
    assert play.reply(ok(1)).expect(Deliver).outcome.reason == "output_clamped"


def test_where_no_useful_output_would_be_left_the_history_is_compacted():
    play = start(body(history(17), max_tokens=4000), window=None).reply(too_much(0, 7100, 4000)).summarise()
    assert json.loads(play.expect(Send).body or b"")["max_tokens"] == 4000


def test_a_models_own_cap_on_its_output_is_the_clients_affair():
    play = start(body(history(2), max_tokens=100_000), window=None)
    play.reply(refused(0, 400, "max_tokens is too large: 100000. This model supports at most 16384 completion tokens."))
    assert play.expect(Deliver).outcome.action == "relayed"
    assert play.expect(Deliver).number == 0
