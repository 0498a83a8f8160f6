"""What is noted of conversations' compactions: numbers and names, in order, bounded."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from engine_world import Exchange, Gateway, Provider, new_kit, ruler, target_of

from tidegate.compactors.strategy import Reply
from tidegate.context.budget import Budget, Policy
from tidegate.context.measured import Measured
from tidegate.engine.diagnostics import Completed, Failed, Record, Records
from tidegate.engine.effects import Compact, Made
from tidegate.engine.exchange import exchange, requested
from tidegate.engine.request import Request

DIALECTS = pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])


def body(dialect: str, turns: int = 10, words: int = 40) -> bytes:
    items: list[dict[str, Any]] = []
    for number in range(turns):
        items += [
            {"role": "user", "content": f"Question {number}: " + "what of it? " * words},
            {"role": "assistant", "content": f"Answer {number}: " + "this of it. " * words},
        ]
    items.append({"role": "user", "content": "And now?"})
    key = "input" if dialect == "responses" else "messages"
    return json.dumps({"model": "m", key: items, "max_tokens": 9}).encode()


def world(dialect: str = "chat", window: int | None = 10**6, real: int | None = None, **changes: Any) -> Gateway:
    to = target_of(dialect, window, **{key: value for key, value in changes.items() if key in ("policy", "wanted")})
    kit = new_kit(**{key: value for key, value in changes.items() if key not in ("policy", "wanted")})
    return Gateway(dialect, to, Provider(dialect, real or window), kit=kit)


def only(gateway: Gateway) -> Record:
    [(_, record)] = list(gateway.kit.records)
    return record


def due(dialect: str = "chat") -> int:
    """A window in which the history of `body` is due."""
    return int(ruler(dialect, body(dialect)) * 1.05)


@DIALECTS
def test_a_request_leaves_its_size_and_why_nothing_was_done(dialect):
    gateway = world(dialect)
    seen = gateway.serve(body(dialect))
    record = only(gateway)
    assert (record.reason, record.checks, record.items, record.covered) == ("below_threshold", 1, 21, 0)
    assert record.size is not None
    assert seen.outcome is not None
    assert record.size.tokens == seen.outcome.tokens_before
    assert record.limits is not None
    assert (record.limits.window, record.limits.threshold, record.limits.target) == (10**6, 850_000, 500_000)
    assert (
        record.runs.completed,
        record.runs.failures,
        record.runs.last,
        record.runs.failed,
    ) == (0, 0, None, None)


@pytest.mark.parametrize(
    ("changes", "window", "reason"),
    [
        ({"policy": Policy(trigger="off")}, 10**6, "disabled"),
        ({}, None, "unknown_window"),
        ({}, 10**6, "below_threshold"),
    ],
)
def test_the_reason_of_a_check(changes, window, reason):
    gateway = world("chat", window, real=10**6, **changes)
    gateway.serve(body("chat"))
    assert only(gateway).reason == reason


@DIALECTS
def test_what_was_completed_is_told_with_its_sizes_and_a_later_check_leaves_it(dialect):
    gateway = world(dialect, due(dialect))
    gateway.serve(body(dialect))
    record = only(gateway)
    assert (record.reason, record.runs.completed, record.runs.unchanged, record.runs.running) == (
        "requested",
        1,
        0,
        0,
    )
    last = record.runs.last
    assert last is not None
    assert (last.why, last.strategy, last.at) == ("threshold", "summary", 1000.0)
    assert last.after < last.before
    gateway.serve(body(dialect))
    assert (record.reason, record.checks, record.covered > 0) == ("below_threshold", 2, True)
    assert record.runs.last is last


def test_a_failure_does_not_replace_what_was_completed():
    gateway = world("chat", due())
    gateway.serve(body("chat"))
    record = only(gateway)
    done = record.runs.last
    gateway.summarize = lambda call: Reply(500, b"{}")
    longer = json.loads(body("chat", 30))
    gateway.serve(json.dumps(longer).encode())
    assert record.runs.last is done
    # One ahead of the window, one after the provider had refused it.
    assert (record.runs.completed, record.runs.failures, record.runs.failed) == (
        1,
        2,
        Failed(1000.0, "overflow", "summary_http_500"),
    )
    gateway.serve(json.dumps(longer).encode())
    assert record.reason == "breaker_open"


class Swollen(Gateway):
    """Joins flights whose summaries are longer than all that they stand for."""

    def _compact(self, effect: Compact, seen: Exchange) -> Made:
        made = super()._compact(effect, seen)
        return replace(made, result=replace(made.result, text="word " * 9_000))


def test_one_that_makes_nothing_smaller_is_completed_and_unchanged():
    gateway = Swollen("chat", target_of("chat", due()), Provider("chat", due()), kit=new_kit())
    gateway.serve(body("chat"))
    record = only(gateway)
    assert (record.runs.completed, record.runs.unchanged, record.runs.failures) == (1, 1, 0)
    assert record.runs.last is not None
    assert (record.runs.last.strategy, record.runs.last.before) == (
        "unchanged",
        record.runs.last.after,
    )


def test_an_overflow_that_was_recovered_from_is_completed():
    gateway = world("chat", None, real=due())
    long = body("chat", 14)
    seen = gateway.serve(long)
    assert seen.outcome is not None
    assert seen.outcome.action == "recovered"
    record = only(gateway)
    assert record.reason == "unknown_window"
    assert record.runs.last is not None
    assert record.runs.last.why == "overflow"


def test_where_there_is_nothing_to_compact_the_check_says_so():
    gateway = world("chat", 700)
    raw = json.dumps({"model": "m", "messages": [{"role": "user", "content": "what of it? " * 200}]}).encode()
    gateway.serve(raw)
    record = only(gateway)
    assert (record.reason, record.runs.completed) == ("nothing_to_compact", 0)


def test_what_somebody_asks_for_is_told_as_asked_for():
    gateway = world("chat")
    gateway.serve(body("chat"), life=requested)  # type: ignore[arg-type]
    record = only(gateway)
    assert (record.reason, record.runs.completed) == ("requested", 1)
    assert record.runs.last is not None
    assert record.runs.last.why == "requested"


def _until_compact(gateway: Gateway, raw: bytes) -> Any:
    """An exchange that waits for a compaction."""
    request = Request("r", gateway.kit.recall.read("chat", raw), b"t", gateway.to, 1.0)
    running = exchange(request, gateway.kit)
    effect = next(running)
    while not isinstance(effect, Compact):
        effect = running.send(gateway._perform(effect, Exchange(request)))
    return running


def test_while_one_is_made_another_check_says_in_progress_and_a_cancelled_one_leaves_no_trace():
    gateway = world("chat", due())
    one = _until_compact(gateway, body("chat"))
    record = only(gateway)
    assert (record.reason, record.runs.running) == ("requested", 1)
    two = _until_compact(gateway, body("chat"))
    assert (record.reason, record.runs.running) == ("in_progress", 2)
    two.close()
    one.close()
    assert (
        record.runs.running,
        record.runs.completed,
        record.runs.failures,
        record.runs.last,
    ) == (0, 0, 0, None)


def test_in_shadow_the_check_says_what_would_have_been():
    gateway = world("chat", due(), shadow=True)
    gateway.serve(body("chat"))
    assert (only(gateway).reason, only(gateway).runs.completed) == ("shadow_due", 0)


# -- the records -----------------------------------------------------------------------------------------------------

SIZE, LIMITS = Measured(10, 10, None, 1.0), Budget(100, 100, 85, 50)


def noted(records: Records, number: int, model: str = "m") -> tuple[bytes, str]:
    gateway = world()
    request = Request(
        "r", gateway.kit.recall.read("chat", body("chat", 1)), b"t" * 32, target_of("chat", 9), 5.0 + number
    )
    key = number.to_bytes(32, "big"), model
    records.checked(key, request, "below_threshold", SIZE, LIMITS, 3, 0)
    return key


def test_the_one_that_was_checked_longest_ago_is_forgotten_first():
    records = Records(size=2)
    first, second = noted(records, 1), noted(records, 2)
    noted(records, 1)
    third = noted(records, 3)
    assert [key for key, _ in records] == [third, first]
    records.completed(second, Completed(1.0, "threshold", "summary", 9, 4))
    records.failed(second, Failed(1.0, "threshold", "summary_nothing"))
    records.refused(second, "nothing_to_compact")
    records.ends(records.begins(second))
    assert (records.completions, records.failures, len(records)) == (1, 1, 2)


def test_a_name_of_any_length_is_not_kept():
    records = Records()
    noted(records, 1, "m" * 2000)
    assert len(records) == 0


def test_a_record_is_small():
    records, gateway = Records(), world()
    request = Request("r", gateway.kit.recall.read("chat", body("chat", 1)), b"t" * 32, target_of("chat", 9), 5.0)
    tracemalloc.start()
    before = tracemalloc.take_snapshot()
    for number in range(1000):
        later = Request("r", request.conversation, request.tenant, request.target, 1e9 + number)
        size = replace_size(number)
        records.checked((number.to_bytes(32, "big"), "m"), later, "below_threshold", size, LIMITS, number, 0)
    grown = sum(it.size_diff for it in tracemalloc.take_snapshot().compare_to(before, "filename"))
    tracemalloc.stop()
    assert grown / 1000 < 900


def replace_size(number: int) -> Measured:
    return Measured(10_000 + number, 10_000 + number, 20_000 + number, 1.0 + number / 7)


def test_records_hold_no_words():
    gateway = world("chat", due())
    gateway.serve(body("chat"))
    record = only(gateway)
    held = [getattr(record, name) for name in dir(record) if name[0] != "_" and name != "target"]
    assert "what of it" not in repr(held)
    assert replace(gateway.to) == record.target
