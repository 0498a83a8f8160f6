"""Compaction inside `/responses`: triggers and `context_management`, on OpenAI, Codex's backend, Azure and xAI."""

import pytest
from simulator_calls import RESPONSES, RESPONSES_TOOL, app_of, assistant, call, responses, text_of, user
from test_simulator_compact import COMPACT, GO, ORGS, SPOKEN, asking, compaction_app, keyed, known, result

from tidegate.simulator import Step

TRIGGER = {"type": "compaction_trigger"}
CODEX = "/backend-api/codex/responses"


def triggered(app, *items, path=RESPONSES, **more):
    answer = call(app, path, responses(*items, TRIGGER, stream=True, store=False, **more))
    assert answer.status == 200, answer.raw
    return answer.events


def done(events):
    return [event["item"] for event in events if event["type"] == "response.output_item.done"]


class TestTrigger:
    def test_events(self):
        events = triggered(app_of(), *SPOKEN)
        assert [event["type"] for event in events] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.compaction.compacting",
            "response.output_item.done",
            "response.completed",
        ]
        assert [event["sequence_number"] for event in events] == list(range(6))
        added, compacting, finished = events[2:5]
        assert set(compacting) == {"type", "sequence_number", "item_id", "output_index"}
        assert added["item"]["id"] == compacting["item_id"] == finished["item"]["id"]
        assert events[-1]["response"]["output"] == [finished["item"]]

    def test_the_announced_blob_is_another_and_false(self):
        app = app_of()
        events = triggered(app, *SPOKEN)
        first, last = events[2]["item"], events[4]["item"]
        assert first["encrypted_content"] != last["encrypted_content"]
        assert call(app, RESPONSES, responses(first, GO)).json["error"]["code"] == "invalid_encrypted_content"
        assert call(app, RESPONSES, responses(last, GO)).status == 200

    def test_the_client_puts_the_users_back(self):
        app = app_of()
        (item,) = done(triggered(app, *SPOKEN))
        assert known(app, item) == "I know FACT-02, FACT-03."
        assert known(app, SPOKEN[0], item) == "I know FACT-01, FACT-02, FACT-03."

    def test_whole(self):
        app = app_of()
        whole = call(app, RESPONSES, responses(*SPOKEN, TRIGGER)).json
        assert [item["type"] for item in whole["output"]] == ["compaction"]
        assert known(app, previous_response_id=whole["id"]) == "I know FACT-01, FACT-02, FACT-03."

    def test_on_a_stored_history(self):
        app = app_of()
        first = call(app, RESPONSES, responses(user("FACT-01 is the port."), assistant("FACT-02"), GO)).json
        whole = call(app, RESPONSES, responses(TRIGGER, previous_response_id=first["id"])).json
        assert known(app, whole["output"][0]) == "I know FACT-02."

    def test_calls_must_be_answered_first(self):
        app = app_of()
        answer = call(app, RESPONSES, responses(GO, asking("a"), TRIGGER, stream=True))
        assert "No tool output found" in answer.error

    def test_over_the_window_it_is_refused(self):
        app = app_of(window=500)
        answer = call(app, RESPONSES, responses(user("x" * 4000), TRIGGER, stream=True))
        assert answer.json["error"]["code"] == "context_length_exceeded"

    def test_is_a_compaction_and_no_turn(self):
        app = app_of()
        triggered(app, *SPOKEN)
        (record,) = app.state.compactions()
        assert (record.verdict, record.path, app.state.main()) == ("compacted", RESPONSES, [])

    def test_usage_bills_the_summary(self):
        usage = triggered(app_of(), *SPOKEN)[-1]["response"]["usage"]
        assert usage["output_tokens"] > 10

    @pytest.mark.parametrize(
        ("step", "types"),
        [
            (Step(do="no_artifact", on="compaction"), ["message"]),
            (Step(do="two_artifacts", on="compaction"), ["compaction", "compaction"]),
            (Step(do="extra_item", on="compaction"), ["message", "compaction"]),
            (Step(do="empty", on="compaction"), []),
            (Step(do="text", on="compaction", text="Sorry."), ["message"]),
        ],
        ids=lambda value: getattr(value, "do", None),
    )
    def test_what_the_script_makes_of_it(self, step, types):
        app = app_of(script=(step,))
        assert [item["type"] for item in done(triggered(app, *SPOKEN))] == types

    def test_a_message_beside_it(self):
        app = compaction_app(extra_message=True)
        assert [item["type"] for item in done(triggered(app, *SPOKEN))] == ["message", "compaction"]

    def test_an_error_in_its_stream(self):
        step = Step(do="error", on="compaction", in_stream=True, event="response.failed", after=3, status=500)
        events = triggered(app_of(script=(step,)), *SPOKEN)
        assert [event["type"] for event in events[2:]] == ["response.output_item.added", "response.failed"]

    def test_ignored_the_model_just_answers(self):
        app = compaction_app(trigger="ignored")
        (item,) = done(triggered(app, *SPOKEN))
        assert item["type"] == "message"
        assert len(app.state.main()) == 1

    def test_refused_it_is_an_unknown_type(self):
        answer = call(compaction_app(trigger="refused"), RESPONSES, responses(GO, TRIGGER))
        assert "Invalid value: 'compaction_trigger'." in answer.error

    def test_counted_it_is_nothing(self):
        app = app_of()
        sizes = [
            call(app, "/v1/responses/input_tokens", responses(*items)).json["input_tokens"]
            for items in ([GO], [GO, TRIGGER])
        ]
        assert sizes[0] == sizes[1]


def managing(threshold=1000, **more):
    return {"context_management": [{"type": "compaction", "compact_threshold": threshold}], **more}


class TestInBand:
    LONG = user("FACT-01 " + "x" * 4000)
    SHORT = user("FACT-01 " + "x" * 3300)

    def test_first_where_the_input_reaches_the_threshold(self):
        app = app_of()
        whole = call(app, RESPONSES, responses(self.LONG, **managing())).json
        assert [item["type"] for item in whole["output"]] == ["compaction", "message"]
        record = app.state.main()[0]
        assert record.verdict == "compacted"

    def test_last_where_the_answer_does(self):
        app = app_of(answer_tokens=300)
        whole = call(app, RESPONSES, responses(self.SHORT, **managing())).json
        assert [item["type"] for item in whole["output"]] == ["message", "compaction"]
        assert whole["usage"]["output_tokens"] > 300

    def test_not_at_all_below(self):
        app = app_of()
        whole = call(app, RESPONSES, responses(self.SHORT, **managing())).json
        assert [item["type"] for item in whole["output"]] == ["message"]

    def test_without_a_threshold_at_four_fifths_of_the_window(self):
        for window, types in ((2000, ["message"]), (1200, ["compaction", "message"])):
            body = responses(self.LONG, context_management=[{"type": "compaction"}])
            output = call(app_of(window=window), RESPONSES, body).json["output"]
            assert [item["type"] for item in output] == types

    def test_everything_before_it_may_go_or_stay(self):
        app = app_of()
        output = call(app, RESPONSES, responses(self.LONG, **managing())).json["output"]
        sizes = []
        for before in ([], [self.LONG]):
            assert known(app, *before, *output) == "I know FACT-01."
            sizes.append(app.state.records[-1].input_tokens)
        assert sizes[0] < 300 < 1000 < sizes[1]

    def test_other_items_before_it_cost_nothing(self):
        app = app_of()
        history = [GO, asking("a"), result("a", "FACT-01 " + "x" * 4000)]
        output = call(app, RESPONSES, responses(*history, **managing())).json["output"]
        assert known(app, *history, *output) == "I know FACT-01."
        assert app.state.records[-1].input_tokens < 300

    def test_a_call_made_beside_it_stays_open(self):
        app = app_of(tool_rounds=1)
        body = responses(self.LONG, tools=[RESPONSES_TOOL], **managing())
        item, asked = call(app, RESPONSES, body).json["output"]
        again = responses(item, asked, result(asked["call_id"]), tools=[RESPONSES_TOOL])
        answer = call(app, RESPONSES, again)
        assert text_of("responses", answer.json).startswith("Done after 1 tool results")

    def test_with_a_stored_history(self):
        app = app_of()
        first = call(app, RESPONSES, responses(self.LONG, **managing())).json
        assert known(app, previous_response_id=first["id"], **managing()) == "I know FACT-01."

    def test_streamed(self):
        app = app_of()
        events = call(app, RESPONSES, responses(self.LONG, stream=True, **managing())).events
        assert "response.compaction.compacting" not in {event["type"] for event in events}
        added = next(event["item"] for event in events if event["type"] == "response.output_item.added")
        finished, message = done(events)
        assert (added["id"], finished["type"], message["type"]) == (finished["id"], "compaction", "message")
        assert added["encrypted_content"] != finished["encrypted_content"]
        assert call(app, RESPONSES, responses(finished, message, GO)).status == 200
        assert call(app, RESPONSES, responses(added, message, GO)).status == 400

    @pytest.mark.parametrize(("do", "types"), [("no_artifact", 0), ("two_artifacts", 2), ("bad_artifact", 1)])
    def test_what_the_script_makes_of_it(self, do, types):
        app = app_of(script=(Step(do=do),))
        output = call(app, RESPONSES, responses(self.LONG, **managing())).json["output"]
        assert sum(item["type"] == "compaction" for item in output) == types

    @pytest.mark.parametrize("profile", ["xai", "deepseek", "vllm", "openrouter"])
    def test_ignored(self, profile):
        whole = call(app_of(profile=profile), RESPONSES, responses(self.LONG, **managing(1))).json
        assert [item["type"] for item in whole["output"]] == ["message"]

    def test_refused(self):
        answer = call(compaction_app(in_band="refused"), RESPONSES, responses(GO, **managing()))
        assert answer.error == "Unknown parameter: 'context_management'."


class TestCodex:
    @pytest.mark.parametrize(
        ("more", "detail"),
        [
            ({"stream": True}, "Store must be set to false"),
            ({"stream": True, "store": True}, "Store must be set to false"),
            ({"store": False}, "Stream must be set to true"),
        ],
    )
    def test_streams_and_stores_nothing(self, more, detail):
        answer = call(app_of(), CODEX, responses(GO, **more))
        assert (answer.status, answer.json) == (400, {"detail": detail})

    def test_its_last_event_repeats_no_output(self):
        events = triggered(app_of(), *SPOKEN, path=CODEX)
        assert events[-1]["type"] == "response.completed"
        assert events[-1]["response"]["output"] == []
        assert [item["type"] for item in done(events)] == ["compaction"]

    @pytest.mark.parametrize("alias", ["compaction", "compaction_summary", "context_compaction"])
    def test_items_by_other_names(self, alias):
        app = app_of()
        (item,) = done(triggered(app, *SPOKEN, path=CODEX))
        body = responses(SPOKEN[0], item | {"type": alias}, user("What do you know?"), stream=True, store=False)
        events = call(app, CODEX, body).events
        assert done(events)[0]["content"][0]["text"] == "I know FACT-01, FACT-02, FACT-03."

    @pytest.mark.parametrize("path", ["/compact", "/input_tokens", "/resp_1"])
    def test_nothing_else_is_there(self, path):
        app = app_of()
        answer = call(app, CODEX + path, responses(GO))
        assert (answer.status, answer.json) == (404, {"detail": "Not Found"})
        assert app.state.violations == []

    @pytest.mark.parametrize(
        ("path", "status"), [(CODEX, 200), ("/responses", 200), (RESPONSES, 404), ("/chat/completions", 404)]
    )
    def test_named_it_serves_one_path_only(self, path, status):
        answer = call(app_of(profile="codex"), path, responses(GO, stream=True, store=False))
        assert answer.status == status


class TestAzure:
    PATH = "/openai/v1/responses"

    def test_under_its_own_prefix_with_its_own_key(self):
        app = app_of(profile="azure", keys=frozenset({"azure-key"}))
        key = {"api-key": "azure-key"}
        output = call(app, self.PATH + "/compact", responses(*SPOKEN), key).json["output"]
        answer = call(app, self.PATH, responses(*output, GO), key)
        assert answer.status == 200
        assert call(app, self.PATH, responses(GO), {"api-key": "other"}).json["error"]["code"] == "401"

    @pytest.mark.parametrize("path", ["/v1/responses", "/openai/deployments/x/responses", "/responses"])
    def test_nothing_is_elsewhere(self, path):
        answer = call(app_of(profile="azure"), path, responses(GO))
        assert (answer.status, answer.json["error"]) == (404, {"code": "404", "message": "Resource not found"})

    def test_words_an_overflow_its_own_way(self):
        app = app_of(profile="azure", window=500)
        answer = call(app, self.PATH + "/compact", responses(user("x" * 4000)))
        size = app.state.records[-1].input_tokens
        assert answer.json["error"]["message"] == (
            f"Input tokens exceed the configured limit of 500 tokens. Your messages resulted in {size} tokens. Please "
            "reduce the length of the messages."
        )

    def test_a_trigger_is_not_known_to_work(self):
        assert call(app_of(), self.PATH, responses(GO, TRIGGER)).status == 400


class TestXai:
    def app(self, **knobs):
        return compaction_app(profile="xai", **knobs)

    def test_one_item_replaces_all(self):
        app = self.app()
        system = {"role": "system", "content": "FACT-04 is a rule."}
        whole = call(app, COMPACT, {"model": "grok-4.5", "input": [system, *SPOKEN]}).json
        (item,) = whole["output"]
        assert whole["id"] == item["id"]
        assert (whole["model"], whole["object"]) == ("grok-4.5", "response.compaction")
        assert whole["usage"]["dropped_message_count"] == 5
        assert known(app, item) == "I know FACT-04, FACT-01, FACT-02, FACT-03."
        again = call(app, COMPACT, {"model": "grok-4.5", "input": [item, user("FACT-05")]}).json
        for before in ([], [user("FACT-09")]):
            assert known(app, *before, *again["output"]) == "I know FACT-04, FACT-01, FACT-02, FACT-03, FACT-05."

    @pytest.mark.parametrize(
        ("body", "status", "body_out"),
        [
            ({"model": "m", "input": []}, 400, {"code": "invalid-argument", "error": "The input must not be empty."}),
            (
                {"model": "m", "input": [{"type": "compaction", "encrypted_content": "x"}, GO]},
                400,
                {
                    "code": "invalid-argument",
                    "error": "Could not decode the compaction blob. Ensure it is unmodified from the compact response.",
                },
            ),
        ],
    )
    def test_errors_are_flat(self, body, status, body_out):
        answer = call(self.app(), COMPACT, body)
        assert (answer.status, answer.json) == (status, body_out)

    @pytest.mark.parametrize(("content", "status"), [(None, 400), ([], 200), ("absent", 200)])
    def test_reasoning_without_content_is_read_as_a_blob(self, content, status):
        reasoning = {"type": "reasoning", "summary": []} | ({} if content == "absent" else {"content": content})
        answer = call(self.app(), RESPONSES, responses(GO, reasoning, assistant("x"), GO))
        assert answer.status == status
        if status == 400:
            assert answer.error.startswith("Could not decode the compaction blob.")

    @pytest.mark.parametrize(("refuses", "status"), [(False, 200), (True, 422)])
    def test_other_fields(self, refuses, status):
        body = {"model": "m", "input": "Hello.", "instructions": "x"}
        assert call(self.app(refuse_extra_fields=refuses), COMPACT, body).status == status

    def test_some_have_no_quota(self):
        app = self.app(no_quota=frozenset({"org-b"}), orgs=ORGS)
        body = {"model": "m", "input": "Hello."}
        assert call(app, COMPACT, body, keyed("a1")).status == 200
        answer = call(app, COMPACT, body, keyed("b"))
        assert answer.status == 403
        assert answer.json == {"code": "permission_denied", "error": "no quota for remote context compaction"}
        assert call(app, RESPONSES, body, keyed("b")).status == 200

    def test_does_not_rescue(self):
        answer = call(self.app(window=500), COMPACT, {"model": "m", "input": "x" * 4000})
        assert answer.error.startswith("This model's maximum prompt length is 500 but the request contains")


class TestConversations:
    def test_grow_with_each_turn_and_compact_on_their_own(self):
        app = app_of()
        made = call(app, "/v1/conversations", {"items": [user("FACT-01 is the port.")]}).json
        for words in ("FACT-02 " + "x" * 4000, "What do you know?"):
            whole = call(app, RESPONSES, responses(user(words), conversation=made["id"], **managing())).json
            assert whole["conversation"] == {"id": made["id"]}
        assert text_of("responses", whole) == "I know FACT-01, FACT-02."
        kinds = [item["type"] for item in call(app, f"/v1/conversations/{made['id']}/items", method="GET").json["data"]]
        assert kinds == ["message", "message", "compaction", "message", "message", "compaction", "message"]

    def test_are_their_makers_own(self):
        app = app_of(orgs=ORGS)
        made = call(app, "/v1/conversations", {}, keyed("a1")).json
        for key, status in (("a1", 200), ("b", 404)):
            assert call(app, RESPONSES, responses(GO, conversation=made["id"]), keyed(key)).status == status
            assert call(app, f"/v1/conversations/{made['id']}", headers=keyed(key), method="GET").status == status

    def test_responses_can_be_looked_up_and_deleted(self):
        app = app_of()
        whole = call(app, RESPONSES, responses(GO)).json
        path = f"/v1/responses/{whole['id']}"
        assert call(app, path, method="GET").json == whole
        assert call(app, path, method="DELETE").json["deleted"] is True
        assert call(app, path, method="GET").status == 404
        assert call(app, RESPONSES, responses(GO, previous_response_id=whole["id"])).status == 400


def test_the_window_can_be_looked_at():
    app = app_of()
    output = call(app, COMPACT, responses(*SPOKEN)).json["output"]
    known(app, *output)
    shown = call(app, "/__sim/window/2", method="GET").json
    assert (shown["verdict"], [item["type"] for item in shown["window"]]) == (
        "replayed",
        ["message", "compaction", "message"],
    )
    assert call(app, "/__sim/window/9", method="GET").status == 404
