"""`POST /responses/compact`: what is sent, what is kept of the answer, and what each failure is called."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from native_cases import (
    KEY,
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
from tidegate.compactors.fit import fitted
from tidegate.compactors.native import Options, ask
from tidegate.compactors.strategy import Call, CompactionFailed, Reply
from tidegate.simulator import ResponsesCompaction, SimulatorSettings, Step, serve

PLAIN = SimulatorSettings(window=20_000)
OPTIONS = Options(timeout=5.0)
SPOKEN = [
    user("FACT-01 is the port."),
    asked("a"),
    result("a", "FACT-02 is in the file."),
    assistant("FACT-03 is my plan."),
]
LATER = user("What do you know?")


@pytest.fixture(scope="module")
def simulator():
    with serve(PLAIN) as running:
        yield running


@pytest.fixture
def provider(simulator) -> Iterator[Provider]:
    simulator.state.reset()
    yield Provider(simulator)
    simulator.app.configure(PLAIN)


def known(provider: Provider, minted, *more, lead=()) -> str:
    """What the model says it knows, asked with the minted items in the place of what they stand for."""
    items = [*(raw(item) for item in lead), *minted.items, *(raw(item) for item in more), raw(LATER)]
    answer = provider.post("/responses", b'{"model":"m-1","input":[' + b",".join(items) + b"]}")
    assert answer.status_code == 200, answer.text
    return "".join(part["text"] for item in answer.json()["output"] for part in item.get("content", []))


class TestCall:
    def test_the_whole_of_it(self):
        call = first_call(openai.compact(passage_of("responses", [user("Hi.")], instructions="Be brief."), OPTIONS))
        body = {"model": "m-1", "instructions": "Be brief.", "input": [user("Hi.")]}
        assert (call.path, json.loads(call.body), call.timeout) == ("/responses/compact", body, 5.0)
        assert call.add_headers == {"accept": "application/json"}

    def test_fields_of_the_schema_go_along_and_no_others(self):
        taken = {
            "prompt_cache_key": "k",
            "prompt_cache_options": {"mode": "implicit"},
            "prompt_cache_retention": "24h",
            "service_tier": "auto",
            "image": {"context_compression": "auto"},
            "instructions": "Be brief.",
        }
        left_out = {
            "tools": [{"type": "function", "name": "f", "parameters": {}}],
            "tool_choice": "auto",
            "reasoning": {"effort": "low"},
            "text": {"verbosity": "low"},
            "include": ["reasoning.encrypted_content"],
            "stream": True,
            "store": False,
            "max_output_tokens": 900,
            "truncation": "auto",
            "metadata": {"a": "b"},
            "user": "u",
            "client_metadata": {"x": "y"},
            "context_management": [{"type": "compaction"}],
            "temperature": 1,
        }
        call = first_call(openai.compact(passage_of("responses", [user("Hi.")], **taken, **left_out), OPTIONS))
        assert json.loads(call.body) == {"model": "m-1", "input": [user("Hi.")], **taken}

    def test_null_says_nothing(self):
        call = first_call(openai.compact(passage_of("responses", [user("Hi.")], service_tier=None), OPTIONS))
        assert "service_tier" not in json.loads(call.body)

    def test_items_keep_their_bytes(self):
        odd = b'{ "role":"user",  "content":"\\u00e9 \\ud83d 1.0" }'
        body = b'{"model":"m-1","input":[' + odd + b',{"role":"user","content":"On."}]}'
        passage = passage_of("responses", [user("x")], earlier=[odd])
        call = first_call(openai.compact(passage, OPTIONS))
        assert odd in call.body
        assert body.count(odd) == 1

    def test_leading_system_items_are_compacted_too(self):
        lead = [system("Rule 1."), system("Rule 2.", "system")]
        call = first_call(openai.compact(passage_of("responses", [user("Hi.")], lead=lead), OPTIONS))
        assert json.loads(call.body)["input"] == [*lead, user("Hi.")]

    def test_equal_input_gives_equal_calls(self):
        calls = [
            first_call(openai.compact(passage_of("responses", SPOKEN, service_tier="flex"), OPTIONS)) for _ in "ab"
        ]
        assert calls[0] == calls[1]

    def test_another_model_may_be_asked(self):
        passage = passage_of("responses", [user("Hi.")])
        other = type(passage)(passage.conversation, passage.items, (), model="m-2")
        assert json.loads(first_call(openai.compact(other, OPTIONS)).body)["model"] == "m-2"

    @pytest.mark.parametrize(
        ("fields", "reason"),
        [({"previous_response_id": "resp_1"}, "compact_server_held"), ({"conversation": "c"}, "compact_server_held")],
    )
    def test_what_the_server_holds_is_not_compacted(self, fields, reason):
        with pytest.raises(CompactionFailed, match=reason):
            first_call(openai.compact(passage_of("responses", SPOKEN, **fields), OPTIONS))

    def test_nothing_is_not_compacted(self):
        with pytest.raises(CompactionFailed, match="compact_nothing"):
            first_call(openai.compact(passage_of("responses", []), OPTIONS))


KNOBS = {
    "as-documented": {},
    "users-dropped": {"boundary": "drop_all"},
    "all-kept-and-billed": {"boundary": "keep_all_and_bill"},
    "blob-knows-users": {"covers_users": True},
    "assistants-handed-back": {"retain_assistant_ids": True},
    "no-older-users": {"keeps_older_users": False},
    "system-lasts": {"system_decays": False},
    "padded": {"padding": 200_000},
}


class TestAnswer:
    @pytest.mark.parametrize("knobs", KNOBS.values(), ids=KNOBS)
    def test_facts_live_through_two_compactions(self, provider, knobs):
        provider.simulator.configure(responses_compaction=ResponsesCompaction(**knobs), window=200_000)
        lead = [system("FACT-09 is a rule.")]
        first = provider.run(openai.compact(passage_of("responses", SPOKEN, lead=lead), OPTIONS))
        newer = [user("FACT-04 is new."), assistant("FACT-05 is done.")]
        passage = passage_of("responses", newer, lead=lead, earlier=first.items)
        second = provider.run(openai.compact(passage, OPTIONS))
        said = known(provider, second, user("FACT-06 is newest."), lead=lead)
        assert all(f"FACT-0{n}" in said for n in (1, 2, 3, 4, 5, 6, 9))
        assert provider.violations() == []
        assert (first.calls, second.calls) == (1, 1)

    def test_it_is_the_whole_window_byte_for_byte(self, provider):
        minted = provider.run(openai.compact(passage_of("responses", SPOKEN), OPTIONS))
        message, item = parsed(minted.items)
        assert (message["role"], item["type"], item["id"][:4]) == ("user", "compaction", "cmp_")
        assert minted.input_tokens > minted.output_tokens > 0

    def test_an_assistant_without_its_reasoning_loses_its_id(self, provider):
        provider.simulator.configure(responses_compaction=ResponsesCompaction(retain_assistant_ids=True), tool_rounds=0)
        asked_first = body_of("responses", [user("Go.")], reasoning={"effort": "low"})
        output = provider.post("/responses", asked_first).json()["output"]
        minted = provider.run(openai.compact(passage_of("responses", [user("Go."), *output]), OPTIONS))
        mine = [item for item in parsed(minted.items) if item.get("role") == "assistant"]
        assert len(mine) == 1
        assert "id" not in mine[0]
        known(provider, minted)
        assert provider.violations() == []

    def test_system_items_from_within_are_retained_by_position(self, provider):
        items = [SPOKEN[0], system("FACT-08 is a rule."), *SPOKEN[1:], user("Newest.")]
        passage = passage_of("responses", items, retained=(1, 5))
        assert provider.run(openai.compact(passage, OPTIONS)).retained == (1,)

    def test_positions_do_not_count_leading_items(self, provider):
        items = [SPOKEN[0], system("FACT-08 is a rule."), *SPOKEN[1:], user("Newest.")]
        passage = passage_of("responses", items, retained=(1, 5), lead=[system("One."), system("Two.")])
        assert provider.run(openai.compact(passage, OPTIONS)).retained == (1,)

    def test_words_that_came_back_cut_are_not_sent_twice(self, provider):
        provider.simulator.configure(responses_compaction=ResponsesCompaction(user_tokens=50))
        passage = passage_of("responses", [user("begin " + "x" * 4000 + " end")], retained=(0,))
        minted = provider.run(openai.compact(passage, OPTIONS))
        assert "tokens truncated" in minted.items[0].decode()
        assert minted.retained == ()

    def test_words_that_did_not_come_back_are_retained(self, provider):
        provider.simulator.configure(responses_compaction=ResponsesCompaction(user_tokens=0))
        passage = passage_of("responses", [*SPOKEN, user("Newest words.")], retained=(4,))
        minted = provider.run(openai.compact(passage, OPTIONS))
        assert (len(minted.items), minted.retained) == (1, (4,))

    @pytest.mark.parametrize(
        ("returned", "retained"),
        [
            ("Newest words.", ()),
            ("Other words.", (4,)),
            ("New…9 tokens truncated…ds.", ()),
            ("New…9 tokens truncated…x", (4,)),
            ("Old…9 tokens truncated…ds.", (4,)),
        ],
    )
    def test_they_are_known_by_their_text(self, returned, retained):
        passage = passage_of("responses", [*SPOKEN, user("Newest words.")], retained=(4,))
        reply = Reply(200, json.dumps({"output": [user(returned), CMP]}).encode())
        assert drive(openai.compact(passage, OPTIONS), lambda _call: reply).retained == retained


def answered(output, status=200, **fields):
    """What comes of an answer with this `output`."""
    body = json.dumps({"id": "resp_1", "output": output, **fields}).encode()
    return drive(openai.compact(passage_of("responses", SPOKEN), OPTIONS), lambda _call: Reply(status, body))


CMP = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA"}
RS = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gBBB"}
MSG = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]}
BARE = {key: value for key, value in MSG.items() if key != "id"}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "f", "arguments": "{}"}
BARE_CALL = {key: value for key, value in CALL.items() if key != "id"}


class TestRepair:
    @pytest.mark.parametrize(
        ("output", "kept"),
        [
            ([user("Hi."), CMP], [user("Hi."), CMP]),
            ([MSG, CMP], [BARE, CMP]),
            ([RS, MSG, CMP], [RS, MSG, CMP]),
            ([RS, user("Hi."), CMP], [user("Hi."), CMP]),
            ([RS, CMP], [CMP]),
            ([RS, MSG, user("Hi."), MSG, CMP], [RS, MSG, user("Hi."), BARE, CMP]),
            ([CALL, CMP], [CMP]),
            ([result("a"), CMP], [CMP]),
            ([RS, CALL, CMP], [CMP]),
            ([CALL, result("a"), CMP], [BARE_CALL, result("a"), CMP]),
            ([RS, CALL, result("a"), CMP], [RS, CALL, result("a"), CMP]),
            ([RS, CALL, result("a"), MSG, CMP], [RS, CALL, result("a"), MSG, CMP]),
            ([CMP | {"type": "compaction_summary"}], [CMP]),
            ([CMP | {"type": "context_compaction"}], [CMP]),
        ],
    )
    def test_of_what_would_be_refused(self, output, kept):
        assert parsed(answered(output).items) == kept

    def test_a_sealed_item_keeps_its_bytes_under_another_name(self):
        item = b'{ "id":"cmp_1", "type" : "compaction_summary","encrypted_content":"g\\/A\\u0041" , "x":1.0}'
        body = b'\xef\xbb\xbf {"output": [' + item + b"] }"
        minted = drive(openai.compact(passage_of("responses", SPOKEN), OPTIONS), lambda _: Reply(200, body))
        assert minted.items == (item.replace(b"compaction_summary", b"compaction"),)


FAILURES = {
    "unreachable": (Reply(0, error="refused"), "compact_unreachable"),
    "gone": (Reply(404, b'{"detail":"Not Found"}'), "compact_missing"),
    "gone-text": (Reply(404, b"404 page not found"), "compact_missing"),
    "not-a-method": (Reply(405, b""), "compact_missing"),
    "not-made": (Reply(501, b"{}"), "compact_missing"),
    "no-such-model": (
        Reply(404, b'{"error":{"code":"model_not_found","message":"The model `m-1` does not exist"}}'),
        "compact_missing",
    ),
    "model-without": (Reply(400, b'{"error":{"message":"Model m-1 is not supported here."}}'), "compact_missing"),
    "unknown-field": (
        Reply(400, b'{"error":{"message":"Unknown parameter: \'input\'.","code":"unknown_parameter"}}'),
        "compact_missing",
    ),
    "unknown-field-of-item": (
        Reply(400, b'{"error":{"message":"Unknown parameter: \'input[1].status\'.","code":"unknown_parameter"}}'),
        "compact_http_400",
    ),
    "item-not-held": (
        Reply(404, b'{"error":{"message":"Item with id \'rs_1\' not found. Items are not persisted."}}'),
        "compact_http_404",
    ),
    "key": (Reply(401, b'{"error":{"code":"invalid_api_key","message":"Incorrect API key"}}'), "compact_http_401"),
    "forbidden": (Reply(403, b'{"error":{"message":"Model m-1 is not available to you"}}'), "compact_http_403"),
    "rate": (Reply(429, b"{}"), "compact_http_429"),
    "page": (Reply(502, b"<html>"), "compact_http_502"),
    "too-long": (
        Reply(400, b'{"error":{"code":"context_length_exceeded","message":"Your input exceeds the context window"}}'),
        "compact_overflow",
    ),
    "stale": (
        Reply(400, b'{"error":{"message":"The encrypted content for item cmp_1 could not be verified."}}'),
        "compact_stale",
    ),
    "error-in-200": (Reply(200, b'{"error":{"message":"no"}}'), "compact_error"),
    "too-long-in-200": (Reply(200, b'{"error":{"code":"context_length_exceeded"}}'), "compact_overflow"),
    "page-in-200": (Reply(200, b"<html>"), "compact_unreadable"),
    "no-list": (Reply(200, b'{"output":{}}'), "compact_unreadable"),
    "no-objects": (Reply(200, b'{"output":["x"]}'), "compact_unreadable"),
    "empty": (Reply(200, b'{"output":[]}'), "compact_no_artifact"),
    "answer": (Reply(200, json.dumps({"output": [MSG]}).encode()), "compact_no_artifact"),
    "item-without-seal": (Reply(200, b'{"output":[{"type":"compaction","id":"cmp_1"}]}'), "compact_no_artifact"),
    "two": (Reply(200, json.dumps({"output": [CMP, CMP]}).encode()), "compact_two_artifacts"),
}


@pytest.mark.parametrize(("reply", "reason"), FAILURES.values(), ids=FAILURES)
def test_failures(reply, reason):
    with pytest.raises(CompactionFailed) as failure:
        drive(openai.compact(passage_of("responses", SPOKEN), OPTIONS), lambda _call: reply)
    error = failure.value
    assert error.reason == reason
    assert error.missing == (reason == "compact_missing")
    assert error.overflow == (reason == "compact_overflow")


SCRIPT = {
    "no-item": (Step(do="no_artifact"), "compact_no_artifact"),
    "two-items": (Step(do="two_artifacts"), "compact_two_artifacts"),
    "unavailable": (Step(do="unavailable"), "compact_http_503"),
    "overflow": (Step(do="overflow"), "compact_overflow"),
    "error": (Step(do="error", status=500), "compact_http_500"),
    "html": (Step(do="html"), "compact_http_502"),
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
        provider.run(openai.compact(passage_of("responses", SPOKEN), OPTIONS))
    assert failure.value.reason == reason
    assert len(provider.calls) == 1


@pytest.mark.parametrize("path", ["404", "404-text", "404-json", "405", "501"])
def test_a_path_that_is_not_there_is_remembered_as_missing(provider, path):
    provider.simulator.configure(responses_compaction=ResponsesCompaction(path=path))
    with pytest.raises(CompactionFailed, match="compact_missing") as failure:
        provider.run(openai.compact(passage_of("responses", SPOKEN), OPTIONS))
    assert failure.value.missing


def test_a_bad_seal_shows_only_when_it_is_sent_back(provider):
    provider.simulator.script(Step(do="bad_artifact"))
    minted = provider.run(openai.compact(passage_of("responses", SPOKEN), OPTIONS))
    with pytest.raises(CompactionFailed) as failure:
        provider.run(openai.compact(passage_of("responses", [user("On.")], earlier=minted.items), OPTIONS))
    assert (failure.value.reason, failure.value.missing) == ("compact_stale", False)


class TestOnceMore:
    def test_without_the_fields_that_may_go(self, provider):
        """As a strict endpoint that knows Open Responses' first schema only."""
        refusal = b'{"error":{"message":"Unknown parameter: \'prompt_cache_key\'.","code":"unknown_parameter"}}'
        replies = iter([Reply(400, refusal)])
        passage = passage_of("responses", SPOKEN, prompt_cache_key="k", service_tier="flex", instructions="Brief.")
        minted = drive(openai.compact(passage, OPTIONS), lambda call: next(replies, None) or provider.answer(call))
        assert minted.calls == 2
        assert set(json.loads(provider.calls[0].body)) == {"model", "input", "instructions"}

    def test_not_where_a_field_that_must_stay_is_refused(self):
        replies = [Reply(400, b'{"error":{"message":"Unknown parameter: \'input\'."}}')]
        with pytest.raises(CompactionFailed, match="compact_missing"):
            drive(openai.compact(passage_of("responses", SPOKEN), OPTIONS), lambda _call: replies.pop())

    def test_without_thinking_that_is_stale(self, provider):
        """As after a change of account: what another sealed goes, the words stay."""
        provider.simulator.configure(orgs={"sk-a": "acme", "sk-b": "other"}, tool_rounds=0)
        other = Provider(provider.simulator, headers=KEY | {"authorization": "Bearer sk-b"})
        ask = body_of("responses", [user("Go.")], reasoning={"effort": "low"}, include=["reasoning.encrypted_content"])
        output = other.post("/responses", ask).json()["output"]
        minted = provider.run(openai.compact(passage_of("responses", [user("Go."), *output]), OPTIONS))
        assert minted.calls == 2
        known(provider, minted)

    def test_a_stale_compaction_stays_and_fails(self, provider):
        """Without it, what it stands for would be lost: the items themselves must take its place."""
        provider.simulator.configure(orgs={"sk-a": "acme", "sk-b": "other"})
        other = Provider(provider.simulator, headers=KEY | {"authorization": "Bearer sk-b"})
        minted = other.run(openai.compact(passage_of("responses", SPOKEN), OPTIONS))
        with pytest.raises(CompactionFailed, match="compact_stale"):
            provider.run(openai.compact(passage_of("responses", [user("On.")], earlier=minted.items), OPTIONS))
        assert len(provider.calls) == 1

    def test_no_remedy_is_tried_twice(self):
        calls = []
        work = ask(
            Call("/x", b"{}"),
            OPTIONS,
            error_in=lambda body: b"",
            lacks=lambda trouble: False,
            remedies=(lambda body, trouble: body + b" ", lambda body, trouble: None),
        )
        with pytest.raises(CompactionFailed, match="compact_http_400"):
            drive(work, lambda call: calls.append(call.body) or Reply(400))
        assert calls == [b"{}", b"{} "]

    def test_the_caller_tells_what_is_too_long(self):
        options = Options(overflows=lambda reply: b"gross" in reply.body)
        with pytest.raises(CompactionFailed, match="compact_overflow"):
            drive(openai.compact(passage_of("responses", SPOKEN), options), lambda _call: Reply(400, b"zu gross"))

    @pytest.mark.parametrize("strategy", [openai.compact, openai.trigger])
    def test_without_ids_that_no_such_item_has_here(self, provider, strategy):
        """As of a history that another server's models had a part in."""
        call = asked("a") | {"id": "custom"}
        items = [user("FACT-01 is the port."), call, result("a"), {**assistant("Right."), "id": "chatcmpl-1"}]
        minted = provider.run(strategy(passage_of("responses", items), OPTIONS))
        assert minted.calls == 2
        assert b'"id"' in provider.calls[0].body
        assert b'"id"' not in provider.calls[1].body

    def test_an_id_that_can_not_go_is_left_to_the_next_strategy(self, provider):
        items = [user("Go."), {"type": "reasoning", "id": "custom", "summary": []}, assistant("Right.")]
        with pytest.raises(CompactionFailed, match="compact_http_400"):
            provider.run(openai.compact(passage_of("responses", items), OPTIONS))
        assert len(provider.calls) == 1


class TestFitted:
    """None of these compactions rescues a window that is too small; what is fitted to it first passes."""

    @pytest.mark.parametrize("strategy", [openai.compact, openai.trigger])
    def test_a_window_that_is_too_small(self, provider, strategy):
        provider.simulator.configure(window=2000)
        passage = passage_of("responses", [user("FACT-01."), asked("a"), result("a", "x y " * 3000), *SPOKEN[3:]])
        with pytest.raises(CompactionFailed, match="compact_overflow"):
            provider.run(strategy(passage, OPTIONS))
        items = fitted("responses", passage.items, 1500)
        minted = provider.run(strategy(replace(passage, items=items), OPTIONS))
        assert "FACT-01" in known(provider, minted)
        assert provider.violations() == []
