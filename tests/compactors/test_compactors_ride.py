"""The summary call that rides: when it does, what it sends, and what it falls back on."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from compactor_cases import (
    DIALECTS,
    GOOD,
    OVERFLOW,
    assistant,
    drive,
    limit_of,
    sent,
    span_of,
    streamed,
    tool_round,
    user,
)

from tidegate.compactors.ride import Caching, cost, may_be_continued
from tidegate.compactors.strategy import Reply, Ride, Span
from tidegate.compactors.summary import Options, default_options
from tidegate.wire import REQUESTS
from tidegate.wire.conversation import DialectName, JsonObject

each_dialect = pytest.mark.parametrize("dialect", DIALECTS)
KEYS = {"chat": "messages", "responses": "input", "messages": "messages"}
TENTH = Caching(read=0.1)
MARKED = Caching(read=0.1, write=1.25, marks=True)
FIVE = {"type": "ephemeral"}


def riding(**changes: Any) -> Options:
    return replace(default_options(), **{"ride": "auto", "caching": TENTH, **changes})


def items_of(dialect: DialectName) -> list[JsonObject]:
    rounds = [tool_round(dialect, n, {"path": f"part_{n}.py"}, f"def part_{n}(): pass\n" * 150) for n in range(8)]
    return [user(dialect, "Make the tests pass."), *(item for each in rounds for item in each)]


def ridden(
    dialect: DialectName,
    *,
    fields: JsonObject | None = None,
    tail: int = 2,
    ride: JsonObject | None = None,
    **span: Any,
) -> Span:
    """A span whose items are the beginning of a request with some more after it."""
    items, after = items_of(dialect), [assistant(dialect, "Done."), user(dialect, "go on")][:tail]
    beside = {"max_tokens": 5_000} if dialect == "messages" else {}
    body = json.dumps({"model": "m-1", KEYS[dialect]: [*items, *after], **beside, **(fields or {})}).encode()
    made = span_of(dialect, items, **span)
    start = body.index(json.dumps(after[0]).encode())
    stop = body.index(json.dumps(after[-1]).encode()) + len(json.dumps(after[-1]))
    plain = {"body": body, "after": len(after), "tail": body[start:stop], "tokens": made.size, "cached": made.size}
    return replace(made, conversation=REQUESTS[dialect].read(body), ride=Ride(**{**plain, **(ride or {})}))


def is_ride(call: Any) -> bool:
    return b"<summary_request>" in call.body


# -- what is sent ------------------------------------------------------------------------------------------------------


@each_dialect
def test_the_request_up_to_the_cut_and_one_message(dialect: DialectName) -> None:
    span = ridden(dialect, fields={"tools": [{"name": "read"}], "stream": True, "temperature": 0.2})
    run = drive(span, [streamed(dialect, GOOD)], riding())
    assert run.text == GOOD
    (call,) = run.calls
    body, before = sent(call), json.loads(span.ride.body)  # type: ignore[union-attr]
    items = body.pop(KEYS[dialect])
    assert items[:-1] == before.pop(KEYS[dialect])[:-2]  # type: ignore[index]
    assert body == before
    asked = json.dumps(items[-1])  # type: ignore[index]
    assert items[-1]["role"] == "user"  # type: ignore[index]
    assert "## Critical context" in asked
    assert "Call no tools" in asked
    assert "{words}" not in asked
    prefix = span.ride.body.index(json.dumps(items[-2]).encode()) + len(json.dumps(items[-2]))  # type: ignore[union-attr,index]
    assert call.body[:prefix] == span.ride.body[:prefix]  # type: ignore[union-attr]


@each_dialect
def test_a_previous_summary_is_brought_up_to_date(dialect: DialectName) -> None:
    call = drive(ridden(dialect, previous="## Goal\nold"), [streamed(dialect, GOOD)], riding()).calls[0]
    assert is_ride(call)
    assert b"Carry over everything in the previous summary" in call.body


@pytest.mark.parametrize(("stream", "accept"), [(True, "text/event-stream"), (False, None)])
def test_it_asks_for_a_stream_only_where_the_session_does(stream: bool, accept: str | None) -> None:
    call = drive(ridden("chat", fields={"stream": stream}), [streamed("chat", GOOD)], riding()).calls[0]
    assert call.add_headers.get("accept") == accept


@pytest.mark.parametrize(
    ("story", "dialect", "fields", "window", "expected"),
    [
        ("the client's own, where it is enough", "messages", {"max_tokens": 9_000}, 200_000, 9_000),
        ("raised to the summary's room", "messages", {"max_tokens": 200}, 200_000, 4_000),
        ("beside a thinking budget", "messages",
         {"max_tokens": 4_096, "thinking": {"type": "enabled", "budget_tokens": 4_000}}, 200_000, 8_000),
        ("thinking of no stated budget", "messages",
         {"max_tokens": 4_096, "thinking": {"type": "adaptive"}}, 200_000, 8_000),
        ("none where the client states none", "chat", {}, 200_000, None),
        ("under the name the client uses", "chat", {"max_completion_tokens": 100}, 200_000, 4_000),
        ("reasoning", "responses", {"max_output_tokens": 100, "reasoning": {"effort": "low"}}, 200_000, 8_000),
    ],
)  # fmt: skip
def test_the_output_limit(
    story: str, dialect: DialectName, fields: JsonObject, window: int, expected: int | None
) -> None:
    call = drive(ridden(dialect, fields=fields, window=window), [streamed(dialect, GOOD)], riding()).calls[0]
    assert is_ride(call)
    if expected is None:
        assert not {"max_tokens", "max_completion_tokens", "max_output_tokens"} & set(sent(call))
    else:
        assert limit_of(call) == expected


def test_the_limit_is_lowered_to_what_the_window_leaves() -> None:
    span = ridden("messages", fields={"max_tokens": 64_000}, window=20_000)
    (call,) = drive(span, [streamed("messages", GOOD)], riding()).calls
    assert is_ride(call)
    assert span.room <= limit_of(call) < 20_000 - span.size


# -- cache marks -------------------------------------------------------------------------------------------------------


def marked_system(number: int) -> list[JsonObject]:
    return [{"type": "text", "text": f"s{n}", "cache_control": FIVE} for n in range(number)]


@pytest.mark.parametrize(
    ("story", "fields", "rides", "on_request"),
    [
        ("as the client marks", {"system": marked_system(2)}, True, True),
        ("a client without marks", {}, True, False),
        ("the API's own mark", {"cache_control": FIVE}, True, False),
        ("no mark is left", {"system": marked_system(4)}, False, False),
    ],
)
def test_the_message_bears_the_mark_by_which_the_cache_is_found(
    story: str, fields: JsonObject, rides: bool, on_request: bool
) -> None:
    (call,) = drive(ridden("messages", fields=fields), [streamed("messages", GOOD)], riding(caching=MARKED)).calls
    assert is_ride(call) == rides
    if rides:
        last = sent(call)["messages"][-1]["content"]  # type: ignore[index]
        assert (last[-1].get("cache_control") == FIVE if isinstance(last, list) else False) == on_request
    assert call.body.count(b'"cache_control"') <= 4


# -- when it rides -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("story", "cached", "tokens", "caching", "asked", "expected"),
    [
        ("all cached", 10_000, 10_000, TENTH, 500, 1_500),
        ("some of it", 8_000, 10_000, TENTH, 500, 800 + 2_500),
        ("nothing", 0, 10_000, TENTH, 500, 10_500),
        ("too little to be cached", 1_000, 10_000, TENTH, 500, 10_500),
        ("written anew at a higher price", 8_000, 10_000, MARKED, 400, 800 + 1.25 * 2_400),
    ],
)  # fmt: skip
def test_the_price(story: str, cached: int, tokens: int, caching: Caching, asked: int, expected: float) -> None:
    assert cost(Ride(b"", 1, b"", tokens, cached), caching, asked) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("story", "options", "ride", "rides"),
    [
        ("where it is cheaper", {}, {}, True),
        ("nothing is cached", {}, {"cached": 0}, False),
        ("it drags too much along", {}, {"tokens": 90_000, "cached": 80_000}, False),
        ("it drags much along, but cheaply", {}, {"tokens": 30_000, "cached": 30_000}, True),
        ("how the provider caches is not known", {"caching": None}, {}, False),
        ("never", {"ride": "off"}, {}, False),
        ("always", {"ride": "always"}, {"cached": 0}, True),
        ("always, and nothing is known", {"ride": "always", "caching": None}, {"cached": 0}, True),
        ("always, but there is no room for the answer", {"ride": "always"}, {"tokens": 197_000}, False),
        ("the model writes less than is needed", {"max_output": 1_000}, {}, False),
        ("the forwarded items are laid out otherwise", {}, {"tail": b"{}"}, False),
    ],
)
def test_when_it_rides(story: str, options: dict[str, Any], ride: JsonObject, rides: bool) -> None:
    run = drive(ridden("chat", ride=ride), [streamed("chat", GOOD)], riding(**options))
    assert run.text == GOOD
    assert [is_ride(call) for call in run.calls] == [rides]


@pytest.mark.parametrize(
    ("dialect", "fields", "may"),
    [
        ("chat", {"tool_choice": "auto"}, True),
        ("chat", {"tool_choice": "none"}, True),
        ("chat", {"tool_choice": "required"}, False),
        ("chat", {"tool_choice": {"type": "function", "function": {"name": "read"}}}, False),
        ("chat", {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}}, True),
        ("responses", {"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": []}}, False),
        ("chat", {"function_call": {"name": "read"}}, False),
        ("messages", {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, True),
        ("messages", {"tool_choice": {"type": "any"}}, False),
        ("chat", {"response_format": {"type": "text"}}, True),
        ("chat", {"response_format": {"type": "json_object"}}, False),
        ("responses", {"text": {"verbosity": "low"}}, True),
        ("responses", {"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}}, False),
        ("messages", {"output_config": {"effort": "high"}}, True),
        ("messages", {"output_config": {"format": {"type": "json_schema", "schema": {}}}}, False),
        ("messages", {"stop_sequences": ["##"]}, False),
        ("messages", {"stop_sequences": []}, True),
        ("chat", {"stop": "\n\n"}, False),
        ("chat", {"n": 2}, False),
        ("chat", {"n": 1}, True),
        ("chat", {"stop": None, "n": None, "tool_choice": None, "response_format": None}, True),
    ],
)  # fmt: skip
def test_only_a_request_that_leaves_its_model_free_is_continued(
    dialect: DialectName, fields: JsonObject, may: bool
) -> None:
    body = json.dumps({"model": "m", KEYS[dialect]: [user(dialect, "a")], **fields}).encode()
    assert may_be_continued(REQUESTS[dialect].read(body)) == may


# -- what it falls back on ---------------------------------------------------------------------------------------------

USELESS = {
    "a tool call": lambda dialect: streamed(dialect, "", stop="tool_call", tool="read"),
    "words and a tool call": lambda dialect: streamed(dialect, GOOD, stop="tool_call", tool="read"),
    "nothing": lambda dialect: streamed(dialect, ""),
    "a refusal in words": lambda dialect: streamed(dialect, "I'm sorry, but I can't help with that."),
    "a cut answer": lambda dialect: streamed(dialect, GOOD, stop="length"),
    "a broken stream": lambda dialect: streamed(dialect, GOOD, stop=None),
    "a broken rule": lambda dialect: Reply(400, b'{"error":{"message":"no"}}'),
    "an overflow": lambda dialect: OVERFLOW,
    "too long a summary": lambda dialect: streamed(dialect, "## Goal\n" + "word " * 9_000),
    "a summary as long as what it replaces": lambda dialect: streamed(dialect, "## Goal\n" + "word " * 30_000),
}  # fmt: skip


@each_dialect
@pytest.mark.parametrize("what", USELESS)
def test_the_transcript_is_shown_where_the_ride_gave_nothing_of_use(dialect: DialectName, what: str) -> None:
    run = drive(ridden(dialect), [USELESS[what](dialect), streamed(dialect, GOOD)], riding())
    assert run.text == GOOD
    assert [is_ride(call) for call in run.calls] == [True, False]
    assert run.summary is not None
    assert run.summary.calls == 2
    assert b"<transcript>" in run.calls[1].body


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(0, error="refused"), "summary_unreachable"),
        (Reply(429, b"{}"), "summary_http_429"),
        (Reply(401, b"{}"), "summary_http_401"),
        (Reply(503, b"{}"), "summary_http_503"),
    ],
)
def test_what_a_second_call_would_meet_too_ends_it(reply: Reply, reason: str) -> None:
    run = drive(ridden("chat"), [reply], riding())
    assert (run.failure, len(run.calls)) == (reason, 1)


@pytest.mark.parametrize("what", USELESS)
def test_it_counts_among_the_calls(what: str) -> None:
    run = drive(ridden("chat", max_calls=1), [USELESS[what]("chat"), streamed("chat", GOOD)], riding())
    assert run.failure
    assert len(run.calls) == 1


@each_dialect
def test_equal_input_rides_in_equal_bytes(dialect: DialectName) -> None:
    one, other = (drive(ridden(dialect), [streamed(dialect, GOOD)], riding()).calls[0].body for _ in range(2))
    assert one == other
