"""What the Responses API refuses: one broken rule a case."""

import pytest
from simulator_calls import RESPONSES, RESPONSES_TOOL, app_of, call, responses, user

APP = app_of(window=10_000_000)
GO = user("Go.")


def asking(id_, kind="function_call", **more):
    fields = {"function_call": {"name": "f", "arguments": "{}"}, "custom_tool_call": {"name": "f", "input": "x"}}
    fields["apply_patch_call"] = {"operation": {}}
    return {"type": kind, "call_id": id_, **fields.get(kind, {"action": {}}), **more}


def result(id_, kind="function_call_output"):
    return {"type": kind, "call_id": id_, "output": "done"}


def said(text="Fine.", **more):
    return {"role": "assistant", "content": [{"type": "output_text", "text": text}], **more}


BROKEN = {
    "no-model": ({"input": "x"}, "required", "Missing required parameter: 'model'.", "missing_required_parameter"),
    "no-input": (
        {"model": "m"},
        "required",
        'One of "input" or "previous_response_id"or',
        "missing_required_parameter",
    ),
    "unknown-field": (responses(messages=[]), "unknown-field", "Unknown parameter: 'messages'.", "unknown_parameter"),
    "input-number": ({"model": "m", "input": 5}, "type", "Invalid type for 'input'", "invalid_type"),
    "item-text": (responses("x"), "type", "Invalid type for 'input[0]'", "invalid_type"),
    "string-too-long": (
        responses(user("x" * 10_485_761)),
        "string-too-long",
        "maximum length 10485760, but got a string with length 10485761 instead.",
        "string_above_max_length",
    ),
    "type-unknown": (
        responses({"type": "tool_use"}),
        "item-type",
        "Invalid value: 'tool_use'. Supported",
        "invalid_value",
    ),
    "type-list": (responses({"type": ["message"]}), "item-type", "Invalid value:", "invalid_value"),
    "trigger-not-last": (
        responses({"type": "compaction_trigger"}, GO),
        "trigger",
        "'compaction_trigger' must be the final",
        "invalid_value",
    ),
    "trigger-twice": (
        responses(GO, {"type": "compaction_trigger"}, {"type": "compaction_trigger"}),
        "trigger",
        "'compaction_trigger' must be the final",
        "invalid_value",
    ),
    "compaction-by-another-name": (
        responses({"type": "compaction_summary", "encrypted_content": "gAAAA"}, GO),
        "item-type",
        "Invalid value: 'compaction_summary'.",
        "invalid_value",
    ),
    "id-prefix": (
        responses(GO, asking("a", id="call_1"), result("a")),
        "item-id",
        "Invalid 'input[1].id': 'call_1'. Expected an ID that begins with 'fc'.",
        "invalid_value",
    ),
    "id-too-long": (
        responses(GO | {"id": "msg_" + "x" * 61}),
        "item-id",
        "maximum length 64",
        "string_above_max_length",
    ),
    "field-unknown": (
        responses(GO | {"name": "x"}),
        "unknown-field",
        "Unknown parameter: 'input[0].name'.",
        "unknown_parameter",
    ),
    "reasoning-status": (
        responses(GO, {"type": "reasoning", "summary": [], "status": "completed"}, said()),
        "unknown-field",
        "Unknown parameter: 'input[1].status'.",
        "unknown_parameter",
    ),
    "reasoning-content": (
        responses(GO, {"type": "reasoning", "summary": [], "content": [{"type": "text"}]}, said()),
        "reasoning-content",
        "Invalid 'input[1].content': array too long.",
        "array_above_max_length",
    ),
    "role-unknown": (responses({"role": "tool", "content": "x"}), "role", "Invalid value: 'tool'.", "invalid_value"),
    "content-missing": (responses({"role": "user"}), "required", "'input[0].content'", "missing_required_parameter"),
    "assistant-input-text": (
        responses(GO, {"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}),
        "part-type",
        "Invalid value: 'input_text'. Supported values are: 'output_text' and 'refusal'.",
        "invalid_value",
    ),
    "user-output-text": (
        responses(user([{"type": "output_text", "text": "x"}])),
        "part-type",
        "Invalid value: 'output_text'.",
        "invalid_value",
    ),
    "call-shape": (responses(GO, {"type": "function_call", "call_id": "a"}), "required", "'input[1].name'", None),
    "output-shape": (
        responses(GO, asking("a"), {"type": "function_call_output", "call_id": "a"}),
        "required",
        "output",
        None,
    ),
    "result-first": (
        responses(result("a"), GO),
        "result-without-call",
        "No tool call found for function call output with call_id a.",
        None,
    ),
    "result-before-call": (responses(GO, result("a"), asking("a")), "result-without-call", "No tool call found", None),
    "result-of-another-kind": (
        responses(GO, asking("a"), result("a", "custom_tool_call_output")),
        "result-without-call",
        "No tool call found for custom tool call output with call_id a.",
        None,
    ),
    "result-twice": (
        responses(GO, asking("a"), result("a"), result("a")),
        "duplicate-result",
        "Duplicate output",
        None,
    ),
    "call-open": (
        responses(GO, asking("a"), GO),
        "call-without-result",
        "No tool output found for function call a.",
        None,
    ),
    "call-at-end": (
        responses(GO, asking("a")),
        "call-without-result",
        "No tool output found for function call a.",
        None,
    ),
    "custom-open": (
        responses(GO, asking("a", "custom_tool_call")),
        "call-without-result",
        "for custom tool call a.",
        None,
    ),
    "shell-open": (
        responses(GO, asking("a", "local_shell_call")),
        "call-without-result",
        "for local shell call a.",
        None,
    ),
    "call-twice": (
        responses(GO, asking("a"), asking("a"), result("a")),
        "duplicate-call",
        "Duplicate tool call id",
        None,
    ),
    "reasoning-alone": (
        responses(GO, {"type": "reasoning", "summary": []}),
        "reasoning-without-output",
        "of type 'reasoning' was provided without its required following item.",
        None,
    ),
    "reasoning-then-user": (
        responses(GO, {"type": "reasoning", "summary": []}, GO),
        "reasoning-without-output",
        "without its required following item.",
        None,
    ),
    "reasoning-foreign": (
        responses(GO, {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAAxyz"}, said()),
        "encrypted-content",
        "The encrypted content for item rs_1 could not be verified. Reason: Encrypted content could not be decrypted",
        "invalid_encrypted_content",
    ),
    "reasoning-foreign-nameless": (
        responses(GO, {"type": "reasoning", "summary": [], "encrypted_content": "gAAAAxyz"}, said()),
        "encrypted-content",
        "The encrypted content gAAA...Axyz could not be verified.",
        "invalid_encrypted_content",
    ),
    "reasoning-not-stored": (
        responses(GO, {"type": "reasoning", "id": "rs_1", "summary": []}, said()),
        "item-reference",
        "Item with id 'rs_1' not found.",
        None,
    ),
    "reference-unknown": (
        responses(GO, {"type": "item_reference", "id": "msg_1"}),
        "item-reference",
        "'msg_1' not found",
        None,
    ),
    "compaction-foreign": (
        responses({"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA"}, GO),
        "encrypted-content",
        "The encrypted content for item cmp_1 could not be verified.",
        "invalid_encrypted_content",
    ),
    "compaction-empty": (responses({"type": "compaction"}, GO), "required", "'input[0].encrypted_content'", None),
    "limit-small": (
        responses(max_output_tokens=8),
        "output-limit",
        "Expected a value >= 16, but got 8 instead.",
        "integer_below_min_value",
    ),
    "stream-options": (responses(stream_options={}), "companion", "'stream' is enabled", None),
    "threshold-small": (
        responses(context_management=[{"type": "compaction", "compact_threshold": 50}]),
        "context-management",
        "Expected a value >= 1000, but got 50 instead.",
        "integer_below_min_value",
    ),
    "edits-object": (responses(context_management={}), "type", "'context_management'", "invalid_type"),
    "previous-unknown": (
        responses(previous_response_id="resp_1"),
        "previous-response",
        "Previous response with id 'resp_1' not found.",
        "previous_response_not_found",
    ),
    "previous-and-conversation": (
        responses(previous_response_id="resp_1", conversation="conv_1"),
        "previous-response",
        "Mutually exclusive",
        "mutually_exclusive_parameters",
    ),
    "conversation": (responses(conversation="conv_1"), "conversation", "Conversation not found.", None),
}


@pytest.mark.parametrize(("body", "rule", "text", "code"), BROKEN.values(), ids=BROKEN)
def test_refused_and_recorded(body, rule, text, code):
    APP.state.reset()
    answer = call(APP, RESPONSES, body)
    assert answer.status == (404 if rule in ("item-reference", "conversation") else 400)
    assert text in answer.json["error"]["message"]
    if code:
        assert answer.json["error"]["code"] == code
    assert [violation.rule for violation in APP.state.violations] == [rule]


CALLS = ["function_call", "custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call", "computer_call"]
FINE = {
    "string": {"model": "m", "input": "Hello."},
    "roles-in-any-order": responses(
        said(), {"role": "developer", "content": "x"}, GO, {"role": "system", "content": "y"}
    ),
    "parts": responses(user([{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": "data:,"}])),
    "parallel": responses(GO, asking("a"), asking("b"), result("b"), result("a")),
    "result-much-later": responses(GO, asking("a"), GO, said(), result("a")),
    "codex-extras": responses(
        GO | {"type": "message", "id": "msg_1", "internal_chat_message_metadata_passthrough": {}},
        client_metadata={},
        prompt_cache_key="k",
        include=["reasoning.encrypted_content"],
    ),
    "reasoning-nameless": responses(GO, {"type": "reasoning", "summary": [], "content": None}, said(), GO),
    "tools-empty": responses(tools=[]),
    "threshold": responses(context_management=[{"type": "compaction", "compact_threshold": 1000}]),
} | {kind: responses(GO, asking("a", kind), result("a", kind + "_output")) for kind in CALLS}


@pytest.mark.parametrize("body", FINE.values(), ids=FINE)
def test_allowed(body):
    answer = call(APP, RESPONSES, body)
    assert answer.status == 200, answer.raw


class TestReasoning:
    """The app's own reasoning, sent back."""

    def first(self, **more):
        app = app_of()
        body = responses(GO, tools=[RESPONSES_TOOL], reasoning={"effort": "low"}, **more)
        output = call(app, RESPONSES, body).json["output"]
        assert [item["type"] for item in output] == ["reasoning", "function_call"]
        return app, output

    def again(self, app, *items, **more):
        done = result(items[-1]["call_id"]) if items else None
        return call(app, RESPONSES, responses(GO, *items, done, tools=[RESPONSES_TOOL], **more))

    def test_sealed_comes_back_as_it_was(self):
        app, output = self.first(include=["reasoning.encrypted_content"], store=False)
        assert self.again(app, *output).status == 200

    def test_one_changed_character_is_noticed(self):
        app, (reasoning, asked) = self.first(include=["reasoning.encrypted_content"], store=False)
        sealed = reasoning["encrypted_content"]
        for at in (6, len(sealed) // 2, len(sealed) - 3):
            other = "A" if sealed[at] != "A" else "B"
            changed = reasoning | {"encrypted_content": sealed[:at] + other + sealed[at + 1 :]}
            assert "could not be verified" in self.again(app, changed, asked).error

    def test_sealed_under_another_name_is_refused(self):
        app, (reasoning, asked) = self.first(include=["reasoning.encrypted_content"], store=False)
        assert "could not be verified" in self.again(app, reasoning | {"id": "rs_other"}, asked).error

    def test_another_provider_can_not_read_it(self):
        _, output = self.first(include=["reasoning.encrypted_content"], store=False)
        assert "could not be verified" in self.again(app_of(seed=1), *output).error

    def test_stored_needs_no_seal(self):
        app, output = self.first()
        assert "encrypted_content" not in output[0]
        assert self.again(app, *output).status == 200
        assert self.again(app, {"type": "item_reference", "id": output[0]["id"]}, output[1]).status == 200

    def test_not_stored_and_not_sealed_is_lost(self):
        app, output = self.first(store=False)
        assert self.again(app, *output).status == 404

    def test_the_call_needs_its_reasoning_when_it_goes_by_its_id(self):
        app, (reasoning, asked) = self.first()
        text = (
            f"Item '{asked['id']}' of type 'function_call' was provided without its required 'reasoning' item: "
            f"'{reasoning['id']}'."
        )
        assert self.again(app, asked).error == text
        nameless = {name: value for name, value in asked.items() if name != "id"}
        assert self.again(app, nameless).status == 200

    def test_other_makers_keep_no_such_pairs(self):
        app = app_of(profile="vllm")
        body = responses(GO, tools=[RESPONSES_TOOL], reasoning={"effort": "low"})
        asked = call(app, RESPONSES, body).json["output"][1]
        assert self.again(app, asked).status == 200


class TestPreviousResponse:
    def test_goes_on_from_what_is_stored(self):
        app = app_of()
        first = call(app, RESPONSES, responses(user("Keep FACT-01 in mind."))).json
        body = {"model": "m", "input": "What do you know?", "previous_response_id": first["id"]}
        assert "FACT-01" in call(app, RESPONSES, body).json["output"][0]["content"][0]["text"]

    def test_results_answer_calls_of_the_stored_part(self):
        app = app_of()
        first = call(app, RESPONSES, responses(GO, tools=[RESPONSES_TOOL])).json
        (asked,) = first["output"]
        again = responses(result(asked["call_id"]), previous_response_id=first["id"])
        assert call(app, RESPONSES, again).status == 200
        orphan = responses(result("call_other"), previous_response_id=first["id"])
        assert "No tool call found" in call(app, RESPONSES, orphan).error

    def test_not_stored_is_not_found(self):
        app = app_of()
        first = call(app, RESPONSES, responses(GO, store=False)).json
        answer = call(app, RESPONSES, responses(GO, previous_response_id=first["id"]))
        assert answer.json["error"]["code"] == "previous_response_not_found"

    def test_counts_towards_the_window(self):
        app = app_of(window=600)
        first = call(app, RESPONSES, responses(user("x" * 2000))).json
        assert call(app, RESPONSES, responses(user("y" * 2000))).status == 200
        answer = call(app, RESPONSES, responses(user("y" * 2000), previous_response_id=first["id"]))
        assert answer.json["error"]["code"] == "context_length_exceeded"


class TestTruncation:
    def test_auto_drops_from_the_front_and_splits_no_pair(self):
        app = app_of(window=700)
        items = [user("FACT-01 " + "x" * 1000), asking("a"), result("a"), user("FACT-02 " + "y" * 2000)]
        assert call(app, RESPONSES, responses(*items)).status == 400
        answer = call(app, RESPONSES, responses(*items, truncation="auto"))
        assert answer.status == 200
        assert (app.state.facts, app.state.records[-1].truncated) == (("FACT-02",), True)

    def test_auto_can_not_shorten_the_newest_message(self):
        app = app_of(window=300)
        assert call(app, RESPONSES, responses(user("y" * 2000), truncation="auto")).status == 400


class TestXai:
    APP = app_of(profile="xai")

    def test_errors_are_flat(self):
        answer = call(self.APP, RESPONSES, responses(result("a")))
        assert answer.json == {
            "code": "invalid-argument",
            "error": "No tool call found for function call output with call_id a.",
        }

    def test_a_trigger_can_not_be_read(self):
        answer = call(self.APP, RESPONSES, responses(GO, {"type": "compaction_trigger"}))
        assert (answer.status, "Failed to deserialize" in answer.error) == (422, True)

    def test_a_foreign_blob_can_not_be_decoded(self):
        answer = call(self.APP, RESPONSES, responses({"type": "compaction", "encrypted_content": "x"}, GO))
        assert answer.error.startswith("Could not decode the compaction blob.")

    def test_unknown_fields_are_ignored(self):
        assert call(self.APP, RESPONSES, responses(context_management=[{"type": "compaction"}], extra=1)).status == 200
