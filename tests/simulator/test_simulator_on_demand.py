"""Anthropic's compaction on demand: what it refuses, what it answers, and how its block may come back."""

import pytest
from simulator_calls import KEYS, MESSAGES, MESSAGES_TOOL, app_of, assistant, call, messages, user

from tidegate.simulator import ContextManagement, Step

HEADER = KEYS | {"anthropic-beta": "other-2025-01-01, compact-2026-09-04"}
COUNT = "/v1/messages/count_tokens"
MODEL = {"model": "claude-opus-5-5"}
SUMMARIZE = {"compaction": {"type": "summarize"}}
GO = user("Go. FACT-01 is the port.")
HISTORY = [GO, assistant("FACT-02 is done."), user("On. FACT-03 is next."), assistant("Right.")]
USE = {"type": "tool_use", "id": "a", "name": "read_file", "input": {}}
ANSWERED = user([{"type": "tool_result", "tool_use_id": "a", "content": "done"}])
EDIT = {"context_management": {"edits": [{"type": "compact_20260112"}]}}


def compacting(*entries, **more):
    return messages(*(entries or HISTORY), **MODEL, **SUMMARIZE, max_tokens=2000) | more


def compact(app, *entries, headers=HEADER, **more):
    return call(app, MESSAGES, compacting(*entries, **more), headers)


def block_of(app, *entries, headers=HEADER, **more):
    answer = compact(app, *entries, headers=headers, **more)
    assert answer.status == 200, answer.raw
    (block,) = answer.json["content"]
    return block


def replay(app, *entries, headers=HEADER, **more):
    return call(app, MESSAGES, messages(*entries, **MODEL) | more, headers)


APP = app_of(window=20_000)
LONG = "x" * 16_385

REFUSED = {
    "without-header": (compacting(), KEYS, "beta-header", "requires anthropic-beta: compact-2026-09-04"),
    "other-type": (compacting(compaction={"type": "sum"}), HEADER, "compaction-type", "Input should be 'summarize'"),
    "no-object": (compacting(compaction=True), HEADER, "compaction-type", "compaction.type"),
    "unknown-field": (
        compacting(compaction={"type": "summarize", "trigger": 1}),
        HEADER,
        "unknown-field",
        "compaction.trigger: Extra inputs are not permitted",
    ),
    "instructions-long": (
        compacting(compaction={"type": "summarize", "instructions": LONG}),
        HEADER,
        "compaction-instructions",
        "at most 16384 characters",
    ),
    "with-edits": (compacting(**EDIT), HEADER, "compaction-combined", "`context_management`"),
    "with-stops": (compacting(stop_sequences=["x"]), HEADER, "compaction-combined", "`stop_sequences`"),
    "with-format": (
        compacting(output_config={"format": {"type": "json_schema", "schema": {}}}),
        HEADER,
        "compaction-combined",
        "`output_config.format`",
    ),
    "with-tool-choice": (
        compacting(tools=[MESSAGES_TOOL], tool_choice={"type": "any"}),
        HEADER,
        "compaction-combined",
        "`tool_choice`",
    ),
    "with-one-tool": (
        compacting(tools=[MESSAGES_TOOL], tool_choice={"type": "tool", "name": "read_file"}),
        HEADER,
        "compaction-combined",
        "`tool_choice`",
    ),
    "with-budget-left": (
        compacting(output_config={"task_budget": {"type": "tokens", "total": 9, "remaining": 3}}),
        HEADER,
        "compaction-combined",
        "`output_config.task_budget.remaining`",
    ),
    "old-model": (compacting(model="claude-sonnet-4-5"), HEADER, "compaction-model", "does not support compaction"),
    "old-haiku": (compacting(model="claude-haiku-5"), HEADER, "compaction-model", "does not support compaction"),
    "open-call": (compacting(GO, assistant([USE])), HEADER, "compaction_incomplete_turn", "not finished"),
    "nothing": (compacting(messages=[]), HEADER, "compaction_nothing_to_summarize", "no `user` or `assistant` content"),
    "system-only": (
        compacting({"role": "system", "content": "Be brief."}),
        HEADER,
        "compaction_nothing_to_summarize",
        "no `user` or `assistant` content",
    ),
    "orphan": (compacting(ANSWERED), HEADER, "result-without-call", "unexpected `tool_use_id`"),
    "too-long": (compacting(user("x" * 100_000)), HEADER, "window", "prompt is too long: "),
}


@pytest.mark.parametrize(("body", "headers", "rule", "words"), REFUSED.values(), ids=REFUSED)
def test_refused(body, headers, rule, words):
    answer = call(APP, MESSAGES, body, headers)
    assert answer.status == 400
    assert words in answer.error
    record = APP.state.records[-1]
    assert record.refusal == rule
    code = answer.json["error"].get("details", {}).get("error_code")
    assert code == (rule if rule.startswith("compaction_") else None)


ALLOWED = {
    "blank-instructions": compacting(compaction={"type": "summarize", "instructions": " "}),
    "null-instructions": compacting(compaction={"type": "summarize", "instructions": None}),
    "full-instructions": compacting(compaction={"type": "summarize", "instructions": LONG[1:]}),
    "tool-choice-auto": compacting(tools=[MESSAGES_TOOL], tool_choice={"type": "auto"}),
    "tools-and-no-choice": compacting(GO, assistant([USE]), ANSWERED, tools=[MESSAGES_TOOL]),
    "ends-in-words": compacting(GO, assistant("Done.")),
    "ends-in-user": compacting(GO),
    "effort": compacting(output_config={"effort": "low"}),
    "nothing-asked": compacting(compaction=None),
}


@pytest.mark.parametrize("body", ALLOWED.values(), ids=ALLOWED)
def test_allowed(body):
    asked = body["compaction"] is not None
    answer = call(APP, MESSAGES, body if asked else body | {"messages": [GO]}, HEADER)
    assert answer.status == 200, answer.raw
    assert (answer.json["stop_reason"] == "compaction") is asked


class TestTheAnswer:
    def test_is_the_block_alone(self):
        app = app_of(window=20_000)
        answer = compact(app, system="FACT-99 is system text.").json
        (block,) = answer["content"]
        assert sorted(block) == ["content", "signature", "type"]
        assert (answer["role"], answer["stop_reason"], block["type"]) == ("assistant", "compaction", "compaction")
        assert all(f"FACT-0{n}" in block["content"] for n in (1, 2, 3))
        assert "FACT-99" not in block["content"]
        assert app.state.records[-1].kind == "compaction"
        assert app.state.records[-1].verdict == "compacted"

    def test_usage_is_in_the_iterations_alone(self):
        app = app_of(window=20_000)
        usage = compact(app).json["usage"]
        assert (usage["input_tokens"], usage["output_tokens"]) == (0, 0)
        (spent,) = usage["iterations"]
        assert spent["type"] == "compaction"
        assert spent["input_tokens"] == app.state.records[-1].input_tokens + 100
        assert spent["output_tokens"] > 50

    def test_streamed_the_block_comes_whole(self):
        answer = compact(app_of(window=20_000), stream=True)
        kinds = [event["type"] for event in answer.events]
        assert kinds == [
            "message_start", "content_block_start", "ping", "content_block_stop", "message_delta", "message_stop",
        ]  # fmt: skip
        block = answer.events[1]["content_block"]
        assert "FACT-01" in block["content"]
        assert block["signature"]
        end = answer.events[-2]
        assert end["delta"]["stop_reason"] == "compaction"
        assert end["usage"]["iterations"][0]["type"] == "compaction"
        assert "iterations" not in answer.events[0]["message"]["usage"]

    def test_changes_of_the_tool_set_are_told(self):
        change = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "read_file"}}
        app = app_of(window=20_000)
        block = block_of(app, GO, assistant("x"), user([{"type": "text", "text": "y"}, change]), tools=[MESSAGES_TOOL])
        assert block["tool_changes"] == [change]
        assert replay(app, assistant([block]), GO).status == 200
        answer = replay(app, assistant([block | {"tool_changes": []}]), GO)
        assert answer.json["error"]["details"] == {"error_code": "compaction_tool_changes_mismatch"}

    def test_only_so_many_changes_of_the_tool_set(self):
        change = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "read_file"}}
        app = app_of(window=20_000, context=ContextManagement(most_tool_changes=1))
        history = user([{"type": "text", "text": "y"}, change, change])
        code = {"error_code": "compaction_too_many_tool_references"}
        assert compact(app, history).json["error"]["details"] == code
        assert compact(app, user([{"type": "text", "text": "y"}, change])).status == 200
        assert call(app, COUNT, {**MODEL, **SUMMARIZE, "messages": [history]}, HEADER).status == 200

    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize(
        ("step", "status", "outcome"),
        [
            ({"do": "error", "status": 500}, 500, "faulted"),
            ({"do": "error", "status": 529, "headers": {"retry-after": "3"}, "body": "busy"}, 529, "faulted"),
            ({"do": "html"}, 502, "faulted"),
            ({"do": "garbage"}, 200, "faulted"),
            ({"do": "cut", "after": 2}, 200, "faulted"),
            ({"do": "overflow"}, 400, "overflow"),
        ],
        ids=lambda value: value["do"] if isinstance(value, dict) else value,
    )
    def test_scripted_faults_of_the_call(self, step, status, outcome, stream):
        app = app_of(window=20_000, script=(Step(**step, on="compaction"),))
        assert replay(app, GO).status == 200, "no compaction"
        answer = compact(app, stream=stream)
        assert (answer.status, app.state.records[-1].outcome) == (status, outcome)
        assert b"compaction" not in answer.raw or step["do"] == "cut"
        assert b"message_stop" not in answer.raw
        assert compact(app, stream=stream).status == 200

    def test_scripted_usage(self):
        app = app_of(window=20_000, script=(Step(do="answer", on="compaction", usage={"input": 7, "output": 5}),))
        (spent,) = compact(app).json["usage"]["iterations"]
        assert (spent["input_tokens"], spent["output_tokens"]) == (7, 5)

    @pytest.mark.parametrize(
        ("step", "stop"),
        [
            ({"do": "no_artifact"}, "end_turn"),
            ({"do": "empty"}, "end_turn"),
            ({"do": "length"}, "max_tokens"),
            ({"do": "tool_call"}, "tool_use"),
            ({"do": "refusal"}, "refusal"),
            ({"do": "window_exceeded"}, "model_context_window_exceeded"),
        ],
        ids=lambda value: value["do"] if isinstance(value, dict) else value,
    )
    @pytest.mark.parametrize("stream", [False, True])
    def test_without_a_summary_it_is_a_200_all_the_same_and_billed(self, step, stop, stream):
        app = app_of(window=20_000, script=(Step(**step, on="compaction"),))
        answer = compact(app, stream=stream)
        assert answer.status == 200
        if stream:
            assert not any(event["type"].startswith("content_block") for event in answer.events)
            end = answer.events[-2]
            reason, usage, details = end["delta"]["stop_reason"], end["usage"], end["delta"].get("stop_details")
        else:
            assert answer.json["content"] == []
            reason, usage = answer.json["stop_reason"], answer.json["usage"]
            details = answer.json.get("stop_details")
        assert reason == stop
        assert usage["iterations"][0]["input_tokens"] > 100
        assert (details is not None) is (stop == "refusal")
        assert app.state.records[-1].verdict == f"failed: {stop}"

    def test_a_summary_longer_than_its_limit_is_none(self):
        answer = compact(APP, max_tokens=20).json
        assert (answer["content"], answer["stop_reason"]) == ([], "max_tokens")
        assert answer["usage"]["iterations"][0]["output_tokens"] == 20

    def test_the_prompt_and_the_summary_must_fit_the_window_too(self):
        app = app_of(window=20_000)
        size = call(app, COUNT, {**MODEL, **SUMMARIZE, "messages": HISTORY}, HEADER).json["input_tokens"]
        answer = compact(app_of(window=size + 120)).json
        assert (answer["content"], answer["stop_reason"]) == ([], "model_context_window_exceeded")
        assert compact(app_of(window=size - 1)).status == 400

    def test_scripted_faults_of_the_artifact(self):
        app = app_of(
            window=20_000,
            script=tuple(Step(do=do, on="compaction") for do in ("two_artifacts", "null_artifact", "bad_artifact")),
        )
        two = compact(app).json["content"]
        assert len(two) == 2
        assert replay(app, assistant(two), GO).json["error"]["details"] == {"error_code": "compaction_block_ambiguous"}
        null = compact(app).json
        assert (null["content"][0]["content"], null["stop_reason"]) == (None, "compaction")
        bad = compact(app).json["content"]
        code = replay(app, assistant(bad), GO).json["error"]["details"]["error_code"]
        assert code == "compaction_signature_invalid"

    def test_unavailable_for_the_call_and_for_a_block_that_comes_back(self):
        app = app_of(window=20_000)
        block = block_of(app)
        app.state.script.push(Step(do="unavailable", times=2))
        for answer in (compact(app), replay(app, assistant([block]), GO)):
            assert answer.status == 529
            assert answer.json["error"]["type"] == "overloaded_error"
            assert answer.json["error"]["details"] == {"error_code": "compaction_unavailable"}
            assert app.state.records[-1].outcome == "faulted"
        assert app.state.violations == []
        assert replay(app, assistant([block]), GO).status == 200


@pytest.fixture(scope="module")
def app():
    return app_of(window=20_000, tool_rounds=0, orgs={"theirs": "other"})


@pytest.fixture(scope="module")
def block(app):
    return block_of(app)


class TestComingBack:
    def test_in_place_of_what_it_stands_for(self, app, block):
        for history in (
            [assistant([block]), user("What do you know?")],
            [user([block, {"type": "text", "text": "What do you know?"}])],
            [assistant([block | {"cache_control": {"type": "ephemeral"}}]), user("What do you know?")],
            [assistant([block, {"type": "text", "text": "Kept."}]), user("What do you know?")],
            [assistant([block]), assistant("Kept."), user("What do you know?")],
        ):
            answer = replay(app, *history, model="claude-sonnet-5", system="Other.", tools=[MESSAGES_TOOL])
            assert answer.status == 200, answer.raw
            assert app.state.facts == ("FACT-01", "FACT-02", "FACT-03")
            assert app.state.records[-1].verdict == "replayed"
            assert b"compaction" not in app.state.records[-1].effective
            assert answer.json["usage"]["iterations"][-1]["input_tokens"] == answer.json["usage"]["input_tokens"]

    def test_what_the_model_got_can_be_looked_at(self, app, block):
        replay(app, assistant([block]), GO)
        number = app.state.records[-1].number
        seen = call(app, f"/__sim/window/{number}", method="GET").json
        assert seen["verdict"] == "replayed"
        assert seen["window"] == [assistant([{"type": "text", "text": block["content"]}]), GO]

    def test_alone(self, app, block):
        assert replay(app, assistant([block])).status == 200

    def test_a_kept_tail_follows_it(self, app):
        block = block_of(app, *HISTORY[:2])
        answer = replay(app, assistant([block]), *HISTORY[2:], user("What do you know?"))
        assert answer.json["content"][0]["text"] == "I know FACT-01, FACT-02, FACT-03."
        assert b"FACT-03" in app.state.records[-1].effective

    def test_what_it_stands_for_is_counted_twice_where_it_is_left_in(self, app, block):
        lean = replay(app, assistant([block]), GO).json["usage"]["input_tokens"]
        fat = replay(app, assistant([block]), *HISTORY, GO)
        assert fat.status == 200
        assert fat.json["usage"]["input_tokens"] > lean + 20

    def test_and_is_gone_where_the_block_is_left_out(self, app):
        assert replay(app, user("What do you know?")).json["content"][0]["text"] == "I know no facts."

    def test_compacted_again_it_is_swallowed(self, app, block):
        again = block_of(app, assistant([block]), user("FACT-04 is new."), assistant("Right."))
        told = replay(app, assistant([again]), user("What do you know?")).json["content"][0]["text"]
        assert told == "I know FACT-01, FACT-02, FACT-03, FACT-04."

    def test_the_header_is_needed_each_time(self, app, block):
        answer = replay(app, assistant([block]), GO, headers=KEYS)
        assert answer.error == "messages.0.content.0: `compaction` is not one of the expected content block types"

    @pytest.mark.parametrize(
        ("history", "code"),
        [
            (lambda b: [assistant([b]), assistant([b]), GO], "compaction_block_ambiguous"),
            (lambda b: [assistant([b, b]), GO], "compaction_block_ambiguous"),
            (lambda b: [GO, assistant([b]), GO], "compaction_block_misplaced"),
            (lambda b: [user([{"type": "text", "text": "x"}, b])], "compaction_block_misplaced"),
            (lambda b: [{"role": "system", "content": [b]}, GO], "compaction_block_misplaced"),
            (lambda b: [assistant([b | {"content": b["content"] + " "}]), GO], "compaction_content_mismatch"),
            (lambda b: [assistant([b | {"signature": b["signature"][:-1]}]), GO], "compaction_signature_invalid"),
            (lambda b: [assistant([b | {"signature": "EuYBabc"}]), GO], "compaction_signature_invalid"),
            (lambda b: [assistant([b | {"signature": None}]), GO], "compaction_signature_invalid"),
            (lambda b: [assistant([{"type": "compaction", "content": "Mine."}]), GO], "compaction_signature_invalid"),
            (lambda b: [assistant([b | {"tool_changes": []}]), GO], "compaction_tool_changes_mismatch"),
        ],
    )
    def test_codes(self, app, block, history, code):
        for path in (MESSAGES, COUNT):
            body = {**MODEL, "messages": history(block)} | ({"max_tokens": 9} if path == MESSAGES else {})
            answer = call(app, path, body, HEADER)
            assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")
            assert answer.json["error"]["details"] == {"error_code": code}

    def test_every_changed_character_is_noticed(self, app, block):
        for at in range(4, len(block["signature"]), 37):
            other = "B" if block["signature"][at] != "B" else "C"
            changed = block["signature"][:at] + other + block["signature"][at + 1 :]
            answer = replay(app, assistant([block | {"signature": changed}]), GO)
            assert answer.json["error"]["details"] == {"error_code": "compaction_signature_invalid"}

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"citations": None}, "messages.0.content.0.compaction.citations: Extra inputs are not permitted"),
            ({"text": None}, "messages.0.content.0.compaction.text: Extra inputs are not permitted"),
            ({"content": ""}, "messages.0.content.0.compaction.content: String should have at least 1 character"),
            ({"content": 5}, "messages.0.content.0.compaction.content: Input should be a valid string"),
        ],
    )
    def test_form(self, app, block, change, words):
        assert replay(app, assistant([block | change]), GO).error == words

    def test_a_failed_one_is_no_more_than_nothing(self, app, block):
        null = {"type": "compaction", "content": None}
        assert replay(app, assistant([null, block]), GO).status == 200
        assert replay(app, GO, assistant([null, {"type": "text", "text": "x"}]), GO).status == 200
        assert "first message" in replay(app, assistant([null]), assistant("x"), GO).error

    def test_not_beside_a_compaction_edit(self, app, block):
        both = KEYS | {"anthropic-beta": "compact-2026-09-04,compact-2026-01-12"}
        answer = replay(app, assistant([block]), GO, headers=both, **EDIT)
        assert "cannot be combined with a `compact_20260112` edit" in answer.error
        assert replay(app, assistant([block]), GO, headers=both).status == 200

    def test_only_its_organisation_reads_it(self, app, block):
        theirs = HEADER | {"authorization": "Bearer theirs"}
        answer = replay(app, assistant([block]), GO, headers=theirs)
        assert answer.json["error"]["details"] == {"error_code": "compaction_signature_invalid"}
        mine = block_of(app, headers=theirs)
        assert replay(app, assistant([mine]), GO, headers=theirs).status == 200

    @pytest.mark.parametrize(
        ("bound_to", "read"),
        [("workspace", ["a/x"]), ("organization", ["a/x", "a/y"]), ("anyone", ["a/x", "a/y", "b/x"])],
    )
    def test_who_reads_it_can_be_chosen(self, bound_to, read):
        orgs = {org: org for org in ("a/x", "a/y", "b/x")}
        app = app_of(window=20_000, orgs=orgs, context=ContextManagement(bound_to=bound_to))
        keys = {org: HEADER | {"authorization": f"Bearer {org}"} for org in orgs}
        block = block_of(app, headers=keys["a/x"])
        assert [org for org in orgs if replay(app, assistant([block]), GO, headers=keys[org]).status == 200] == read

    def test_another_platform_does_not_read_it(self, app, block):
        assert block_of(app_of(window=20_000, profile="foundry"))["content"] == block["content"]
        answer = replay(app_of(window=20_000, profile="foundry"), assistant([block]), GO)
        assert answer.json["error"]["details"] == {"error_code": "compaction_signature_invalid"}

    def test_tool_rounds_may_not_be_cut_in_two(self, app):
        block = block_of(app, GO)
        tail = [assistant([USE]), ANSWERED]
        assert replay(app, assistant([block]), *tail, tools=[MESSAGES_TOOL]).status == 200
        assert "unexpected `tool_use_id`" in replay(app, assistant([block]), ANSWERED).error


def test_counting_ignores_the_request_and_counts_the_block():
    app = app_of(window=20_000)
    body = {**MODEL, "messages": [GO, assistant([USE]), ANSWERED]}
    plain = call(app, COUNT, body, HEADER).json
    assert call(app, COUNT, body | SUMMARIZE, HEADER).json == plain
    block = block_of(app)
    counted = call(app, COUNT, {**MODEL, "messages": [assistant([block]), GO]}, HEADER).json
    assert counted == {"input_tokens": replay(app, assistant([block]), GO).json["usage"]["input_tokens"]}


def test_where_it_is_not_served_it_is_unknown(block):
    app = app_of(window=20_000, context=ContextManagement(betas=()))
    assert compact(app).error == "compaction: Extra inputs are not permitted"
    assert "is not one of the expected content block types" in replay(app, assistant([block]), GO).error
