"""Anthropic's compaction on demand: what is withheld, what is kept to the byte, and what each failure is called."""

import json
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_cases import KEY, Provider, assistant, drive, first_call, passage_of, raw, user

from tidegate.compactors import anthropic
from tidegate.compactors.native import Options
from tidegate.compactors.strategy import CompactionFailed, Reply
from tidegate.simulator import ContextManagement, SimulatorSettings, Step, serve

PLAIN = SimulatorSettings(window=40_000)
OPTIONS = Options(timeout=5.0)
MODEL = {"model": "claude-opus-5-5", "max_tokens": 500}
TOOL = {"name": "read_file", "input_schema": {"type": "object"}}
SPOKEN = [user("FACT-01 is the port."), assistant("FACT-02 is done."), user("FACT-03 is next."), assistant("Right.")]


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
    return passage_of("messages", items or SPOKEN, **MODEL | fields)


def sent(*items, options=OPTIONS, **fields):
    return json.loads(first_call(anthropic.compact(passage(*items, **fields), options)).body)


def known(provider: Provider, minted, *more, **fields):
    """The answer of the model, asked with the block in the place of what it stands for."""
    items = b",".join([*minted.items, *(raw(item) for item in more)])
    rest = raw({**MODEL, **fields})[1:]
    body = b'{"messages":[' + items + b"]," + rest
    answer = provider.post("/messages", body, dict(anthropic.headers(OPTIONS)))
    assert answer.status_code == 200, answer.text
    return "".join(block.get("text", "") for block in answer.json()["content"])


WITHHELD = {
    "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
    "stop_sequences": ["x"],
    "output_config": {"format": {"type": "json_schema", "schema": {}}},
    "output_format": {"type": "json_schema", "schema": {}},
    "stream": True,
    "tool_choice": {"type": "any"},
}


class TestCall:
    def test_the_clients_request_with_the_passage_for_its_messages(self):
        own = {"system": "Be brief.", "tools": [TOOL], "metadata": {"user_id": "u"}, "temperature": 1}
        call = first_call(anthropic.compact(passage(**own), OPTIONS))
        body = {**MODEL, "messages": SPOKEN, **own, "max_tokens": 16_000, "compaction": {"type": "summarize"}}
        assert (call.path, json.loads(call.body), call.timeout) == ("/messages", body, 5.0)
        assert call.add_headers == {"accept": "application/json", "anthropic-beta": "compact-2026-09-04"}

    @pytest.mark.parametrize(("name", "value"), WITHHELD.items(), ids=WITHHELD)
    def test_what_only_shapes_an_answer_is_withheld(self, provider, name, value):
        fields = {name: value, "tools": [TOOL]}
        assert name not in sent(**fields)
        assert provider.run(anthropic.compact(passage(**fields), OPTIONS)).calls == 1
        assert provider.violations() == []

    @pytest.mark.parametrize(
        ("config", "kept"),
        [
            ({"effort": "low"}, {"effort": "low"}),
            ({"effort": "low", "format": {"type": "json_schema"}}, {"effort": "low"}),
            (
                {"task_budget": {"type": "tokens", "total": 9, "remaining": 3}},
                {"task_budget": {"type": "tokens", "total": 9}},
            ),
        ],
    )
    def test_the_rest_of_output_config_stays(self, config, kept):
        assert sent(output_config=config)["output_config"] == kept

    @pytest.mark.parametrize("kind", ["auto", "none"])
    def test_a_free_tool_choice_stays(self, kind):
        assert sent(tools=[TOOL], tool_choice={"type": kind})["tool_choice"] == {"type": kind}

    def test_the_platforms_own_name_of_the_beta(self):
        options = Options(betas=("compact-x",))
        call = first_call(anthropic.compact(passage(), options))
        assert call.add_headers["anthropic-beta"] == "compact-x"
        assert anthropic.headers(options) == {"anthropic-beta": "compact-x"}

    @pytest.mark.parametrize(
        ("fields", "options", "limit"),
        [
            ({}, {}, 16_000),
            ({"max_tokens": 64_000}, {}, 16_000),
            ({}, {"max_output": 8_000}, 8_000),
            ({"thinking": {"type": "enabled", "budget_tokens": 10_000}}, {}, 26_000),
            ({"thinking": {"type": "enabled", "budget_tokens": 10_000}}, {"max_output": 9_000}, 11_024),
            ({"thinking": {"type": "adaptive"}}, {}, 32_000),
            ({"thinking": {"type": "disabled"}}, {}, 16_000),
            ({"window": 100_000, "size": 90_000}, {}, 10_000),
            ({"window": 100_000, "size": 99_900}, {}, 1_024),
        ],
    )
    def test_room_for_a_summary(self, fields, options, limit):
        assert sent(options=Options(**options), **fields)["max_tokens"] == limit

    def test_all_else_keeps_its_bytes(self):
        odd = b'{ "role":"user",  "content":"\\u00e9 \\ud83d" }'
        call = first_call(anthropic.compact(passage(assistant("x"), earlier=[odd], system="\u00e9"), OPTIONS))
        assert odd in call.body
        assert b'"system": "\\u00e9"' in call.body

    def test_equal_input_gives_equal_calls(self):
        one, other = (first_call(anthropic.compact(passage(**WITHHELD), OPTIONS)) for _ in "ab")
        assert one == other

    def test_a_thread_is_the_servers(self):
        with pytest.raises(CompactionFailed, match="compact_server_held"):
            first_call(anthropic.compact(passage(thread={"type": "create"}), OPTIONS))


class TestAnswer:
    def test_facts_live_through_two_compactions(self, provider):
        first = provider.run(anthropic.compact(passage(system="Be brief."), OPTIONS))
        newer = [user("FACT-04 is new."), assistant("FACT-05 is done.")]
        second = provider.run(anthropic.compact(passage(*newer, earlier=first.items, system="Be brief."), OPTIONS))
        said = known(provider, second, user("What do you know? FACT-06 is newest."))
        assert all(f"FACT-0{n}" in said for n in range(1, 7))
        assert provider.violations() == []

    def test_usage_is_in_its_iterations(self, provider):
        minted = provider.run(anthropic.compact(passage(), OPTIONS))
        (record,) = provider.simulator.state.compactions()
        assert minted.input_tokens > minted.output_tokens > 0
        assert minted.input_tokens >= record.input_tokens

    @pytest.mark.parametrize(
        ("usage", "spent"),
        [
            ({"input_tokens": 5, "output_tokens": 7}, (5, 7)),
            (
                {
                    "input_tokens": 0,
                    "output_tokens": 0,
                    "iterations": [
                        {"type": "compaction", "input_tokens": 1, "cache_read_input_tokens": 20, "output_tokens": 3},
                        {"type": "message", "input_tokens": 400, "output_tokens": 5000},
                    ],
                },
                (421, 5003),
            ),
            ({}, (0, 0)),
        ],
    )
    def test_all_that_was_sampled_is_counted(self, usage, spent):
        minted = answered([{"type": "compaction", "content": "So."}], usage=usage)
        assert (minted.input_tokens, minted.output_tokens) == spent

    def test_thinking_of_kept_messages_stays_valid(self, provider):
        provider.simulator.configure(tool_rounds=1)
        thinking = {"thinking": {"type": "adaptive"}, "tools": [TOOL], "system": "Be brief."}
        ask = {**MODEL, **thinking, "max_tokens": 4000, "messages": [*SPOKEN, user("Go.")]}
        turn = provider.post("/messages", raw(ask)).json()["content"]
        call = next(block for block in turn if block["type"] == "tool_use")
        tail = [assistant(turn), user([{"type": "tool_result", "tool_use_id": call["id"], "content": "done"}])]
        items = [*SPOKEN, user("Go.")]
        cut = passage(*items, tail=tail, retained=(4,), **thinking)
        minted = provider.run(anthropic.compact(cut, Options(binds_thinking=True)))
        assert minted.retained == ()
        known(provider, minted, *tail, **thinking | {"max_tokens": 4000})
        assert provider.violations() == []

    @pytest.mark.parametrize(
        ("bound", "tail", "retained"),
        [
            (True, [assistant("Right.")], (2,)),
            (False, [assistant("Right.")], (2,)),
            (False, [assistant([{"type": "thinking", "thinking": "So.", "signature": "s"}])], (2,)),
            (True, [assistant([{"type": "thinking", "thinking": "So.", "signature": "s"}])], ()),
            (True, [assistant([{"type": "redacted_thinking", "data": "s"}])], ()),
        ],
    )
    def test_words_are_retained_where_no_thinking_forbids_it(self, provider, bound, tail, retained):
        minted = provider.run(anthropic.compact(passage(retained=(2,), tail=tail), Options(binds_thinking=bound)))
        assert minted.retained == retained


def answered(content, stop="compaction", status=200, **fields):
    body = json.dumps({"type": "message", "content": content, "stop_reason": stop, **fields}).encode()
    return drive(anthropic.compact(passage(), OPTIONS), lambda _call: Reply(status, body))


SPACES = st.sampled_from(["", " ", "\n  "])


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3),
    st.text(min_size=1).filter(str.strip),
    SPACES,
    SPACES,
    st.booleans(),
)
def test_the_block_keeps_its_bytes(more, words, before, after, ascii_only):
    """Whatever is in it, and however it is laid out."""
    block = json.dumps({**more, "type": "compaction", "content": words, "signature": "E"}, ensure_ascii=ascii_only)
    block = block.replace(": ", f"{before}:{after}") if '": "' not in json.dumps([more, words]) else block
    body = f'{{"content"{before}:[{after}{block}{before}],{after}"stop_reason":"compaction"}}'
    reply = Reply(200, body.encode("utf-8", "surrogatepass"))
    minted = drive(anthropic.compact(passage(), OPTIONS), lambda _call: reply)
    assert minted.items == (b'{"role":"assistant","content":[' + block.encode() + b"]}",)


BLOCK = {"type": "compaction", "content": "So.", "signature": "E"}
NONE = {
    "end": ([], "end_turn", "compact_no_artifact"),
    "answer": ([{"type": "text", "text": "Hi."}], "end_turn", "compact_no_artifact"),
    "cut": ([], "max_tokens", "compact_cut_by_length"),
    "window": ([], "model_context_window_exceeded", "compact_overflow"),
    "tool": ([], "tool_use", "compact_called_tool"),
    "refusal": ([], "refusal", "compact_refused"),
    "paused": ([], "pause_turn", "compact_unfinished"),
    "no-reason": ([BLOCK], None, "compact_unfinished"),
    "block-and-another-end": ([BLOCK], "end_turn", "compact_no_artifact"),
    "null": ([{"type": "compaction", "content": None}], "compaction", "compact_no_artifact"),
    "blank": ([{"type": "compaction", "content": " "}], "compaction", "compact_no_artifact"),
    "two": ([BLOCK, BLOCK], "compaction", "compact_two_artifacts"),
    "no-content": (None, "compaction", "compact_unreadable"),
}


@pytest.mark.parametrize(("content", "stop", "reason"), NONE.values(), ids=NONE)
def test_a_200_without_a_block(content, stop, reason):
    with pytest.raises(CompactionFailed) as failure:
        answered(content, stop)
    assert (failure.value.reason, failure.value.missing) == (reason, False)
    assert failure.value.overflow == (reason == "compact_overflow")


def coded(code, status=400):
    error = {"type": "invalid_request_error", "message": "No.", "details": {"error_code": code}}
    return Reply(status, raw({"type": "error", "error": error}))


def worded(message, status=400):
    return Reply(status, raw({"type": "error", "error": {"type": "invalid_request_error", "message": message}}))


REFUSED = {
    "incomplete": (coded("compaction_incomplete_turn"), "compact_incomplete_turn"),
    "nothing": (coded("compaction_nothing_to_summarize"), "compact_nothing"),
    "many-tools": (coded("compaction_too_many_tool_references"), "compact_too_many_tools"),
    "unavailable": (coded("compaction_unavailable", 529), "compact_unavailable"),
    "ambiguous": (coded("compaction_block_ambiguous"), "compact_stale"),
    "misplaced": (coded("compaction_block_misplaced"), "compact_stale"),
    "content": (coded("compaction_content_mismatch"), "compact_stale"),
    "signature": (coded("compaction_signature_invalid"), "compact_stale"),
    "tools": (coded("compaction_tool_changes_mismatch"), "compact_stale"),
    "header-lost": (
        worded("compaction: this parameter requires anthropic-beta: compact-2026-09-04"),
        "compact_missing",
    ),
    "header-unknown": (
        worded("Unexpected value(s) `compact-2026-09-04` for the `anthropic-beta` header."),
        "compact_missing",
    ),
    "header-unknown-at-bedrock": (Reply(400, b'{"message":"invalid beta flag"}'), "compact_missing"),
    "field-unknown": (worded("compaction: Extra inputs are not permitted"), "compact_missing"),
    "converse": (
        Reply(400, b'{"message":"The compact beta feature is not currently supported on the Converse API"}'),
        "compact_missing",
    ),
    "model": (worded("compaction: `claude-3` does not support compaction"), "compact_missing"),
    "no-model": (
        Reply(404, raw({"type": "error", "error": {"type": "not_found_error", "message": "model: x"}})),
        "compact_missing",
    ),
    "field-of-a-block": (
        worded("messages.0.content.0.compaction.citations: Extra inputs are not permitted"),
        "compact_http_400",
    ),
    "too-long": (worded("prompt is too long: 215692 tokens > 200000 maximum"), "compact_overflow"),
    "key": (worded("invalid x-api-key", 401), "compact_http_401"),
    "overloaded": (worded("Overloaded", 529), "compact_http_529"),
    "error-in-200": (worded("No.", 200), "compact_error"),
    "page-in-200": (Reply(200, b"<html>"), "compact_unreadable"),
    "unreachable": (Reply(0), "compact_unreachable"),
}


@pytest.mark.parametrize(("reply", "reason"), REFUSED.values(), ids=REFUSED)
def test_refusals(reply, reason):
    with pytest.raises(CompactionFailed) as failure:
        drive(anthropic.compact(passage(), OPTIONS), lambda _call: reply)
    assert failure.value.reason == reason
    assert failure.value.missing == (reason == "compact_missing")


SCRIPT = {
    "no-block": (Step(do="no_artifact"), "compact_no_artifact"),
    "null-block": (Step(do="null_artifact"), "compact_no_artifact"),
    "two-blocks": (Step(do="two_artifacts"), "compact_two_artifacts"),
    "unavailable": (Step(do="unavailable"), "compact_unavailable"),
    "overflow": (Step(do="overflow"), "compact_overflow"),
    "window": (Step(do="window_exceeded"), "compact_overflow"),
    "length": (Step(do="length"), "compact_cut_by_length"),
    "tool": (Step(do="tool_call"), "compact_called_tool"),
    "refusal": (Step(do="refusal"), "compact_refused"),
    "longer": (Step(do="longer"), None),
    "error": (Step(do="error", status=500), "compact_http_500"),
    "html": (Step(do="html"), "compact_http_502"),
    "garbage": (Step(do="garbage"), "compact_unreadable"),
    "cut": (Step(do="cut"), "compact_unreachable"),
    "drop": (Step(do="drop"), "compact_unreachable"),
    "hang": (Step(do="hang", seconds=0.2), "compact_unreachable"),
}


@pytest.mark.parametrize(("step", "reason"), SCRIPT.values(), ids=SCRIPT)
def test_script(provider, step, reason):
    provider.simulator.script(step)
    if reason is None:
        assert provider.run(anthropic.compact(passage(), OPTIONS)).output_tokens > 300
        return
    with pytest.raises(CompactionFailed) as failure:
        provider.run(anthropic.compact(passage(), OPTIONS))
    assert failure.value.reason == reason


IGNORED = {"context": ContextManagement(betas=()), "strict_fields": False}
WITHOUT = {
    "unserved": ({"context": ContextManagement(betas=())}, SPOKEN, "compact_missing"),
    "not-this-model": ({"context": ContextManagement(model_betas={MODEL["model"]: ()})}, SPOKEN, "compact_missing"),
    "ignored": (IGNORED, SPOKEN[:3], "compact_no_artifact"),
    "ignored-so-taken-for-prefill": (IGNORED, SPOKEN, "compact_missing"),
}


@pytest.mark.parametrize(("changes", "items", "reason"), WITHOUT.values(), ids=WITHOUT)
def test_a_platform_that_has_no_such_thing(provider, changes, items, reason):
    provider.simulator.configure(**changes)
    with pytest.raises(CompactionFailed) as failure:
        provider.run(anthropic.compact(passage(*items), OPTIONS))
    assert (failure.value.reason, failure.value.missing) == (reason, reason == "compact_missing")


def test_a_false_signature_shows_only_when_it_is_sent_back(provider):
    provider.simulator.script(Step(do="bad_artifact"))
    minted = provider.run(anthropic.compact(passage(), OPTIONS))
    with pytest.raises(CompactionFailed, match="compact_stale"):
        provider.run(anthropic.compact(passage(user("On."), assistant("So."), earlier=minted.items), OPTIONS))


def test_another_organisations_block_is_stale(provider):
    provider.simulator.configure(orgs={"sk-a": "acme", "sk-b": "other"})
    other = Provider(provider.simulator, headers=KEY | {"authorization": "Bearer sk-b"})
    minted = other.run(anthropic.compact(passage(), OPTIONS))
    with pytest.raises(CompactionFailed, match="compact_stale"):
        provider.run(anthropic.compact(passage(user("On."), assistant("So."), earlier=minted.items), OPTIONS))


def test_once_more_without_thinking_that_is_bound_elsewhere(provider):
    """As after a summary of Tidegate's own: the kept thinking was made behind another past."""
    provider.simulator.configure(tool_rounds=0)
    ask = {**MODEL, "max_tokens": 4000, "thinking": {"type": "adaptive"}, "messages": [*SPOKEN, user("Go.")]}
    turn = provider.post("/messages", raw(ask)).json()["content"]
    items = [user("A summary. FACT-07 is so."), assistant(turn)]
    minted = provider.run(anthropic.compact(passage(*items, thinking={"type": "adaptive"}), OPTIONS))
    assert minted.calls == 2
    assert "FACT-07" in known(provider, minted, user("What do you know?"))


ROOM = "input length and `max_tokens` exceed context limit: 195000 + 16000 > 200000, decrease input length"
MOST = "max_tokens: 16000 > 8192, which is the maximum allowed number of output tokens for M"


@pytest.mark.parametrize(("message", "limit"), [(ROOM, 5000), (MOST, 8192)])
def test_once_more_with_the_room_that_there_is(message, limit):
    calls = []

    def answer(call):
        calls.append(json.loads(call.body))
        return (
            worded(message) if len(calls) == 1 else Reply(200, raw({"content": [BLOCK], "stop_reason": "compaction"}))
        )

    minted = drive(anthropic.compact(passage(), OPTIONS), answer)
    assert (minted.calls, calls[1]) == (2, {**calls[0], "max_tokens": limit})


@pytest.mark.parametrize("message", [ROOM.replace("195000", "199900"), MOST.replace("8192", "900"), "max_tokens: no"])
def test_not_where_that_is_too_little(message):
    calls = []
    with pytest.raises(CompactionFailed):
        drive(anthropic.compact(passage(), OPTIONS), lambda call: calls.append(call) or worded(message))
    assert len(calls) == 1
