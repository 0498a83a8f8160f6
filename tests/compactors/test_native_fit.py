"""What gives way so that a compaction call fits the window, and what never does."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_cases import asked, assistant, raw, result, system, user

from tidegate.compactors.fit import LEAST, fitted, stub
from tidegate.context.estimate import item_tokens
from tidegate.wire import REQUESTS

BIG = "line of a file\n" * 200


def size(dialect, items):
    return sum(item_tokens(dialect, REQUESTS[dialect].parts(json.loads(item))) for item in items)


def chat_round(name, output):
    call = {"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": name, "content": output},
    ]


def messages_round(name, output, **more):
    return [
        assistant([{"type": "tool_use", "id": name, "name": "f", "input": {}}]),
        user([{"type": "tool_result", "tool_use_id": name, "content": output, **more}]),
    ]


def responses_round(name, output):
    return [asked(name), result(name, output)]


ROUNDS = {"chat": chat_round, "responses": responses_round, "messages": messages_round}


def history(dialect, outputs):
    rounds = [item for n, output in enumerate(outputs) for item in ROUNDS[dialect](f"c{n}", output)]
    return [raw(item) for item in (user("Go."), *rounds, assistant("Done."))]


@pytest.mark.parametrize("dialect", ROUNDS)
class TestOutputs:
    def test_what_fits_is_not_touched(self, dialect):
        items = history(dialect, [BIG, BIG])
        assert fitted(dialect, items, size(dialect, items)) == tuple(items)

    def test_the_oldest_give_way_and_as_few_as_need_be(self, dialect):
        items = history(dialect, [BIG, BIG, BIG])
        for over, gone in ((1, [2]), (700, [2]), (760, [2, 4]), (1500, [2, 4, 6])):
            kept = fitted(dialect, items, size(dialect, items) - over)
            assert [n for n, item in enumerate(kept) if item != items[n]] == gone
            assert size(dialect, kept) <= size(dialect, items) - over

    def test_only_the_output_itself_is_replaced(self, dialect):
        items = history(dialect, [BIG, "small"])
        kept = fitted(dialect, items, size(dialect, items) - 1)
        before, after = REQUESTS[dialect].facts(json.loads(items[2])), REQUESTS[dialect].facts(json.loads(kept[2]))
        assert before == after
        assert b"left out" in kept[2]
        whole = json.dumps(BIG).encode()
        start = items[2].index(whole)
        assert kept[2].startswith(items[2][:start])
        assert kept[2].endswith(items[2][start + len(whole) :])

    def test_small_ones_stay(self, dialect):
        items = history(dialect, ["x " * LEAST] * 10)
        assert fitted(dialect, items, size(dialect, items) - 1) is None

    def test_words_of_the_user_and_system_items_stay(self, dialect):
        role = "user" if dialect == "messages" else "system"
        items = [raw(user(BIG)), raw({"role": role, "content": BIG}), *history(dialect, ["small"])]
        assert fitted(dialect, items, size(dialect, items) - 1) is None

    def test_nothing_fits_into_nothing(self, dialect):
        assert fitted(dialect, history(dialect, [BIG]), 10) is None

    def test_a_stub_is_not_replaced_again(self, dialect):
        items = history(dialect, [BIG])
        room = size(dialect, items) - 1
        kept = fitted(dialect, items, room)
        assert fitted(dialect, kept, size(dialect, kept) - 1) is None
        assert fitted(dialect, items, room) == kept


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(ROUNDS)),
    st.lists(st.sampled_from(["", "short", BIG, BIG * 2, "é" * 900, '\\"]}' * 400]), max_size=5),
    st.integers(0, 3000),
)
def test_whatever_comes_out_fits_and_keeps_its_pairs(dialect, outputs, room):
    items = history(dialect, outputs)
    kept = fitted(dialect, items, room)
    facts = REQUESTS[dialect].facts
    if kept is None:
        assert size(dialect, items) > room
        return
    assert size(dialect, kept) <= room
    assert [facts(json.loads(item)) for item in kept] == [facts(json.loads(item)) for item in items]
    changed = [n for n, item in enumerate(kept) if item != items[n]]
    assert all(facts(json.loads(items[n])).results for n in changed)


def fit_one(dialect, *items):
    raws = [raw(item) for item in items]
    return fitted(dialect, raws, size(dialect, raws) - 1)


class TestResponses:
    @pytest.mark.parametrize(
        "kind",
        ["function_call_output", "custom_tool_call_output", "local_shell_call_output", "apply_patch_call_output"],
    )
    def test_outputs_that_may_be_a_line(self, kind):
        item = {"type": kind, "call_id": "a", "output": BIG, "status": "completed"}
        (kept,) = fit_one("responses", item)
        assert json.loads(kept) == {**item, "output": stub(item_tokens("responses", _parts(item)))}

    def test_an_output_of_parts_becomes_a_line(self):
        parts = [{"type": "input_text", "text": BIG}, {"type": "input_image", "image_url": "data:image/png;base64,A"}]
        (kept,) = fit_one("responses", result("a", parts))
        assert "left out" in json.loads(kept)["output"]

    def test_a_shells_chunks_keep_their_shape(self):
        chunk = {"stdout": BIG, "stderr": "", "outcome": {"type": "exit", "exit_code": 1}}
        item = {"type": "shell_call_output", "call_id": "a", "output": [chunk, {**chunk, "stderr": BIG}]}
        (kept,) = fit_one("responses", item)
        first, second = json.loads(kept)["output"]
        assert "left out" in first["stdout"]
        assert "left out" in second["stderr"]
        assert (first["stderr"], second["outcome"]) == ("", chunk["outcome"])

    @pytest.mark.parametrize(
        "item",
        [
            {
                "type": "computer_call_output",
                "call_id": "a",
                "output": {"type": "computer_screenshot", "image_url": "u"},
            },
            {"type": "compaction", "id": "cmp_1", "encrypted_content": "A" * 4000},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "A" * 4000},
            {"type": "mcp_call", "id": "mcp_1", "name": "f", "arguments": "{}", "output": BIG, "server_label": "s"},
            assistant(BIG),
            system(BIG),
        ],
    )
    def test_what_never_gives_way(self, item):
        assert fit_one("responses", item) is None


ANSWERED = {"type": "tool_result", "tool_use_id": "a"}


class TestMessages:
    def test_each_large_result_of_a_message_and_nothing_beside(self):
        blocks = [
            {"type": "tool_result", "tool_use_id": "a", "content": BIG, "cache_control": {"type": "ephemeral"}},
            {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": BIG}], "is_error": True},
            {"type": "tool_result", "tool_use_id": "c", "content": "small"},
            {"type": "text", "text": BIG},
        ]
        (kept,) = fit_one("messages", user(blocks))
        first, second, *rest = json.loads(kept)["content"]
        assert "left out" in first["content"]
        assert "left out" in second["content"]
        assert first["cache_control"] == {"type": "ephemeral"}
        assert second["is_error"] is True
        assert rest == blocks[2:]

    @pytest.mark.parametrize(
        "message",
        [
            user(
                [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "tool_reference", "tool_name": BIG}]}]
            ),
            assistant(
                [{"type": "web_search_tool_result", "tool_use_id": "a", "content": [{"encrypted_content": BIG}]}]
            ),
            assistant([{"type": "thinking", "thinking": BIG, "signature": "s"}]),
            assistant([{"type": "compaction", "content": BIG, "signature": "s"}]),
            user([{"type": "text", "text": BIG}]),
        ],
    )
    def test_what_never_gives_way(self, message):
        assert fit_one("messages", message) is None


def _parts(item):
    return REQUESTS["responses"].parts(item)


def test_what_can_not_be_read_stays():
    twice = b'{"type":"function_call_output","call_id":"a","output":"x","output":"' + b"y" * 4000 + b'"}'
    large = b'{"type":"function_call_output","call_id":"a","output":"' + b"y " * 2000 + b'","n":1e999}'
    for item in (twice, large):
        assert fitted("responses", [item], 10) is None
