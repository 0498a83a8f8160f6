"""xAI's compaction: two fields, one item for everything, and the traps on the way."""

import json
from collections.abc import Iterator

import pytest
from native_cases import Provider, asked, assistant, drive, first_call, parsed, passage_of, raw, result, system, user

from tidegate.compactors import xai
from tidegate.compactors.native import Options
from tidegate.compactors.strategy import CompactionFailed, Reply
from tidegate.simulator import ResponsesCompaction, SimulatorSettings, Step, serve

PLAIN = SimulatorSettings(window=20_000, profile="xai", responses_compaction=ResponsesCompaction())
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


def known(provider: Provider, *items: bytes) -> str:
    answer = provider.post("/responses", b'{"model":"m-1","input":[' + b",".join([*items, raw(LATER)]) + b"]}")
    assert answer.status_code == 200, answer.text
    return "".join(part["text"] for item in answer.json()["output"] for part in item.get("content", []))


def sent(**fields):
    return json.loads(first_call(xai.compact(passage_of("responses", **fields), OPTIONS)).body)


class TestCall:
    def test_two_fields_and_the_system_text_within(self):
        lead = [system("Rule 1.")]
        more = {"tools": [], "store": False, "reasoning": {"effort": "low"}, "prompt_cache_key": "k", "stream": True}
        body = sent(items=SPOKEN, lead=lead, instructions="Be brief.", **more)
        assert body == {"model": "m-1", "input": [{"role": "system", "content": "Be brief."}, *lead, *SPOKEN]}

    def test_instructions_keep_their_escapes(self):
        passage = passage_of("responses", SPOKEN, instructions="\u00e9 \ud83d")
        assert b'{"role":"system","content":"\\u00e9 \\ud83d"}' in first_call(xai.compact(passage, OPTIONS)).body

    def test_the_system_text_comes_after_an_earlier_item(self):
        """Which must be first, and hides what stands before it."""
        blob = raw({"type": "compaction", "id": "cmp_1", "encrypted_content": "g"})
        body = sent(items=[user("On.")], earlier=[blob], instructions="Be brief.")
        kinds = [item.get("type", item.get("role")) for item in body["input"]]
        assert kinds == ["compaction", "system", "user"]

    @pytest.mark.parametrize("content", [None, [], "absent"])
    def test_reasoning_with_null_content_is_repaired(self, provider, content):
        reasoning = {"type": "reasoning", "summary": [], "content": content}
        if content == "absent":
            del reasoning["content"]
        items = [user("Go."), reasoning, assistant("FACT-07 is so.")]
        minted = provider.run(xai.compact(passage_of("responses", items), OPTIONS))
        assert "FACT-07" in known(provider, *minted.items)
        assert minted.calls == 1

    def test_all_else_keeps_its_bytes(self):
        odd = b'{ "type":"reasoning", "summary" : [],"content":[] }'
        call = first_call(xai.compact(passage_of("responses", [user("Go.")], earlier=[odd]), OPTIONS))
        assert odd in call.body

    def test_equal_input_gives_equal_calls(self):
        one, other = (first_call(xai.compact(passage_of("responses", SPOKEN), OPTIONS)) for _ in "ab")
        assert one == other


class TestAnswer:
    @pytest.mark.parametrize("strict", [False, True])
    def test_facts_live_through_two_compactions(self, provider, strict):
        provider.simulator.configure(responses_compaction=ResponsesCompaction(refuse_extra_fields=strict))
        lead = [system("FACT-09 is a rule.")]
        told = {"lead": lead, "instructions": "FACT-08 is an order."}
        first = provider.run(xai.compact(passage_of("responses", SPOKEN, **told), OPTIONS))
        newer = [user("FACT-04 is new."), assistant("FACT-05 is done.")]
        second = provider.run(xai.compact(passage_of("responses", newer, earlier=first.items, **told), OPTIONS))
        said = known(provider, *second.items, raw(user("FACT-06 is newest.")))
        assert all(f"FACT-0{n}" in said for n in (1, 2, 3, 4, 5, 6, 8, 9))
        assert provider.violations() == []
        (item,) = parsed(second.items)
        assert item["type"] == "compaction"
        assert second.input_tokens > second.output_tokens > 0

    def test_what_must_stay_verbatim_is_retained_by_position(self, provider):
        items = [SPOKEN[0], system("A rule."), *SPOKEN[1:], user("Newest.")]
        minted = provider.run(xai.compact(passage_of("responses", items, retained=(1, 5)), OPTIONS))
        assert minted.retained == (1, 5)

    def test_messages_beside_the_item_are_left(self):
        item = b'{"encrypted_content":"g" , "type":"compaction","id":"cmp_1"}'
        body = b'{"output":[{"role":"user","content":"Hi."},' + item + b"]}"
        minted = drive(xai.compact(passage_of("responses", SPOKEN), OPTIONS), lambda _call: Reply(200, body))
        assert minted.items == (item,)


FAILURES = {
    "too-long": (
        400,
        b'{"code":"invalid-argument","error":"This model\'s maximum prompt length is 5 but the request contains 6."}',
        "compact_overflow",
    ),
    "stale": (
        400,
        b'{"code":"invalid-argument","error":"Could not decode the compaction blob. Ensure it is unmodified."}',
        "compact_stale",
    ),
    "stale-422": (422, b'{"code":"invalid_compaction","error":"no"}', "compact_stale"),
    "unknown-field": (422, b"Failed to deserialize the JSON body: unknown field `x`", "compact_missing"),
    "no-quota": (403, b'{"code":"permission_denied","error":"no quota"}', "compact_http_403"),
    "key": (400, b'{"code":"invalid-argument","error":"Incorrect API key provided."}', "compact_http_400"),
    "wrong-host": (404, b"", "compact_missing"),
    "users-only": (200, b'{"output":[{"role":"user","content":"Hi."}]}', "compact_no_artifact"),
}


@pytest.mark.parametrize(("status", "body", "reason"), FAILURES.values(), ids=FAILURES)
def test_failures(status, body, reason):
    with pytest.raises(CompactionFailed) as failure:
        drive(xai.compact(passage_of("responses", SPOKEN), OPTIONS), lambda _call: Reply(status, body))
    assert failure.value.reason == reason
    assert failure.value.missing == (reason == "compact_missing")


SCRIPT = {
    "no-item": (Step(do="no_artifact"), "compact_no_artifact"),
    "two-items": (Step(do="two_artifacts"), "compact_two_artifacts"),
    "unavailable": (Step(do="unavailable"), "compact_http_503"),
    "overflow": (Step(do="overflow"), "compact_overflow"),
    "garbage": (Step(do="garbage"), "compact_unreadable"),
    "cut": (Step(do="cut"), "compact_unreachable"),
    "hang": (Step(do="hang", seconds=0.2), "compact_unreachable"),
}


@pytest.mark.parametrize(("step", "reason"), SCRIPT.values(), ids=SCRIPT)
def test_script(provider, step, reason):
    provider.simulator.script(step)
    with pytest.raises(CompactionFailed) as failure:
        provider.run(xai.compact(passage_of("responses", SPOKEN), OPTIONS))
    assert failure.value.reason == reason


def test_an_account_without_quota(provider):
    provider.simulator.configure(
        orgs={"sk-a": "free"}, responses_compaction=ResponsesCompaction(no_quota=frozenset({"free"}))
    )
    with pytest.raises(CompactionFailed, match="compact_http_403") as failure:
        provider.run(xai.compact(passage_of("responses", SPOKEN), OPTIONS))
    assert not failure.value.missing
