"""Anthropic's compaction at a threshold, as a call of our own: what it asks, when it is not made, what failures are
called, and how a request says that it carries the block."""

import json
from collections.abc import Iterator

import pytest
from native_cases import Provider, assistant, drive, first_call, passage_of, raw, user
from test_native_anthropic import TOOL, WITHHELD, coded, worded

from tidegate.compactors import threshold
from tidegate.compactors.native import Options
from tidegate.compactors.strategy import CompactionFailed, Reply
from tidegate.simulator import ContextManagement, SimulatorSettings, Step, serve
from tidegate.wire import read

LEAST = 200
CONTEXT = ContextManagement(least_trigger=LEAST)
PLAIN = SimulatorSettings(window=40_000, profile="bedrock", context=CONTEXT)
OPTIONS = Options(timeout=5.0, least_trigger=LEAST)
MODEL = {"model": "anthropic.claude-opus-5", "max_tokens": 500}
LONG = "abcdefg " * 200
SPOKEN = [user(f"FACT-01 is the port. {LONG}"), assistant(f"FACT-02 is done. {LONG}"), user("FACT-03 is next.")]
EDIT = {
    "type": "compact_20260112",
    "trigger": {"type": "input_tokens", "value": LEAST},
    "pause_after_compaction": True,
}


@pytest.fixture(scope="module")
def simulator():
    with serve(PLAIN) as running:
        yield running


@pytest.fixture
def provider(simulator) -> Iterator[Provider]:
    simulator.state.reset()
    yield Provider(simulator)
    simulator.app.configure(PLAIN)


def passage(*items, **fields):
    cut = {"tail": [assistant("Right."), user("On.")], "size": 900}
    return passage_of("messages", items or SPOKEN, **cut | MODEL | fields)


def known(provider: Provider, minted, *more, **fields):
    """The answer of the model, asked with the block, and what must stand beside it."""
    items = b",".join([*minted.items, *(raw(item) for item in more)])
    body = b'{"messages":[' + items + b"]," + raw({**MODEL, **fields})[1:]
    managed = threshold.standing(read("messages", body), 40_000, LEAST)
    body = body[:-1] + b',"context_management":' + managed + b"}"
    answer = provider.post("/messages", body, {"anthropic-beta": threshold.BETA})
    assert answer.status_code == 200, answer.text
    return "".join(block.get("text", "") for block in answer.json()["content"])


class TestCall:
    def test_the_clients_request_with_the_passage_and_an_edit(self):
        own = {"system": "Be brief.", "tools": [TOOL], "metadata": {"user_id": "u"}, "temperature": 1}
        call = first_call(threshold.compact(passage(**own), OPTIONS))
        managed = {"edits": [EDIT]}
        body = {**MODEL, "messages": SPOKEN, **own, "max_tokens": 16_000, "context_management": managed}
        assert (call.path, json.loads(call.body), call.timeout) == ("/messages", body, 5.0)
        assert call.add_headers == {"accept": "application/json", "anthropic-beta": "compact-2026-01-12"}

    def test_the_platforms_own_name_of_the_beta(self):
        options = Options(betas=("compact-x",), least_trigger=LEAST)
        assert first_call(threshold.compact(passage(), options)).add_headers["anthropic-beta"] == "compact-x"

    @pytest.mark.parametrize(("name", "value"), WITHHELD.items(), ids=WITHHELD)
    def test_what_only_shapes_an_answer_is_withheld(self, provider, name, value):
        fields = {name: value, "tools": [TOOL]}
        body = json.loads(first_call(threshold.compact(passage(**fields), OPTIONS)).body)
        assert body.get(name) in (None, {"edits": [EDIT]})
        assert provider.run(threshold.compact(passage(**fields), OPTIONS)).calls == 1
        assert provider.violations() == []

    @pytest.mark.parametrize(
        ("cut", "reason"),
        [
            (passage(size=LEAST + LEAST // 8 - 1), "compact_below_trigger"),
            (passage(*SPOKEN[:2]), "compact_incomplete_turn"),
            (passage(*SPOKEN, {"role": "system", "content": "x"}), "compact_incomplete_turn"),
            (passage(thread={"type": "create"}), "compact_server_held"),
        ],
        ids=["too little for a trigger", "it ends with an answer", "it ends with instructions", "a thread"],
    )
    def test_no_call_where_it_can_come_to_nothing(self, cut, reason):
        with pytest.raises(CompactionFailed, match=reason) as failure:
            first_call(threshold.compact(cut, OPTIONS))
        assert not failure.value.missing

    def test_equal_input_gives_equal_calls(self):
        one, other = (first_call(threshold.compact(passage(**WITHHELD), OPTIONS)) for _ in "ab")
        assert one == other


class TestAnswer:
    @pytest.mark.parametrize("sealed", [False, True], ids=["plain", "with sealed metadata"])
    def test_facts_live_through_two_compactions(self, provider, sealed):
        provider.simulator.configure(context=ContextManagement(least_trigger=LEAST, sealed_blocks=sealed))
        first = provider.run(threshold.compact(passage(system="Be brief."), OPTIONS))
        assert threshold.is_signed(first.items[0]) is False
        newer = [assistant(f"FACT-04 is done. {LONG}"), user("FACT-05 is new.")]
        second = provider.run(threshold.compact(passage(*newer, earlier=first.items, system="Be brief."), OPTIONS))
        said = known(provider, second, user("What do you know? FACT-06 is newest."))
        assert all(f"FACT-0{n}" in said for n in range(1, 7))
        assert provider.violations() == []

    def test_usage_is_in_its_iterations(self, provider):
        minted = provider.run(threshold.compact(passage(), OPTIONS))
        (record,) = provider.simulator.state.compactions()
        assert minted.input_tokens >= record.input_tokens > minted.output_tokens > 0

    def test_words_are_retained(self, provider):
        minted = provider.run(
            threshold.compact(passage(retained=(2,)), Options(binds_thinking=True, least_trigger=LEAST))
        )
        assert minted.retained == (2,)


BLOCK = {"type": "compaction", "content": "So."}
NONE = {
    "an ordinary answer": ([{"type": "text", "text": "Hi."}], "end_turn", "compact_no_artifact"),
    "a tool call": ([{"type": "compaction", "content": None}], "tool_use", "compact_called_tool"),
    "null": ([{"type": "compaction", "content": None}], "compaction", "compact_no_artifact"),
    "two": ([BLOCK, BLOCK], "compaction", "compact_two_artifacts"),
    "no pause": ([BLOCK, {"type": "text", "text": "Hi."}], "end_turn", "compact_no_artifact"),
    "cut": ([], "max_tokens", "compact_cut_by_length"),
    "window": ([], "model_context_window_exceeded", "compact_overflow"),
}


@pytest.mark.parametrize(("content", "stop", "reason"), NONE.values(), ids=NONE)
def test_a_200_without_a_block(content, stop, reason):
    reply = Reply(200, raw({"type": "message", "content": content, "stop_reason": stop}))
    with pytest.raises(CompactionFailed) as failure:
        drive(threshold.compact(passage(), OPTIONS), lambda _call: reply)
    assert (failure.value.reason, failure.value.missing) == (reason, False)


TAG = "context_management.edits.0: Input tag 'compact_20260112' found does not match any of the expected tags"
REFUSED = {
    "field-unknown": (worded("context_management: Extra inputs are not permitted"), "compact_missing"),
    "edit-unknown": (worded(TAG), "compact_missing"),
    "model": (worded("context_management: `claude-x` does not support `compact_20260112`"), "compact_missing"),
    "header-unknown": (Reply(400, b'{"message":"invalid beta flag"}'), "compact_missing"),
    "converse": (
        Reply(400, b'{"message":"The compact beta feature is not currently supported on the Converse API"}'),
        "compact_missing",
    ),
    "too-small-a-trigger": (
        worded("context_management.edits.0.trigger.input_tokens.value: Input should be greater than or equal to 50000"),
        "compact_http_400",
    ),
    "too-long": (worded("prompt is too long: 215692 tokens > 200000 maximum"), "compact_overflow"),
    "signed-with-edit": (coded("compaction_signature_invalid"), "compact_stale"),
    "key": (worded("invalid x-api-key", 401), "compact_http_401"),
    "overloaded": (worded("Overloaded", 529), "compact_http_529"),
    "page-in-200": (Reply(200, b"<html>"), "compact_unreadable"),
    "unreachable": (Reply(0), "compact_unreachable"),
}


@pytest.mark.parametrize(("reply", "reason"), REFUSED.values(), ids=REFUSED)
def test_refusals(reply, reason):
    with pytest.raises(CompactionFailed) as failure:
        drive(threshold.compact(passage(), OPTIONS), lambda _call: reply)
    assert (failure.value.reason, failure.value.missing) == (reason, reason == "compact_missing")


WITHOUT = {
    "unserved": ({"betas": ()}, {}, "compact_missing"),
    "not-this-model": ({"model_betas": {MODEL["model"]: ()}}, {}, "compact_missing"),
    "ignored": ({"betas": ()}, {"strict_fields": False}, "compact_no_artifact"),
}


@pytest.mark.parametrize(("context", "changes", "reason"), WITHOUT.values(), ids=WITHOUT)
def test_a_platform_that_has_no_such_thing(provider, context, changes, reason):
    provider.simulator.configure(context=ContextManagement(least_trigger=LEAST, **context), **changes)
    with pytest.raises(CompactionFailed) as failure:
        provider.run(threshold.compact(passage(), OPTIONS))
    assert (failure.value.reason, failure.value.missing) == (reason, reason == "compact_missing")


SCRIPT = {
    "no-block": (Step(do="no_artifact"), "compact_no_artifact"),
    "null-block": (Step(do="null_artifact"), "compact_no_artifact"),
    "two-blocks": (Step(do="two_artifacts"), "compact_two_artifacts"),
    "unavailable": (Step(do="unavailable"), "compact_http_529"),
    "garbage": (Step(do="garbage"), "compact_unreadable"),
    "cut": (Step(do="cut"), "compact_unreachable"),
    "drop": (Step(do="drop"), "compact_unreachable"),
}


@pytest.mark.parametrize(("step", "reason"), SCRIPT.values(), ids=SCRIPT)
def test_script(provider, step, reason):
    provider.simulator.script(step)
    with pytest.raises(CompactionFailed) as failure:
        provider.run(threshold.compact(passage(), OPTIONS))
    assert failure.value.reason == reason


OWN = {"type": "clear_tool_uses_20250919"}


@pytest.mark.parametrize(
    ("field", "window", "expected"),
    [
        ({}, 200_000, [(200_000)]),
        ({}, None, [1_000_000]),
        ({}, 10_000, [50_000]),
        ({"context_management": None}, 200_000, [200_000]),
        ({"context_management": {}}, 200_000, [200_000]),
        ({"context_management": {"edits": [OWN]}}, 200_000, [OWN, 200_000]),
        ({"context_management": []}, 200_000, None),
        ({"context_management": {"edits": 1}}, 200_000, None),
    ],
)
def test_what_stands_beside_a_block_keeps_the_clients_own_edits_and_never_compacts(field, window, expected):
    asked = read("messages", raw({**MODEL, "messages": SPOKEN, **field}))
    managed = threshold.standing(asked, window, 50_000)
    if expected is None:
        assert managed is None
        return
    edits = json.loads(managed)["edits"]
    assert [edit if edit == OWN else edit["trigger"]["value"] for edit in edits] == expected
