"""`compaction_trigger`: a streamed request that ends in one, and what is read from the stream."""

import json
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_cases import (
    Provider,
    asked,
    assistant,
    body_of,
    drive,
    first_call,
    parsed,
    passage_of,
    raw,
    result,
    system,
    user,
)

from tidegate.compactors import openai
from tidegate.compactors.native import Options
from tidegate.compactors.strategy import CompactionFailed, Reply
from tidegate.compactors.users import newest_users, tokens, words_of
from tidegate.simulator import ResponsesCompaction, SimulatorSettings, Step, serve

PLAIN = SimulatorSettings(window=20_000, profile="codex")
OPTIONS = Options(timeout=5.0)
SPOKEN = [
    user("FACT-01 is the port."),
    asked("a"),
    result("a", "FACT-02 is in the file."),
    assistant("FACT-03 is my plan."),
]
TRIGGER = {"type": "compaction_trigger"}
LATER = user("What do you know?")


@pytest.fixture(scope="module")
def simulator():
    with serve(PLAIN) as running:
        yield running


@pytest.fixture
def provider(simulator) -> Iterator[Provider]:
    simulator.state.reset()
    yield Provider(simulator, prefix="")
    simulator.app.configure(PLAIN)


def known(provider: Provider, *items: bytes) -> str:
    """The words of the stream in which the model says what it knows."""
    body = b'{"model":"m-1","stream":true,"store":false,"input":[' + b",".join([*items, raw(LATER)]) + b"]}"
    answer = provider.post("/responses", body)
    assert answer.status_code == 200, answer.text
    return answer.text


def sent(*items, **fields):
    call = first_call(openai.trigger(passage_of("responses", items or SPOKEN, **fields), OPTIONS))
    return json.loads(call.body)


TOOL = {"type": "function", "name": "read_file", "parameters": {}}


class TestCall:
    def test_the_whole_of_it(self):
        passage = passage_of("responses", SPOKEN, lead=[system("Rule.")], instructions="Be brief.", tools=[TOOL])
        call = first_call(openai.trigger(passage, OPTIONS))
        body = {"model": "m-1", "instructions": "Be brief.", "tools": [TOOL], "store": False, "stream": True}
        assert json.loads(call.body) == {**body, "input": [system("Rule."), *SPOKEN, TRIGGER]}
        assert (call.path, call.timeout) == ("/responses", 5.0)
        assert call.add_headers == {"accept": "text/event-stream"}

    def test_fields_that_the_cache_and_the_account_hang_on_go_along(self):
        kept = {
            "client_metadata": {"x-codex-installation-id": "i"},
            "include": ["reasoning.encrypted_content"],
            "parallel_tool_calls": False,
            "prompt_cache_key": "k",
            "reasoning": {"effort": "high", "summary": "auto"},
            "safety_identifier": "s",
            "service_tier": "flex",
            "tool_choice": "auto",
            "tools": [TOOL],
        }
        left_out = {
            "background": True,
            "context_management": [{"type": "compaction"}],
            "max_output_tokens": 900,
            "max_tool_calls": 3,
            "metadata": {"a": "b"},
            "stream_options": {"include_obfuscation": False},
            "temperature": 1,
            "truncation": "auto",
        }
        body = sent(**kept, **left_out)
        assert {name: body.get(name) for name in kept} == kept
        assert not left_out.keys() & body.keys()

    def test_stored_and_whole_becomes_unstored_and_streamed(self):
        body = sent(store=True, stream=False)
        assert (body["store"], body["stream"]) == (False, True)

    @pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "read_file"}])
    def test_no_tool_is_forced(self, choice):
        assert "tool_choice" not in sent(tools=[TOOL], tool_choice=choice)

    @pytest.mark.parametrize(
        ("text", "kept"),
        [
            ({"verbosity": "low"}, {"verbosity": "low"}),
            ({"verbosity": "low", "format": {"type": "json_schema", "schema": {}}}, {"verbosity": "low"}),
        ],
    )
    def test_no_format_is_asked_for(self, text, kept):
        assert sent(text=text)["text"] == kept

    def test_items_keep_their_bytes(self):
        odd = b'{ "role":"user",  "content":"\\u00e9 \\ud83d 1.0" }'
        call = first_call(openai.trigger(passage_of("responses", [user("x")], earlier=[odd]), OPTIONS))
        assert odd in call.body

    def test_equal_input_gives_equal_calls(self):
        one, other = (first_call(openai.trigger(passage_of("responses", SPOKEN), OPTIONS)) for _ in "ab")
        assert one == other


PROFILES = {"codex": "", "openai": "/v1"}
KNOBS = {
    "as-documented": {},
    "users-dropped": {"boundary": "drop_all"},
    "all-kept-and-billed": {"boundary": "keep_all_and_bill"},
    "a-message-beside": {"extra_message": True},
    "large": {"padding": 200_000},
}


class TestAnswer:
    @pytest.mark.parametrize("profile", PROFILES)
    @pytest.mark.parametrize("knobs", KNOBS.values(), ids=KNOBS)
    @pytest.mark.parametrize("crlf", [False, True])
    def test_facts_live_through_two_compactions(self, provider, profile, knobs, crlf):
        provider.simulator.configure(
            profile=profile, responses_compaction=ResponsesCompaction(**knobs), crlf=crlf, window=200_000
        )
        provider.prefix = PROFILES[profile]
        lead = [system("FACT-09 is a rule.")]
        first = provider.run(openai.trigger(passage_of("responses", SPOKEN, lead=lead), OPTIONS))
        newer = [user("FACT-04 is new."), assistant("FACT-05 is done.")]
        passage = passage_of("responses", newer, lead=lead, earlier=first.items)
        second = provider.run(openai.trigger(passage, OPTIONS))
        kinds = [item.get("role", item.get("type")) for item in parsed(second.items)]
        assert kinds == ["user", "user", "compaction"]
        said = known(provider, raw(lead[0]), *second.items, raw(user("FACT-06 is newest.")))
        assert all(f"FACT-0{n}" in said for n in (1, 2, 3, 4, 5, 6, 9))
        assert provider.violations() == []
        assert first.input_tokens > first.output_tokens > 0

    def test_user_messages_are_the_clients_own_bytes(self, provider):
        passage = passage_of("responses", SPOKEN)
        assert provider.run(openai.trigger(passage, OPTIONS)).items[0] == passage.items[0]

    def test_only_system_items_are_retained_by_position(self, provider):
        items = [SPOKEN[0], system("FACT-08 is a rule."), *SPOKEN[1:], user("Newest.")]
        passage = passage_of("responses", items, retained=(1, 5), lead=[system("One.")])
        assert provider.run(openai.trigger(passage, OPTIONS)).retained == (1,)


CMP = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA"}
MSG = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]}


def done(item, index=0):
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def added(item, index=0):
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def completed(*output, kind="response.completed", status="completed", **more):
    return {"type": kind, "response": {"status": status, "output": list(output), **more}}


def failed(code, message="No."):
    return {"type": "response.failed", "response": {"status": "failed", "error": {"code": code, "message": message}}}


def stream(*events, end="\n"):
    return "".join(f"event: {event['type']}{end}data: {json.dumps(event)}{end}{end}" for event in events).encode()


def told(body, **fields):
    work = openai.trigger(passage_of("responses", SPOKEN, **fields), OPTIONS)
    return drive(work, lambda _call: Reply(200, body))


CREATED = {"type": "response.created", "response": {"status": "in_progress"}}
GOOD = {
    "ordinary": stream(CREATED, added(CMP | {"encrypted_content": "early"}), done(CMP), completed(CMP)),
    "no-output-at-the-end": stream(done(CMP), completed()),
    "only-at-the-end": stream(CREATED, completed(MSG, CMP)),
    "a-message-beside": stream(done(MSG), done(CMP, 1), completed()),
    "other-name": stream(done(CMP | {"type": "compaction_summary"}), completed()),
    "older-name": stream(done(CMP | {"type": "context_compaction"}), completed()),
    "another-end": stream(done(CMP), completed(kind="response.done")),
    "crlf": stream(CREATED, done(CMP), completed(), end="\r\n"),
    "done-sign": stream(done(CMP), completed()) + b"data: [DONE]\n\n",
    "comments-and-strange-events": b": hi\n\n" + stream({"type": "keepalive"}, done(CMP), completed()),
    "no-last-blank-line": stream(done(CMP), completed()).rstrip(b"\n"),
    "whole-json": json.dumps({"status": "completed", "output": [MSG, CMP]}).encode(),
    "error-after-the-end": stream(done(CMP), completed(), {"type": "error", "code": "x", "message": "late"}),
}


@pytest.mark.parametrize("body", GOOD.values(), ids=GOOD)
def test_one_item_however_it_is_told(body):
    assert parsed(told(body).items) == [SPOKEN[0], CMP]


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(max_size=8), st.text(max_size=20), max_size=3), st.text(min_size=1), st.booleans())
def test_the_item_keeps_its_bytes(more, sealed, ascii_only):
    item = json.dumps({**more, "encrypted_content": sealed, "type": "compaction"}, ensure_ascii=ascii_only)
    event = f'data: {{"type": "response.output_item.done", "item" : {item} }}\n\n'.encode("utf-8", "surrogatepass")
    assert told(event + stream(completed())).items[-1] == item.encode()


TOO_LONG = "context_length_exceeded"
BAD = {
    "ignored": (stream(CREATED, done(MSG), completed(MSG)), "compact_no_artifact"),
    "announced-only": (stream(added(CMP), completed()), "compact_no_artifact"),
    "no-seal": (stream(done({"type": "compaction", "id": "cmp_1"}), completed()), "compact_no_artifact"),
    "two": (stream(done(CMP), done(CMP, 1), completed()), "compact_two_artifacts"),
    "cut-off": (stream(CREATED, done(CMP)), "compact_cut_off"),
    "cut-by-length": (
        stream(completed(kind="response.incomplete", status="incomplete", incomplete_details={"reason": "max_tokens"})),
        "compact_cut_by_length",
    ),
    "cut-by-window": (
        stream(
            completed(
                kind="response.incomplete",
                status="incomplete",
                incomplete_details={"reason": "model_context_window_exceeded"},
            )
        ),
        "compact_overflow",
    ),
    "cancelled": (stream(done(CMP), completed(kind="response.cancelled", status="cancelled")), "compact_unfinished"),
    "failed": (stream(CREATED, failed("server_error")), "compact_error"),
    "failed-too-long": (stream(CREATED, failed(TOO_LONG)), "compact_overflow"),
    "failed-stale": (stream(CREATED, failed("invalid_encrypted_content")), "compact_stale"),
    "failed-unknown": (stream(failed(None, "Invalid value: 'compaction_trigger'.")), "compact_missing"),
    "error": (stream(CREATED, {"type": "error", "error": {"code": "x", "message": "No."}}), "compact_error"),
    "error-too-long": (stream({"type": "error", "error": {"code": TOO_LONG}}), "compact_overflow"),
    "error-flat": (stream({"type": "error", "code": TOO_LONG, "message": "No."}), "compact_overflow"),
    "error-after-the-item": (stream(done(CMP), {"type": "error", "error": {"code": "x"}}), "compact_error"),
    "page": (b"<html></html>", "compact_unreadable"),
    "nothing": (b"", "compact_unreadable"),
    "other-json": (b'{"id":"x"}', "compact_unreadable"),
    "error-in-json": (b'{"error":{"message":"No."}}', "compact_error"),
    "detail-in-json": (b'{"detail":"No."}', "compact_error"),
}


@pytest.mark.parametrize(("body", "reason"), BAD.values(), ids=BAD)
def test_failures_within_a_200(body, reason):
    with pytest.raises(CompactionFailed) as failure:
        told(body)
    assert failure.value.reason == reason
    assert failure.value.overflow == (reason == "compact_overflow")
    assert failure.value.missing == (reason == "compact_missing")


def test_an_error_is_judged_by_its_event_alone():
    judged = []
    options = Options(overflows=lambda reply: judged.append(reply) or True)
    error = {"type": "error", "code": "x", "message": "No."}
    with pytest.raises(CompactionFailed, match="compact_overflow"):
        drive(
            openai.trigger(passage_of("responses", SPOKEN), options),
            lambda _call: Reply(200, stream(CREATED, error), {"x-request-id": "r"}),
        )
    assert judged == [Reply(200, raw(error), {"x-request-id": "r"})]


REFUSED = {
    "unknown-type": (400, b'{"error":{"message":"Invalid value: \'compaction_trigger\'. Supported values are"}}', True),
    "xai": (422, b"input: data did not match any variant of untagged enum ModelInput", True),
    "path": (404, b'{"detail":"Not Found"}', True),
    "model": (400, b'{"detail":"The \'m-1\' model is not supported when using Codex."}', True),
    "stored": (400, b'{"detail":"Store must be set to false"}', False),
    "key": (401, b'{"detail":"Unauthorized"}', False),
}


@pytest.mark.parametrize(("status", "body", "missing"), REFUSED.values(), ids=REFUSED)
def test_refusals(status, body, missing):
    with pytest.raises(CompactionFailed) as failure:
        drive(openai.trigger(passage_of("responses", SPOKEN), OPTIONS), lambda _call: Reply(status, body))
    assert failure.value.missing == missing
    assert failure.value.reason == ("compact_missing" if missing else f"compact_http_{status}")


SCRIPT = {
    "no-item": (Step(do="no_artifact"), "compact_no_artifact"),
    "two-items": (Step(do="two_artifacts"), "compact_two_artifacts"),
    "unavailable": (Step(do="unavailable"), "compact_http_503"),
    "overflow": (Step(do="overflow"), "compact_overflow"),
    "overflow-in-stream": (Step(do="overflow", in_stream=True), "compact_overflow"),
    "overflow-failed": (Step(do="overflow", in_stream=True, event="response.failed"), "compact_overflow"),
    "error-in-stream": (Step(do="error", in_stream=True), "compact_error"),
    "error-failed": (Step(do="error", in_stream=True, event="response.failed"), "compact_error"),
    "length": (Step(do="length"), "compact_cut_by_length"),
    "text": (Step(do="text", text="Sure."), "compact_no_artifact"),
    "html-200": (Step(do="html", status=200), "compact_unreadable"),
    "garbage": (Step(do="garbage"), "compact_unreadable"),
    "cut": (Step(do="cut"), "compact_unreachable"),
    "drop": (Step(do="drop"), "compact_unreachable"),
    "hang": (Step(do="hang", seconds=0.2), "compact_unreachable"),
}


@pytest.mark.parametrize(("step", "reason"), SCRIPT.values(), ids=SCRIPT)
def test_script(provider, step, reason):
    provider.simulator.script(step)
    with pytest.raises(CompactionFailed) as failure:
        provider.run(openai.trigger(passage_of("responses", SPOKEN), OPTIONS))
    assert failure.value.reason == reason
    assert len(provider.calls) == 1


@pytest.mark.parametrize(("trigger", "reason"), [("ignored", "compact_no_artifact"), ("refused", "compact_missing")])
def test_an_endpoint_that_knows_no_trigger(provider, trigger, reason):
    provider.simulator.configure(responses_compaction=ResponsesCompaction(trigger=trigger))
    with pytest.raises(CompactionFailed, match=reason):
        provider.run(openai.trigger(passage_of("responses", SPOKEN), OPTIONS))


def test_a_window_that_is_too_small_is_not_rescued(provider):
    provider.simulator.configure(window=100)
    with pytest.raises(CompactionFailed, match="compact_overflow"):
        provider.run(openai.trigger(passage_of("responses", [user("x" * 4000)]), OPTIONS))


def test_heartbeats_before_the_item(provider):
    provider.simulator.configure(heartbeat=0.02, responses_compaction=ResponsesCompaction(seconds=0.1), chunk_bytes=7)
    assert len(provider.run(openai.trigger(passage_of("responses", SPOKEN), OPTIONS)).items) == 2


class TestNewestUsers:
    def test_the_newest_that_fit_in_order(self):
        items = [raw(user(name * 40)) for name in "abc"]
        assert newest_users(items, 20) == tuple(items[1:])

    def test_the_oldest_is_cut_in_its_middle(self):
        items = [raw(user("old")), raw(user("head" + "x" * 400 + "tail")), raw(user("n" * 40))]
        cut, newest = parsed(newest_users(items, 20))
        (part,) = cut["content"]
        assert part["text"] == "head" + "x" * 16 + "…92 tokens truncated…" + "x" * 16 + "tail"
        assert newest == user("n" * 40)

    def test_a_cut_message_has_another_id_and_its_images(self):
        picture = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
        words = {"type": "input_text", "text": "x" * 400}
        item = {"type": "message", "id": "msg_1", "role": "user", "content": [picture, words]}
        (cut,) = parsed(newest_users([raw(item)], 10))
        assert "id" not in cut
        assert [part["type"] for part in cut["content"]] == ["input_text", "input_image"]

    def test_an_image_is_free_and_alone_is_one_token(self):
        picture = raw(user([{"type": "input_image", "image_url": "data:image/png;base64," + "A" * 4000}]))
        assert newest_users([picture] * 5, 3) == (picture,) * 3

    def test_no_others_than_the_users(self):
        items = [raw(item) for item in (*SPOKEN, system("Rule."), CMP)]
        assert newest_users(items, 1000) == (items[0],)

    @settings(max_examples=100, deadline=None)
    @given(st.lists(st.text(max_size=60), max_size=6), st.integers(0, 40))
    def test_never_more_than_the_limit(self, texts, limit):
        kept = parsed(newest_users([raw(user(text)) for text in texts], limit))
        whole = [message for message in kept if isinstance(message["content"], str)]
        assert sum(max(1, tokens(words_of(message))) for message in whole) <= limit
        assert [message["content"] for message in whole] == texts[len(texts) - len(whole) :]
        assert len(kept) <= len(whole) + 1


def test_a_stored_answer_is_not_needed(provider):
    """Items that came with reasoning go along with it, sealed."""
    provider.simulator.configure(tool_rounds=0)
    more = {"store": False, "stream": True, "reasoning": {"effort": "low"}, "include": ["reasoning.encrypted_content"]}
    events = provider.post("/responses", body_of("responses", [user("Go.")], **more)).text.split("\n")
    data = [json.loads(line.removeprefix("data: ")) for line in events if line.startswith("data: ")]
    output = [event["item"] for event in data if event["type"] == "response.output_item.done"]
    assert output[0]["type"] == "reasoning"
    passage = passage_of("responses", [user("Go."), *output], **more)
    provider.run(openai.trigger(passage, OPTIONS))
    assert provider.violations() == []
