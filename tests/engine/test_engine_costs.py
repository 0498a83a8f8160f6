"""What a compaction tried in vain was billed for is counted: apart in the notices, with all in the outcome, and nowhere
in what is known of sizes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playbook import ok
from stage import kit
from test_engine_native import FULL, ON_DEMAND, Json, at, carried_out, compacted, error, messages, said, start

from tidegate.compactors.strategy import Reply
from tidegate.engine.checkpoint import Report
from tidegate.engine.effects import Compact, Deliver, Finish, NothingHelped, OutOfTime, Save
from tidegate.wire.conversation import Usage

BLOCK = {"type": "compaction", "content": "What happened."}


def answer(body: Json) -> Reply:
    return Reply(200, json.dumps(body).encode(), {"content-type": "application/json"})


def stream(*events: Json) -> Reply:
    told = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    return Reply(200, told.encode(), {"content-type": "text/event-stream"})


def openai(*items: Json, **usage: Any) -> Reply:
    return answer({"object": "response.compaction", "output": list(items), "usage": usage})


def anthropic(stop: str, *content: Json, **usage: Any) -> Reply:
    return answer({"type": "message", "role": "assistant", "content": content, "stop_reason": stop, "usage": usage})


ITERATIONS = [
    {"type": "compaction", "input_tokens": 5000, "cache_read_input_tokens": 400, "output_tokens": 120},
    {"type": "message", "input_tokens": 20, "cache_creation_input_tokens": 1, "output_tokens": 3},
]

FAILED = {
    # strategy, its answers, reason, (input, output) that they say they cost
    "openai: no item": ("openai", [openai(input_tokens=500, output_tokens=80)], "compact_no_artifact", (500, 80)),
    "openai: two items": (
        "openai",
        [openai(*[{"type": "compaction", "encrypted_content": "x"}] * 2, input_tokens=510, output_tokens=90)],
        "compact_two_artifacts",
        (510, 90),
    ),
    "openai: an error that names its usage": (
        "openai",
        [answer({"error": {"message": "broke"}, "usage": {"input_tokens": 7, "output_tokens": 1}})],
        "compact_error",
        (7, 1),
    ),
    "openai: refused": ("openai", [error(400)], "compact_http_400", (0, 0)),
    "openai-trigger: cut by length": (
        "openai-trigger",
        [
            stream(
                {"type": "response.created", "response": {"usage": None}},
                {
                    "type": "response.incomplete",
                    "response": {
                        "status": "incomplete",
                        "incomplete_details": {"reason": "max_output_tokens"},
                        "usage": {"input_tokens": 872, "output_tokens": 1254},
                    },
                },
            )
        ],
        "compact_cut_by_length",
        (872, 1254),
    ),
    "openai-trigger: failed in the stream": (
        "openai-trigger",
        [
            stream(
                {
                    "type": "response.failed",
                    "response": {
                        "status": "failed",
                        "error": {"code": "server_error", "message": "broke"},
                        "usage": {"input_tokens": 33, "output_tokens": 4},
                    },
                }
            )
        ],
        "compact_error",
        (33, 4),
    ),
    "xai: no item": (
        "xai",
        [openai(input_tokens=12_000, output_tokens=800, dropped_message_count=3)],
        "compact_no_artifact",
        (12_000, 800),
    ),
    "anthropic: called a tool": (
        "anthropic",
        [anthropic("tool_use", input_tokens=3, cache_read_input_tokens=900, output_tokens=12)],
        "compact_called_tool",
        (903, 12),
    ),
    "anthropic: two blocks, billed in iterations": (
        "anthropic",
        [anthropic("compaction", BLOCK, BLOCK, input_tokens=0, output_tokens=0, iterations=ITERATIONS)],
        "compact_two_artifacts",
        (5421, 123),
    ),
}


def begun(strategy: str, *others: str) -> Any:
    if strategy == "anthropic":
        to = at(strategy, *others, provider="anthropic", means=ON_DEMAND)
        return start(messages(20), to, dialect="messages")
    return start(FULL, at(strategy, *others))


@pytest.mark.parametrize("name", list(FAILED))
def test_what_a_provider_took_for_a_compaction_that_was_none(name: str) -> None:
    strategy, replies, reason, (read, written) = FAILED[name]
    play = begun(strategy)
    calls = len(carried_out(play, *replies))
    assert play.detail("compaction_failed") == {
        "reason": reason,
        "strategy": strategy,
        "calls": calls,
        "input_tokens": read,
        "output_tokens": written,
    }
    outcome = play.reply(ok()).expect(Deliver).outcome
    assert (outcome.compaction_input_tokens, outcome.compaction_output_tokens) == (read, written)
    assert (outcome.reason, outcome.summary_calls) == (reason, calls)


def test_it_is_counted_beside_what_the_next_way_took() -> None:
    play = start()
    carried_out(
        play,
        openai(input_tokens=500, output_tokens=80),
        openai(input_tokens=600, output_tokens=90),
        said(),
    )
    failed = [dict(notice.detail) for notice in play.notices if notice.event == "compaction_failed"]
    assert [(it["strategy"], it["input_tokens"], it["output_tokens"]) for it in failed] == [
        ("openai", 500, 80),
        ("openai-trigger", 600, 90),
    ]
    assert (play.detail("compacted")["input_tokens"], play.detail("compacted")["output_tokens"]) == (700, 30)
    outcome = play.reply(ok()).reply().expect(Deliver).outcome
    assert (outcome.compaction_input_tokens, outcome.compaction_output_tokens) == (1800, 200)
    assert outcome.summary_calls == 3


@pytest.mark.parametrize("dialect", ["responses", "messages"])
def test_a_summary_that_is_not_used_was_paid_for(dialect: str) -> None:
    play = begun("anthropic" if dialect == "messages" else "openai", "summary")
    refused = {
        "responses": said("I'm sorry, I can't help with that."),
        "messages": anthropic(
            "refusal", {"type": "text", "text": "No."}, input_tokens=9, cache_read_input_tokens=691, output_tokens=30
        ),
    }[dialect]
    first = error(404) if dialect == "responses" else error(400, "compaction: Extra inputs are not permitted")
    carried_out(play, first, refused)
    outcome = play.reply(ok()).expect(Deliver).outcome
    assert (outcome.reason, outcome.compaction_input_tokens, outcome.compaction_output_tokens) == (
        "summary_refused",
        700,
        30,
    )


def test_what_came_out_no_smaller_was_paid_for() -> None:
    play = start(FULL, at("openai"))
    made = play.expect(Compact).work()
    next(made)
    with pytest.raises(StopIteration) as ended:
        made.send(compacted())
    # As if it had been made for another cut, by a flight that was joined.
    result = ended.value.value.result
    huge = type(result)((b'{"type":"message","role":"user","content":"' + b"word " * 9000 + b'"}', *result.items), 1,
                        (), 500, 80)  # fmt: skip
    play.reply(type(ended.value.value)(huge, "openai"))
    assert play.detail("compaction_failed")["reason"] == "no_smaller"
    outcome = play.reply(ok()).expect(Deliver).outcome
    assert (outcome.reason, outcome.compaction_input_tokens, outcome.compaction_output_tokens) == (
        "no_smaller",
        500,
        80,
    )


def test_what_was_paid_before_time_ran_out_is_told() -> None:
    play = start()
    work = play.expect(Compact).work()
    next(work)
    work.send(openai(input_tokens=500, output_tokens=80))  # the next way is under way
    with pytest.raises(NothingHelped) as ended:
        work.throw(OutOfTime("summary_too_slow"))
    assert [(it.strategy, it.reason, it.input_tokens) for it in ended.value.failed] == [
        ("openai", "compact_no_artifact", 500),
        ("openai-trigger", "summary_too_slow", 0),
    ]
    play.fail(ended.value)
    outcome = play.reply(ok()).expect(Deliver).outcome
    assert (outcome.reason, outcome.compaction_input_tokens) == ("summary_too_slow", 500)


def test_none_of_it_is_a_size_of_the_history() -> None:
    tools = kit()
    play = start(tools=tools)
    carried_out(play, openai(input_tokens=7900, output_tokens=7000), compacted_by_trigger(), then=said())
    play.reply(ok()).reply()
    report = play.reply(Finish(Usage(3100), "stop")).expect(Save).record
    assert isinstance(report, Report)
    assert report.input_tokens == 3100
    assert tools.windows.limit("http://up/v1", "m", now=1000.0) is None


def compacted_by_trigger() -> Reply:
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "sealed"}
    done = {"type": "response.output_item.done", "item": item}
    usage = {"input_tokens": 7800, "output_tokens": 50}
    return stream(done, {"type": "response.completed", "response": {"status": "completed", "usage": usage}})
