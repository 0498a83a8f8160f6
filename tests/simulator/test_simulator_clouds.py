"""The Messages API behind clouds, behind look-alikes, and what the models API tells of it."""

import json
from base64 import b64decode, b64encode

import pytest
from simulator_calls import KEYS, MESSAGES, MESSAGES_TOOL, Answer, app_of, assistant, call, messages, user

from tidegate.simulator import ContextManagement, Step

MODEL = {"model": "claude-opus-5-5"}
ON_DEMAND, THRESHOLD = "compact-2026-09-04", "compact-2026-01-12"
BEARER = {"authorization": "Bearer any"}
INVOKE = "/model/global.anthropic.claude-opus-5-5-v1:0/invoke"
VERTEX = "/v1/projects/p/locations/global/publishers/anthropic/models/"
SMALL = ContextManagement(least_trigger=100)
EDIT = {"edits": [{"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 300}}]}
LONG = user("FACT-01. " + "x" * 2000)


def bedrock(*entries, betas=(), **more):
    body = {"anthropic_version": "bedrock-2023-05-31", "max_tokens": 2000, "messages": list(entries) or [user("Hi.")]}
    return body | ({"anthropic_beta": list(betas)} if betas else {}) | more


def frames(raw):
    """Amazon's frames as their headers and payload; lengths and all."""
    found = []
    while raw:
        total, headers = int.from_bytes(raw[:4], "big"), int.from_bytes(raw[4:8], "big")
        packed, named = raw[12 : 12 + headers], {}
        while packed:
            size = packed[0]
            length = int.from_bytes(packed[size + 2 : size + 4], "big")
            named[packed[1 : size + 1].decode()] = packed[size + 4 : size + 4 + length].decode()
            packed = packed[size + 4 + length :]
        found.append((named, json.loads(raw[12 + headers : total - 4])))
        raw = raw[total:]
    return found


class TestBedrock:
    @pytest.fixture
    def app(self):
        return app_of(window=3000, tool_rounds=0, context=SMALL, profile="bedrock")

    def test_model_and_betas_are_not_where_they_were(self, app):
        answer = call(app, INVOKE, bedrock(LONG, betas=[THRESHOLD], context_management=EDIT), BEARER).json
        assert answer["model"] == "global.anthropic.claude-opus-5-5-v1:0"
        assert answer["content"][0]["type"] == "compaction"
        assert [entry["type"] for entry in answer["usage"]["iterations"]] == ["compaction", "message"]

    def test_iterations_only_where_something_was_compacted(self, app):
        answer = call(app, INVOKE, bedrock(betas=[THRESHOLD], context_management=EDIT), BEARER).json
        assert "iterations" not in answer["usage"]

    def test_on_demand_by_one_page_and_not_by_the_other(self, app):
        body = bedrock(betas=[ON_DEMAND], compaction={"type": "summarize"})
        assert call(app, INVOKE, body, BEARER).status == 400
        able = ContextManagement(betas=(ON_DEMAND, THRESHOLD))
        answer = call(app_of(profile="bedrock", context=able), INVOKE, body, BEARER)
        assert answer.json["stop_reason"] == "compaction"

    def test_over_the_window(self, app):
        answer = call(app, INVOKE, bedrock(user("x" * 40_000)), BEARER)
        assert answer.status == 400
        assert answer.json["__type"] == "ValidationException"
        words = "The model returned the following errors: prompt is too long: "
        assert answer.json["message"].startswith(words)

    def test_other_refusals(self, app):
        use = {"type": "tool_use", "id": "a", "name": "read_file", "input": {}}
        result = user([{"type": "tool_result", "tool_use_id": "a", "content": "done"}])
        for body, words in (
            (bedrock(assistant("x")), 'first message must use the "user" role'),
            (bedrock(anthropic_version=None), "anthropic_version: Field required"),
            (bedrock(user("Go."), assistant([use]), result), "The toolConfig field must be defined when using"),
        ):
            assert words in call(app, INVOKE, body, BEARER).json["message"]
        fine = bedrock(user("Go."), assistant([use]), result, tools=[MESSAGES_TOOL])
        assert call(app, INVOKE, fine, BEARER).status == 200
        assert call(app, INVOKE, bedrock(), {}).status == 403

    def test_streamed_in_amazons_frames(self, app):
        answer = call(app, INVOKE + "-with-response-stream", bedrock(user("Hello.")), BEARER)
        assert answer.headers["content-type"] == "application/vnd.amazon.eventstream"
        events = [json.loads(b64decode(payload["bytes"])) for _, payload in frames(answer.raw)]
        assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
        assert "".join(event["delta"].get("text", "") for event in events if "delta" in event) == "You said: Hello."

    def test_an_error_in_the_stream_is_an_exception(self, app):
        app.state.script.push(Step(do="error", status=529, in_stream=True))
        answer = call(app, INVOKE + "-with-response-stream", bedrock(), BEARER)
        headers, payload = frames(answer.raw)[-1]
        assert (headers[":message-type"], payload) == ("exception", {"message": "Simulated error 529."})

    @pytest.mark.parametrize("call_", ["converse", "converse-stream"])
    @pytest.mark.parametrize("more", [{"anthropic_beta": [THRESHOLD]}, {"context_management": EDIT}])
    def test_converse_knows_no_compaction(self, app, call_, more):
        body = {"messages": [], "additionalModelRequestFields": more}
        answer = call(app, f"/model/claude/{call_}", body, BEARER)
        assert answer.status == 400
        assert "not currently supported on the Converse and ConverseStream APIs" in answer.json["message"]
        assert call(app, f"/model/claude/{call_}", {"messages": []}, BEARER).status == 404

    def test_counting(self, app):
        inner = b64encode(json.dumps(bedrock(user("Hello."))).encode()).decode()
        path = "/model/anthropic.claude-opus-5-5/count-tokens"
        counted = call(app, path, {"input": {"invokeModel": {"body": inner}}}, BEARER).json
        spent = call(app, INVOKE, bedrock(user("Hello.")), BEARER).json["usage"]["input_tokens"]
        assert counted == {"inputTokens": spent}
        assert call(app, path, {"input": {"invokeModel": {"body": "?"}}}, BEARER).status == 400


class TestVertexAndFoundry:
    def test_vertex(self):
        app = app_of(window=3000, context=SMALL)
        body = bedrock(LONG, anthropic_version="vertex-2023-10-16")
        headers = BEARER | {"anthropic-beta": ON_DEMAND}
        path = VERTEX + "claude-opus-5-5:rawPredict"
        answer = call(app, path, body | {"compaction": {"type": "summarize"}}, headers).json
        assert (answer["model"], answer["stop_reason"]) == ("claude-opus-5-5", "compaction")
        back = body | {"messages": [assistant(answer["content"]), user("What do you know?")]}
        streamed = call(app, VERTEX + "claude-opus-5-5:streamRawPredict", back | {"stream": True}, headers)
        assert "".join(event.get("delta", {}).get("text", "") for event in streamed.events) == "I know FACT-01."
        assert "`compaction` is not one of" in call(app, path, back, BEARER).error
        counted = call(app, VERTEX + "count-tokens:rawPredict", {**MODEL, **without(back, "max_tokens")}, headers)
        assert counted.json["input_tokens"] == app.state.records[-3].input_tokens

    def test_foundry(self):
        app = app_of(window=3000)
        headers = {"api-key": "k", "anthropic-version": "2023-06-01", "anthropic-beta": ON_DEMAND}
        body = messages(LONG, **MODEL, compaction={"type": "summarize"}, max_tokens=900)
        assert call(app, "/anthropic/v1/messages", body, headers).json["stop_reason"] == "compaction"

    @pytest.mark.parametrize("path", [INVOKE, VERTEX + "m:rawPredict", "/anthropic/v1/messages"])
    def test_another_providers_paths_are_not_there(self, path):
        assert call(app_of(profile="anthropic"), path, bedrock(), KEYS).status == 404


def without(body, name):
    return {key: value for key, value in body.items() if key != name}


class TestALookAlike:
    """An endpoint of another maker that speaks Messages: what it does not know it ignores."""

    @pytest.fixture
    def app(self):
        return app_of(profile="compatible", window=3000, tool_rounds=0)

    def ask(self, app, *entries, **more) -> Answer:
        headers = KEYS | {"anthropic-beta": f"{ON_DEMAND},{THRESHOLD}"}
        return call(app, MESSAGES, messages(*entries, model="other-1") | more, headers)

    def test_a_request_for_a_compaction_is_answered_as_any(self, app):
        for more in ({"compaction": {"type": "summarize"}}, {"context_management": EDIT}):
            answer = self.ask(app, LONG, **more)
            assert answer.status == 200
            assert [block["type"] for block in answer.json["content"]] == ["text"]
            assert not {"iterations", "context_management"} & {*answer.json, *answer.json["usage"]}

    def test_and_a_block_is_not_seen(self, app):
        block = {"type": "compaction", "content": "FACT-01.", "signature": "x"}
        for first in (assistant([block]), user([block, {"type": "text", "text": "FACT-02."}])):
            answer = self.ask(app, user("Go."), first, user("What do you know?"))
            assert answer.status == 200
            assert "FACT-01" not in answer.json["content"][0]["text"]
        assert app.state.facts == ("FACT-02",)


class TestModels:
    def capabilities(self, name, betas="", **settings):
        headers = KEYS | ({"anthropic-beta": betas} if betas else {})
        return call(app_of(**settings), f"/v1/models/{name}", None, headers, "GET").json["capabilities"]

    @pytest.mark.parametrize(
        ("name", "able"),
        [
            ("claude-fable-5-1", True),
            ("claude-mythos-preview", True),
            ("claude-opus-5-5", True),
            ("claude-opus-4-8", True),
            ("claude-sonnet-4-6", True),
            ("claude-haiku-5-5", True),
            ("claude-haiku-5", False),
            ("claude-sonnet-4-5-20250929", False),
            ("claude-3-7-sonnet-20250219", False),
        ],
    )
    def test_which_compact(self, name, able):
        told = self.capabilities(name, ON_DEMAND)
        assert told["compaction"] == {"supported": able, "summarize": {"supported": able}}
        assert told["context_management"]["compact_20260112"] == {"supported": able}
        assert told["context_management"]["clear_tool_uses_20250919"] == {"supported": True}

    def test_on_demand_is_told_to_those_who_ask_with_its_header(self):
        assert "compaction" not in self.capabilities("claude-opus-5-5")
        assert "compaction" not in self.capabilities("claude-opus-5-5", THRESHOLD)

    def test_as_the_settings_have_it(self):
        only = ContextManagement(model_betas={"claude-opus-5-5": (THRESHOLD,)})
        told = self.capabilities("claude-opus-5-5", ON_DEMAND, context=only)
        assert told["compaction"]["supported"] is False
        assert told["context_management"]["compact_20260112"]["supported"] is True
        assert told["context_management"]["clear_thinking_20251015"]["supported"] is False
        nothing = self.capabilities("claude-opus-5-5", ON_DEMAND, context=ContextManagement(betas=()))
        assert nothing["context_management"]["supported"] is False
        assert "compaction" not in nothing


def test_settings_name_what_they_do_not_know():
    with pytest.raises(ValueError, match="betas: 'compact' is not one of compact-2026-01-12, "):
        ContextManagement(betas=("compact",))
    with pytest.raises(ValueError, match="least_trigger: 0 is less than 1"):
        ContextManagement(least_trigger=0)
