"""Anthropic's compaction at a threshold: when it fires, what it answers, and how its blocks come back."""

import pytest
from simulator_calls import KEYS, MESSAGES, MESSAGES_TOOL, app_of, assistant, call, messages, user

from tidegate.simulator import ContextManagement, Step

HEADER = KEYS | {"anthropic-beta": "compact-2026-01-12"}
COUNT = "/v1/messages/count_tokens"
MODEL = {"model": "claude-opus-4-6"}
SMALL = ContextManagement(least_trigger=100)
GO = user("Go. FACT-01 is the port.")
ASK = user("What do you know?")
LONG = [GO, assistant("x" * 2000), user("On. FACT-02 is next."), assistant("Right."), ASK]
USE = {"type": "tool_use", "id": "a", "name": "read_file", "input": {}}
ANSWERED = user([{"type": "tool_result", "tool_use_id": "a", "content": "done"}])
NULL = {"type": "compaction", "content": None}


def text(words):
    return {"type": "text", "text": words}


def edit(value=300, **more):
    return {"edits": [{"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": value}, **more}]}


def ask(app, *entries, management=None, headers=HEADER, path=MESSAGES, **more):
    body = messages(*entries, **MODEL) | {"context_management": management or edit()} | more
    return call(app, path, body, headers)


def small(**settings):
    return app_of(**{"window": 5000, "context": SMALL, "tool_rounds": 0} | settings)


class TestTheEdit:
    @pytest.mark.parametrize(
        ("management", "words"),
        [
            (edit(50), "compact_20260112.trigger.input_tokens.value: Input should be greater than or equal to 100"),
            (edit("many"), "trigger.input_tokens.value: Input should be a valid integer"),
            (
                {"edits": [{"type": "compact_20260112", "trigger": {"type": "tool_uses", "value": 300}}]},
                "trigger: Input tag 'tool_uses' found using 'type' does not match",
            ),
            (edit(when="now"), "context_management.edits.0.compact_20260112.when: Extra inputs are not permitted"),
            (edit(pause_after_compaction="yes"), "pause_after_compaction: Input should be a valid boolean"),
            (edit(instructions=5), "instructions: Input should be a valid string"),
            ({"edits": edit()["edits"] * 2}, "edits.1: each kind of edit may be given once"),
            ({"edits": [{"type": "compact_2027"}]}, "edits.0: Input tag 'compact_2027' found using 'type'"),
            ({"edits": [{"type": "clear_tool_uses_20250919"}]}, "expected tags: 'compact_20260112'"),
            ({"edits": "x"}, "context_management.edits: Input should be a valid list"),
        ],
    )
    def test_refused(self, management, words):
        answer = ask(small(), GO, management=management)
        assert answer.status == 400
        assert words in answer.error

    def test_the_smallest_trigger_is_50000(self):
        words = "Input should be greater than or equal to 50000"
        assert words in ask(app_of(window=200_000), GO, management=edit(49_999)).error
        assert ask(app_of(window=200_000), GO, management=edit(50_000)).status == 200

    def test_needs_its_header(self):
        assert ask(small(), GO, headers=KEYS).error == "context_management: Extra inputs are not permitted"
        other = KEYS | {"anthropic-beta": "context-management-2025-06-27"}
        assert "Input tag 'compact_20260112'" in ask(small(), GO, headers=other).error

    def test_and_a_model_that_can(self):
        assert "does not support `compact_20260112`" in ask(small(), GO, model="claude-sonnet-4-5").error
        able = ContextManagement(model_betas={"claude-opus-5": ("compact-2026-09-04",)})
        answer = ask(small(context=able), GO, management=edit(60_000), model="claude-opus-5")
        assert "does not support `compact_20260112`" in answer.error

    def test_no_rescue_from_a_window_that_is_full(self):
        answer = ask(small(window=400), *LONG, management=edit(300))
        assert answer.status == 400
        assert answer.error.startswith("prompt is too long")


class TestBelowTheThreshold:
    def test_the_answer_is_an_ordinary_one_that_tells_its_iterations(self):
        answer = ask(small(), ASK).json
        assert [block["type"] for block in answer["content"]] == ["text"]
        assert answer["context_management"] == {"applied_edits": []}
        (spent,) = answer["usage"]["iterations"]
        assert (spent["type"], spent["input_tokens"]) == ("message", answer["usage"]["input_tokens"])

    def test_without_the_beta_it_tells_none(self):
        assert "iterations" not in call(small(), MESSAGES, messages(**MODEL)).json["usage"]


class TestOverTheThreshold:
    def test_the_block_comes_first_and_the_reply_sees_only_it(self):
        app = small()
        answer = ask(app, *LONG).json
        block, said = answer["content"]
        assert block["type"] == "compaction"
        assert "signature" not in block
        assert said["text"] == "I know FACT-01, FACT-02."
        assert (answer["stop_reason"], answer["context_management"]) == ("end_turn", {"applied_edits": []})
        record = app.state.records[-1]
        assert (record.kind, record.verdict) == ("main", "compacted")
        assert b"xxxx" not in record.effective
        assert b"FACT-02" in record.effective

    def test_usage_is_the_sum_of_the_messages_alone(self):
        app = small()
        usage = ask(app, *LONG).json["usage"]
        first, second = usage["iterations"]
        assert (first["type"], second["type"]) == ("compaction", "message")
        assert first["input_tokens"] == app.state.records[-1].input_tokens + 100
        assert usage["input_tokens"] == second["input_tokens"] < first["input_tokens"]
        assert usage["output_tokens"] == second["output_tokens"]

    def test_streamed(self):
        events = ask(small(), *LONG, stream=True).events
        start = events[0]["message"]["usage"]
        opened, ping, delta, closed, text_start = events[1:6]
        assert opened["content_block"] == {"type": "compaction", "content": None}
        assert (ping["type"], delta["index"], closed["type"]) == ("ping", 0, "content_block_stop")
        assert delta["delta"]["type"] == "compaction_delta"
        assert "FACT-01" in delta["delta"]["content"]
        assert (text_start["index"], text_start["content_block"]["type"]) == (1, "text")
        end = events[-2]
        assert end["context_management"] == {"applied_edits": []}
        assert start["input_tokens"] > end["usage"]["input_tokens"]
        assert "iterations" not in start
        assert [entry["type"] for entry in end["usage"]["iterations"]] == ["compaction", "message"]

    @pytest.mark.parametrize("stream", [False, True])
    def test_paused_it_says_no_more(self, stream):
        app = small()
        answer = ask(app, *LONG, management=edit(pause_after_compaction=True), stream=stream)
        if stream:
            kinds = [event["type"] for event in answer.events if event["type"].startswith("content_block")]
            assert kinds == ["content_block_start", "content_block_delta", "content_block_stop"]
            stop, usage = answer.events[-2]["delta"]["stop_reason"], answer.events[-2]["usage"]
            block = {"type": "compaction", "content": answer.events[3]["delta"]["content"]}
        else:
            (block,) = answer.json["content"]
            stop, usage = answer.json["stop_reason"], answer.json["usage"]
        assert (stop, usage["input_tokens"], usage["output_tokens"]) == ("compaction", 0, 0)
        assert [entry["type"] for entry in usage["iterations"]] == ["compaction"]
        assert app.state.records[-1].verdict == "paused"
        for tail in ([], [ASK], LONG[3:]):
            said = ask(app, assistant([block]), *tail).json["content"][-1]["text"]
            assert said == "I know FACT-01, FACT-02."

    def test_a_failed_one_is_null_and_the_reply_sees_all(self):
        app = small(script=(Step(do="null_artifact", on="compaction"),))
        answer = ask(app, *LONG, tools=[MESSAGES_TOOL]).json
        assert answer["content"][0] == NULL
        assert answer["content"][1]["text"] == "I know FACT-01, FACT-02."
        assert [entry["type"] for entry in answer["usage"]["iterations"]] == ["compaction", "message"]
        assert app.state.records[-1].verdict == "failed: null"
        again = ask(app, *LONG, assistant(answer["content"]), ASK, management=edit(4000))
        assert again.json["content"][0]["text"] == "I know FACT-01, FACT-02."

    def test_scripted_to_do_nothing(self):
        app = small(script=(Step(do="no_artifact"),))
        answer = ask(app, *LONG).json
        assert [block["type"] for block in answer["content"]] == ["text"]
        assert app.state.records[-1].verdict == "failed: no block"

    def test_scripted_to_come_twice(self):
        answer = ask(small(script=(Step(do="two_artifacts"),)), *LONG).json
        assert [block["type"] for block in answer["content"]] == ["compaction", "compaction", "text"]

    def test_unavailable(self):
        answer = ask(small(script=(Step(do="unavailable"),)), *LONG)
        assert (answer.status, answer.json["error"]["details"]["error_code"]) == (529, "compaction_unavailable")

    def test_the_tool_loop_goes_on_where_it_was(self):
        """A summary tells what was asked and how far the work had come, so the agent still comes to an end."""
        app = small(tool_rounds=6, window=2000)
        history, compacted = [user("Work. FACT-01 is the port.")], 0
        for turn in range(20):
            answer = ask(app, *history, management=edit(400), tools=[MESSAGES_TOOL]).json
            kinds = [block["type"] for block in answer["content"]]
            compacted += kinds[0] == "compaction"
            history.append(assistant(answer["content"]))
            if answer["stop_reason"] == "end_turn":
                break
            ids = [block["id"] for block in answer["content"] if block["type"] == "tool_use"]
            words = f"FACT-1{turn} " + "y" * 300
            history.append(user([{"type": "tool_result", "tool_use_id": id_, "content": words} for id_ in ids]))
        assert turn == 6
        assert compacted >= 2
        assert set(app.state.facts) == {"FACT-01", *(f"FACT-1{n}" for n in range(6))}


MINE = {"type": "compaction", "content": "The user said FACT-07."}


class TestComingBack:
    def test_an_unsigned_block_of_any_words(self):
        app = small()
        answer = ask(app, assistant([MINE]), ASK)
        assert answer.json["content"][0]["text"] == "I know FACT-07."
        assert app.state.records[-1].verdict == "replayed"

    @pytest.mark.parametrize(
        "history",
        [
            [*LONG[:-1], assistant([MINE, text("So.")]), ASK],
            [assistant([MINE]), GO, assistant([MINE]), ASK],
            [GO, assistant([MINE | {"content": "FACT-01."}, text("FACT-02."), MINE]), ASK],
            [GO, assistant([NULL, text("FACT-01.")]), GO, assistant([MINE, text("So.")]), ASK],
            [assistant([MINE, NULL]), ASK],
        ],
        ids=["kept-beginning", "two-messages", "one-message", "failed-before", "failed-after"],
    )
    def test_everything_before_the_latest_is_not_there(self, history):
        answer = ask(small(), *history, management=edit(3000))
        assert answer.json["content"][0]["text"] == "I know FACT-07."

    def test_what_is_ignored_is_not_counted(self):
        app = small()
        lean = ask(app, assistant([MINE]), ASK).json["usage"]["input_tokens"]
        kept = ask(app, *LONG[:-1], assistant([MINE]), ASK).json["usage"]["input_tokens"]
        assert kept == lean

    @pytest.mark.parametrize("path", [MESSAGES, COUNT])
    def test_header_and_edit_are_both_needed(self, path):
        body = messages(assistant([MINE]), ASK, **MODEL)
        body = body if path == MESSAGES else {name: body[name] for name in ("model", "messages")}
        unknown = "messages.0.content.0: `compaction` is not one of the expected content block types"
        assert call(small(), path, body, KEYS).error == unknown
        assert "need a `compact_20260112` edit" in call(small(), path, body, HEADER).error
        assert call(small(), path, body | {"context_management": edit()}, HEADER).status == 200

    def test_the_header_alone_of_the_other_beta_wants_a_signature(self):
        both = KEYS | {"anthropic-beta": "compact-2026-01-12,compact-2026-09-04"}
        answer = call(small(), MESSAGES, messages(assistant([MINE]), ASK, **MODEL), both)
        assert answer.json["error"]["details"] == {"error_code": "compaction_signature_invalid"}

    def test_rounds_may_not_be_cut_in_two(self):
        assert "unexpected `tool_use_id`" in ask(small(), assistant([MINE]), ANSWERED).error
        answer = ask(small(), GO, assistant([MINE, USE]), ANSWERED, tools=[MESSAGES_TOOL])
        assert answer.status == 200

    def test_sealed_metadata_comes_back_as_it_was(self):
        app = small(context=ContextManagement(least_trigger=100, sealed_blocks=True))
        block, _ = ask(app, *LONG).json["content"]
        assert ask(app, assistant([block]), ASK).status == 200
        sealed = block["encrypted_content"]
        changed = block | {"encrypted_content": sealed[:-2] + "AA"}
        assert "Invalid `encrypted_content`" in ask(app, assistant([changed]), ASK).error


class TestCounting:
    def test_tells_both_sizes_and_never_compacts(self):
        app = small()
        body = {**MODEL, "messages": LONG, "context_management": edit()}
        counted = call(app, COUNT, body, HEADER).json
        plain = call(app, COUNT, {**MODEL, "messages": LONG}).json
        assert plain == {"input_tokens": counted["input_tokens"]}
        assert counted["context_management"] == {"original_input_tokens": counted["input_tokens"]}

    def test_applies_blocks(self):
        app = small()
        history = [*LONG[:-1], assistant([MINE]), ASK]
        counted = call(app, COUNT, {**MODEL, "messages": history, "context_management": edit()}, HEADER).json
        assert counted["input_tokens"] == ask(app, *history).json["usage"]["input_tokens"]
        assert counted["context_management"]["original_input_tokens"] > counted["input_tokens"] + 400
