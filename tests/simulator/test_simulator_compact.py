"""`/responses/compact` on OpenAI's platform: what it refuses, what it hands back, and what replaying that means."""

import time

import pytest
from simulator_calls import RESPONSES, RESPONSES_TOOL, app_of, assistant, call, responses, text_of, user

from tidegate.simulator import ResponsesCompaction, Step

COMPACT = "/v1/responses/compact"
GO = user("Go.")
LATER = user("What do you know?")


def asking(id_):
    return {"type": "function_call", "call_id": id_, "name": "f", "arguments": "{}"}


def result(id_, output="done"):
    return {"type": "function_call_output", "call_id": id_, "output": output}


def compaction_app(**knobs):
    settings = {name: knobs.pop(name) for name in ("window", "profile", "orgs", "keys", "script") if name in knobs}
    return app_of(responses_compaction=ResponsesCompaction(**knobs), **settings)


def compacted(app, *items, **more):
    answer = call(app, COMPACT, responses(*items, **more))
    assert answer.status == 200, answer.raw
    return answer.json


def known(app, *items, **more):
    answer = call(app, RESPONSES, responses(*items, LATER, **more))
    assert answer.status == 200, answer.raw
    return text_of("responses", answer.json)


SPOKEN = [
    user("FACT-01 is the port."),
    asking("a"),
    result("a", "FACT-02 is in the file."),
    assistant("FACT-03 is my plan."),
]

NOT_TAKEN = [
    "background",
    "context_management",
    "conversation",
    "include",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "moderation",
    "partial_images",
    "prompt",
    "safety_identifier",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "tool_choice",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
]


class TestRefusals:
    @pytest.mark.parametrize("name", NOT_TAKEN)
    def test_fields_that_it_does_not_take(self, name):
        app = app_of()
        answer = call(app, COMPACT, responses(GO, **{name: None}))
        assert answer.status == 400
        error = {"message": f"Unknown parameter: '{name}'.", "type": "invalid_request_error"}
        assert answer.json == {"error": error | {"param": name, "code": "unknown_parameter"}}
        assert [violation.rule for violation in app.state.violations] == ["unknown-field"]

    def test_fields_that_it_takes(self):
        more = {
            "instructions": "Be brief.",
            "prompt_cache_key": "k",
            "prompt_cache_options": {"mode": "implicit"},
            "prompt_cache_retention": "24h",
            "service_tier": "auto",
            "image": {"context_compression": "auto"},
            "tools": [RESPONSES_TOOL],
            "parallel_tool_calls": True,
            "reasoning": {"effort": "low"},
            "text": {"verbosity": "low"},
        }
        compacted(app_of(), GO, **more)

    @pytest.mark.parametrize(
        ("body", "rule", "text", "code"),
        [
            ({"input": "x"}, "required", "Missing required parameter: 'model'.", "missing_required_parameter"),
            ({"model": "m"}, "required", 'One of "input" or "previous_response_id"or', "missing_required_parameter"),
            ({"model": "m", "input": []}, "required", "Invalid 'input'", "invalid_value"),
            (responses(GO, asking("a")), "call-without-result", "No tool output found for function call a.", None),
            (responses(GO, result("a")), "result-without-call", "No tool call found", None),
            (responses({"type": "reasoning", "summary": []}), "reasoning-without-output", "required following", None),
            (responses(GO, {"type": "compaction_trigger"}), "trigger", "is not allowed here", "invalid_value"),
            (responses({"type": "compaction"}, GO), "required", "'input[0].encrypted_content'", None),
            (
                responses({"type": "compaction_summary", "encrypted_content": "x"}),
                "item-type",
                "Invalid value: 'compaction_summary'",
                "invalid_value",
            ),
            (
                responses(GO, asking("a") | {"id": "call_a"}, result("a")),
                "item-id",
                "Expected an ID that begins with 'fc'.",
                "invalid_value",
            ),
            (
                responses(GO, previous_response_id="resp_other"),
                "previous-response",
                "Previous response with id 'resp_other' not found.",
                "previous_response_not_found",
            ),
        ],
    )
    def test_by_rule(self, body, rule, text, code):
        app = app_of()
        answer = call(app, COMPACT, body)
        assert answer.status == 400
        assert text in answer.error
        if code:
            assert answer.json["error"]["code"] == code
        assert [violation.rule for violation in app.state.violations] == [rule]

    def test_a_window_that_is_too_small_is_not_rescued(self):
        app = app_of(window=500)
        answer = call(app, COMPACT, responses(user("x" * 4000)))
        assert (answer.status, answer.json["error"]["code"]) == (400, "context_length_exceeded")
        assert app.state.records[-1].outcome == "overflow"

    def test_only_posted(self):
        assert call(app_of(), COMPACT, method="GET").status == 405


class TestAnswer:
    def test_users_as_they_were_then_one_item(self):
        whole = compacted(app_of(), *SPOKEN, user([{"type": "input_text", "text": "And?"}]))
        assert (whole["id"][:5], whole["object"], "model" in whole) == ("resp_", "response.compaction", False)
        first, second, item = whole["output"]
        assert [first["role"], second["role"], item["type"]] == ["user", "user", "compaction"]
        assert first["content"] == [{"type": "input_text", "text": "FACT-01 is the port."}]
        assert (first["status"], first["id"][:4], item["id"][:4]) == ("completed", "msg_", "cmp_")
        assert set(item) == {"id", "type", "encrypted_content"}

    def test_usage_bills_a_hidden_prompt_and_the_summary(self):
        app = app_of()
        usage = compacted(app, *SPOKEN)["usage"]
        counted = call(app, "/v1/responses/input_tokens", responses(*SPOKEN)).json["input_tokens"]
        assert usage["input_tokens"] == counted + 96
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > usage["input_tokens"]

    def test_is_no_turn_of_the_agent(self):
        app = app_of()
        compacted(app, *SPOKEN)
        record = app.state.compactions()[0]
        assert (record.kind, record.verdict, app.state.main()) == ("compaction", "compacted", [])
        assert app.state.counters()["compactions"] == 1
        assert record.facts == ("FACT-01", "FACT-02", "FACT-03")

    def test_the_newest_users_are_kept_and_the_oldest_cut_in_its_middle(self):
        app = compaction_app(user_tokens=110)
        oldest, older, newest = (user(f"FACT-0{n} {str(n) * 388}FACT-1{n}") for n in (1, 2, 3))
        cut, whole, item = compacted(app, oldest, older, newest)["output"]
        assert whole["content"][0]["text"] == newest["content"]
        text = cut["content"][0]["text"]
        assert (text[:7], text[-7:]) == ("FACT-02", "FACT-12")
        assert "92 tokens truncated…" in text
        assert known(app, cut, whole, item) == "I know FACT-02, FACT-12, FACT-03, FACT-13, FACT-01, FACT-11."

    def test_images_cost_no_budget(self):
        picture = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
        both = user([{"type": "input_text", "text": "x" * 400}, picture])
        cut, _ = compacted(compaction_app(user_tokens=20), both)["output"]
        assert [part["type"] for part in cut["content"]] == ["input_text", "input_image"]

    def test_assistant_messages_too_where_they_are(self):
        app = compaction_app(retain_assistant_ids=True)
        output = call(app, RESPONSES, responses(GO, reasoning={"effort": "low"})).json["output"]
        whole = compacted(app, GO, *output)
        assert [item["type"] for item in whole["output"]] == ["message", "message", "compaction"]
        said = whole["output"][1]
        assert said["id"] == output[1]["id"]
        answer = call(app, RESPONSES, responses(*whole["output"], GO))
        assert answer.error.startswith(f"Item '{said['id']}' of type 'message' was provided without its required")
        nameless = {name: value for name, value in said.items() if name != "id"}
        assert call(app, RESPONSES, responses(whole["output"][0], nameless, whole["output"][2], GO)).status == 200


class TestReplay:
    def test_all_that_was_known_is_known(self):
        app = app_of()
        whole = compacted(app, *SPOKEN)
        assert known(app, *whole["output"]) == "I know FACT-01, FACT-02, FACT-03."
        record = app.state.main()[-1]
        assert (record.verdict, [item["type"] for item in record.window()]) == (
            "replayed",
            ["message", "compaction", "message"],
        )
        assert record.window()[1]["summary"].endswith("- FACT-02 is in the file\n- FACT-03 is my plan")

    def test_costs_less_than_what_it_stands_for(self):
        app = app_of(window=50_000)
        long = [*SPOKEN, asking("b"), result("b", "x" * 20_000)]
        known(app, *long)
        known(app, *compacted(app, *long)["output"])
        before, after = (record.input_tokens for record in app.state.main())
        assert after < before / 20

    def test_the_users_go_with_the_item(self):
        app = app_of()
        whole = compacted(app, *SPOKEN)
        assert known(app, whole["output"][-1]) == "I know FACT-02, FACT-03."

    @pytest.mark.parametrize(
        ("boundary", "facts"),
        [
            ("keep_users", "FACT-09, FACT-01, FACT-02, FACT-03"),
            ("drop_all", "FACT-01, FACT-02, FACT-03"),
            ("keep_all_and_bill", "FACT-09, FACT-08, FACT-01, FACT-02, FACT-03"),
        ],
    )
    def test_what_stands_before_the_item(self, boundary, facts):
        app = compaction_app(boundary=boundary)
        output = compacted(app, *SPOKEN)["output"]
        assert known(app, user("FACT-09"), assistant("FACT-08"), *output) == f"I know {facts}."

    def test_a_call_before_the_item_has_no_result_after_it(self):
        app = app_of()
        output = compacted(app, *SPOKEN)["output"]
        answer = call(app, RESPONSES, responses(asking("b"), *output, result("b"), GO))
        assert "No tool call found for function call output with call_id b." in answer.error

    def test_again_and_again(self):
        app = app_of()
        first = compacted(app, *SPOKEN)["output"]
        second = compacted(app, *first, assistant("FACT-04 is done."), user("FACT-05 is next."))["output"]
        assert [item["type"] for item in second] == ["message", "message", "compaction"]
        assert known(app, *second) == "I know FACT-01, FACT-05, FACT-02, FACT-03, FACT-04."

    def test_older_users_may_be_left_to_the_item(self):
        app = compaction_app(keeps_older_users=False)
        first = compacted(app, *SPOKEN)["output"]
        second = compacted(app, *first, user("FACT-05 is next."))["output"]
        assert [item["type"] for item in second] == ["message", "compaction"]
        assert known(app, *second) == "I know FACT-05, FACT-02, FACT-03, FACT-01."

    @pytest.mark.parametrize(("decays", "facts"), [(True, "FACT-02"), (False, "FACT-01, FACT-02")])
    def test_system_items_are_forgotten_the_second_time(self, decays, facts):
        app = compaction_app(system_decays=decays)
        system = {"role": "developer", "content": "FACT-01 is a rule."}
        first = compacted(app, system, GO, assistant("FACT-02"))["output"]
        assert known(app, *first) == "I know FACT-01, FACT-02."
        assert known(app, *compacted(app, *first, GO)["output"]) == f"I know {facts}."

    def test_the_only_artifact_may_cover_its_users(self):
        app = compaction_app(covers_users=True)
        assert known(app, compacted(app, *SPOKEN)["output"][-1]) == "I know FACT-01, FACT-02, FACT-03."

    def test_an_agent_goes_on_in_its_round(self):
        app = app_of(tool_rounds=2)
        history = [user("Work.")]
        for turn in range(3):
            body = responses(*history, tools=[RESPONSES_TOOL])
            output = call(app, RESPONSES, body).json["output"]
            history += output
            if turn < 2:
                history.append(result(output[0]["call_id"]))
            history = compacted(app, *history)["output"]
        assert output[0]["content"][0]["text"].startswith("Done after 2 tool results")

    def test_padding_makes_the_blob_longer_and_not_the_window(self):
        small, large = app_of(), compaction_app(padding=200_000)
        sizes = []
        for app in (small, large):
            output = compacted(app, *SPOKEN)["output"]
            known(app, *output)
            sizes.append((len(output[-1]["encrypted_content"]), app.state.records[-1].input_tokens))
        assert sizes[1][0] > sizes[0][0] + 200_000
        assert sizes[1][1] == sizes[0][1]


class TestSessions:
    """An agent that compacts whenever it has to, for sixty turns."""

    @pytest.mark.parametrize("boundary", ["keep_users", "drop_all", "keep_all_and_bill"])
    @pytest.mark.parametrize("user_tokens", [0, 500])
    def test_forget_nothing(self, boundary, user_tokens):
        app = compaction_app(boundary=boundary, user_tokens=user_tokens, window=6000)
        history, compactions = [], 0
        more = {"tools": [RESPONSES_TOOL], "reasoning": {"effort": "low"}, "store": False}
        for turn in range(60):
            history.append(user(f"FACT-{turn:02} {'x' * 400}"))
            while True:
                body = responses(*history, **more, include=["reasoning.encrypted_content"])
                whole = call(app, RESPONSES, body).json
                history += whole["output"]
                asked = [item for item in whole["output"] if item["type"] == "function_call"]
                if not asked:
                    break
                history.append(result(asked[0]["call_id"], "x" * 800))
            if whole["usage"]["input_tokens"] > 4000:
                history = compacted(app, *history)["output"]
                compactions += 1
        assert app.state.violations == []
        assert compactions > 5
        facts = set(known(app, *history).removeprefix("I know ").rstrip(".").split(", "))
        assert facts == {f"FACT-{turn:02}" for turn in range(60)}

    @pytest.mark.parametrize("boundary", ["keep_users", "drop_all", "keep_all_and_bill"])
    @pytest.mark.parametrize("prunes", [True, False])
    def test_nor_where_the_provider_compacts_by_itself(self, boundary, prunes):
        app = compaction_app(boundary=boundary, window=100_000)
        history, compactions = [], 0
        for turn in range(60):
            history.append(user(f"FACT-{turn:02} {'x' * 400}"))
            edits = [{"type": "compaction", "compact_threshold": 2000}]
            output = call(app, RESPONSES, responses(*history, context_management=edits)).json["output"]
            history += output
            newest = [at for at, item in enumerate(history) if item.get("type") == "compaction"] if output[1:] else []
            compactions += bool(newest)
            if prunes and newest:
                history = history[newest[-1] :]
        assert app.state.violations == []
        assert compactions > 3
        facts = set(known(app, *history).removeprefix("I know ").rstrip(".").split(", "))
        assert facts == {f"FACT-{turn:02}" for turn in range(60)}


def keyed(key):
    return {"authorization": f"Bearer {key}"}


ORGS = {"a1": "org-a/one", "a2": "org-a/two", "b": "org-b/one"}


class TestOwners:
    @pytest.mark.parametrize("at", [0, 6, 0.5, -3])
    def test_one_changed_character_is_noticed(self, at):
        app = app_of()
        *users, item = compacted(app, *SPOKEN)["output"]
        blob = item["encrypted_content"]
        at = int(len(blob) * at) if isinstance(at, float) else at % len(blob)
        changed = item | {"encrypted_content": blob[:at] + ("A" if blob[at] != "A" else "B") + blob[at + 1 :]}
        for path in (RESPONSES, COMPACT, "/v1/responses/input_tokens"):
            answer = call(app, path, responses(*users, changed, GO))
            assert (answer.status, answer.json["error"]["code"]) == (400, "invalid_encrypted_content")
            assert answer.json["error"]["param"] is None
            assert answer.error == (
                f"The encrypted content for item {item['id']} could not be verified. Reason: Encrypted content could "
                "not be decrypted or parsed."
            )

    def test_without_an_id_it_is_named_by_its_ends(self):
        app = app_of()
        answer = call(app, RESPONSES, responses({"type": "compaction", "encrypted_content": "gAAAAxyRg=="}, GO))
        assert answer.error == "The encrypted content gAAA...Rg== could not be verified."

    def test_an_older_item_is_looked_at_too(self):
        app = app_of()
        output = compacted(app, *SPOKEN)["output"]
        stranger = {"type": "compaction", "encrypted_content": "gAAAAxyz"}
        assert call(app, RESPONSES, responses(stranger, *output, GO)).status == 400

    @pytest.mark.parametrize(
        ("bound_to", "readers"),
        [("key", ["a1"]), ("project", ["a1"]), ("org", ["a1", "a2"]), ("provider", ["a1", "a2", "b"])],
    )
    def test_is_bound_to_its_owner(self, bound_to, readers):
        app = compaction_app(bound_to=bound_to, orgs=ORGS)
        output = call(app, COMPACT, responses(*SPOKEN), keyed("a1")).json["output"]
        read = [key for key in ORGS if call(app, RESPONSES, responses(*output, GO), keyed(key)).status == 200]
        assert read == readers
        assert app.state.records[0].org == "org-a/one"

    @pytest.mark.parametrize(("bound", "status"), [(True, 400), (False, 200)])
    def test_may_be_bound_to_its_model(self, bound, status):
        app = compaction_app(bound_to_model=bound)
        output = compacted(app, *SPOKEN, model="gpt-5.1")["output"]
        assert call(app, RESPONSES, responses(*output, GO, model="gpt-5.4")).status == status

    def test_reasoning_is_bound_too(self):
        app = app_of(orgs=ORGS)
        body = responses(GO, reasoning={"effort": "low"}, include=["reasoning.encrypted_content"], store=False)
        output = call(app, RESPONSES, body, keyed("a1")).json["output"]
        for key, status in (("a1", 200), ("a2", 200), ("b", 400)):
            assert call(app, RESPONSES, responses(GO, *output, GO), keyed(key)).status == status

    def test_each_provider_reads_its_own(self):
        paths = {"openai": "/v1", "azure": "/openai/v1"}
        app = app_of()
        for maker in paths:
            output = call(app, paths[maker] + "/responses/compact", responses(*SPOKEN)).json["output"]
            for reader, prefix in paths.items():
                answer = call(app, prefix + "/responses", responses(*output, GO))
                assert answer.status == (200 if reader == maker else 400)
            codex = call(app, "/backend-api/codex/responses", responses(*output, GO, stream=True, store=False))
            assert codex.json["error"]["code"] == "invalid_encrypted_content"


class TestStoredHistory:
    def test_by_previous_response(self):
        app = app_of()
        first = call(app, RESPONSES, responses(user("FACT-01 is the port."))).json
        whole = call(app, COMPACT, {"model": "m", "previous_response_id": first["id"]}).json
        assert [item["type"] for item in whole["output"]] == ["message", "compaction"]
        assert known(app, *whole["output"]) == "I know FACT-01."

    def test_its_id_is_no_previous_response(self):
        app = app_of()
        whole = compacted(app, *SPOKEN)
        answer = call(app, RESPONSES, responses(GO, previous_response_id=whole["id"]))
        assert answer.json["error"]["code"] == "previous_response_not_found"
        assert answer.json["error"]["param"] == "previous_response_id"

    def test_a_chain_goes_on_over_its_items(self):
        app = app_of()
        first = call(app, RESPONSES, responses(*compacted(app, *SPOKEN)["output"], GO)).json
        assert known(app, previous_response_id=first["id"]) == "I know FACT-01, FACT-02, FACT-03."

    def test_another_organisation_finds_nothing(self):
        app = app_of(orgs=ORGS)
        first = call(app, RESPONSES, responses(GO), keyed("a1")).json
        for path in (RESPONSES, COMPACT):
            answer = call(app, path, {"model": "m", "previous_response_id": first["id"], "input": "x"}, keyed("b"))
            assert answer.json["error"]["code"] == "previous_response_not_found"


class TestScripted:
    @pytest.mark.parametrize(
        ("do", "types"),
        [
            ("empty", []),
            ("no_artifact", ["message"]),
            ("two_artifacts", ["message", "compaction", "compaction"]),
            ("extra_item", ["message", "message", "compaction"]),
            ("text", ["message"]),
        ],
    )
    def test_what_came_of_it(self, do, types):
        app = app_of(script=(Step(do=do, path="compact", text="Sorry."),))
        assert [item["type"] for item in compacted(app, *SPOKEN)["output"]] == types
        assert app.state.records[-1].verdict == ("compacted" if "compaction" in types else "failed: no item")

    def test_a_blob_that_nobody_reads(self):
        app = app_of(script=(Step(do="bad_artifact", on="compaction"),))
        output = compacted(app, *SPOKEN)["output"]
        assert call(app, RESPONSES, responses(*output, GO)).json["error"]["code"] == "invalid_encrypted_content"

    @pytest.mark.parametrize("status", [401, 429, 500, 503])
    def test_errors(self, status):
        app = app_of(script=(Step(do="error", status=status, path="compact", headers={"retry-after": "1"}),))
        answer = call(app, COMPACT, responses(GO))
        assert (answer.status, answer.headers["retry-after"]) == (status, "1")
        compacted(app, GO)

    def test_unavailable(self):
        app = app_of(script=(Step(do="unavailable", on="compaction"),))
        assert call(app, COMPACT, responses(GO)).status == 503

    def test_other_askers_leave_its_steps(self):
        app = app_of(script=(Step(do="error", path="compact"), Step(do="error", on="compaction", status=502)))
        assert call(app, RESPONSES, responses(GO)).status == 200
        assert [call(app, COMPACT, responses(GO)).status for _ in range(3)] == [500, 502, 200]

    def test_takes_its_time(self):
        app = compaction_app(seconds=0.05)
        start = time.perf_counter()
        compacted(app, GO)
        assert time.perf_counter() - start >= 0.05

    def test_usage_of_its_own(self):
        app = app_of(script=(Step(do="answer", path="compact", usage={"input": 7, "output": 3}),))
        assert compacted(app, GO)["usage"]["total_tokens"] == 10


@pytest.mark.parametrize(
    ("how", "status", "start"),
    [
        ("404", 404, b'{"error":{"message":"Invalid URL (POST /v1/responses/compact)"'),
        ("404-text", 404, b"404 page not found"),
        ("404-json", 404, b'{"detail":"Not Found"}'),
        ("405", 405, b'{"detail":"Method Not Allowed"}'),
        ("501", 501, b'{"error":'),
        ("502-html", 502, b"<html>"),
    ],
)
def test_gateways_without_it(how, status, start):
    app = compaction_app(path=how)
    answer = call(app, COMPACT, responses(GO), keyed("any"))
    assert answer.status == status
    assert answer.raw.startswith(start)
    assert app.state.records[-1].outcome == "refused"
    assert app.state.violations == []


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"boundary": "keep"}, "boundary: 'keep' is not one of keep_users,"),
        ({"path": "410"}, "path: '410' is not one of served,"),
        ({"trigger": "maybe"}, "trigger: 'maybe' is not one of served,"),
        ({"bound_to": "team"}, "bound_to: 'team' is not one of key,"),
        ({"user_tokens": -1}, "user_tokens: -1 is less than 0"),
    ],
)
def test_says_what_may_be_chosen(knobs, words):
    with pytest.raises(ValueError) as caught:
        ResponsesCompaction(**knobs)
    assert words in str(caught.value)
