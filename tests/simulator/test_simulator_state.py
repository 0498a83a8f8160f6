"""What the simulator remembers and tells: records, facts, counters, the admin routes, paths and keys."""

import asyncio

import pytest
from simulator_calls import (
    BODIES,
    CHAT,
    CHAT_TOOL,
    KEYS,
    MESSAGES,
    PATHS,
    app_of,
    assistant,
    call,
    chat,
    input_tokens,
    messages,
    plain,
    user,
)

from tidegate.simulator import Step


class TestRecords:
    def test_say_what_came_and_what_was_answered(self):
        app = app_of()
        call(app, CHAT, chat(user("FACT-07 and FACT-08, FACT-07"), stream=True, tools=[CHAT_TOOL]))
        (record,) = app.state.records
        assert (record.number, record.path, record.dialect, record.kind) == (1, CHAT, "chat", "main")
        assert (record.stream, record.model, record.status, record.outcome) == (True, "gpt-4.1", 200, "answered")
        assert record.facts == app.state.facts == ("FACT-07", "FACT-08")
        assert record.json()["messages"][0]["content"].startswith("FACT-07")
        assert record.input_tokens > record.output_tokens > 0

    def test_keep_names_of_headers_and_no_values(self):
        app = app_of()
        call(app, CHAT, chat(), {"authorization": "Bearer sk-secret-value", "x-Session": "abc"})
        (record,) = app.state.records
        assert record.headers == ("authorization", "x-session")
        assert "sk-secret-value" not in repr(record)
        assert "sk-secret-value" not in call(app, "/__sim/state", method="GET").raw.decode()

    def test_facts_are_those_of_system_text_and_results_too(self):
        app = app_of()
        result = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "FACT-03"}]}
        use = {"type": "tool_use", "id": "a", "name": "f", "input": {"note": "FACT-02"}}
        call(app, MESSAGES, messages(user("Go."), assistant([use]), user([result]), system="FACT-01"))
        assert app.state.facts == ("FACT-01", "FACT-02", "FACT-03")

    def test_a_refused_request_shows_no_facts(self):
        app = app_of(window=10)
        call(app, CHAT, chat(user("FACT-01 " * 40)))
        assert (app.state.facts, app.state.records[0].facts) == ((), ())

    def test_the_newest_are_kept(self):
        app = app_of(keep_requests=3)
        for _ in range(5):
            call(app, CHAT, chat())
        assert [record.number for record in app.state.records] == [3, 4, 5]
        assert app.state.counters()["requests"] == 5

    def test_bodies_are_let_go_for_room(self):
        app = app_of(keep_bytes=3000)
        for _ in range(4):
            call(app, CHAT, chat(user("x" * 1000)))
        assert [bool(record.body) for record in app.state.records] == [False, False, True, True]

    def test_by_kind(self):
        app = app_of(window=1000, script=(Step(do="error", path="responses"),))
        call(app, CHAT, chat())
        call(app, CHAT, chat(user("<transcript>x</transcript>")))
        call(app, CHAT, chat(user("x" * 9000)))
        call(app, CHAT, {"model": "m"})
        call(app, PATHS["responses"], plain("responses", "Hello."))
        call(app, "/v1/models", method="GET")
        counters = app.state.counters()
        names = ("requests", "main", "summaries", "overflows", "refused", "faulted", "violations")
        assert [counters[name] for name in names] == [6, 1, 1, 1, 1, 1, 1]
        assert len(app.state.main("chat")) == 1
        assert app.state.main("messages") == []
        assert len(app.state.overflows("chat")) == 1

    def test_reset_forgets(self):
        app = app_of()
        first = call(app, PATHS["responses"], plain("responses", "Hello.")).json
        app.state.script.push(Step(do="error"))
        app.state.reset()
        assert (app.state.records, app.state.violations, len(app.state.script)) == ([], [], 0)
        again = plain("responses", "Hello.", previous_response_id=first["id"])
        assert call(app, PATHS["responses"], again).status == 400


class TestAdmin:
    def test_state(self):
        app = app_of()
        call(app, CHAT, chat(user("FACT-01")))
        call(app, CHAT, {"model": "m"})
        state = call(app, "/__sim/state", method="GET").json
        assert state["counters"]["requests"] == 2
        assert state["facts"] == ["FACT-01"]
        assert state["violations"][0]["rule"] == "required"
        assert [entry["outcome"] for entry in state["requests"]] == ["answered", "refused"]
        assert "body" not in state["requests"][0]

    def test_script_and_reset(self):
        app = app_of()
        assert call(app, "/__sim/script", [{"do": "error", "status": 503}]).json == {"script_left": 1}
        assert call(app, CHAT, chat()).status == 503
        assert call(app, "/__sim/script", {"do": "boom"}).status == 400
        assert call(app, "/__sim/script", b"{").status == 400
        assert call(app, "/__sim/reset").json == {"reset": True}
        assert call(app, "/__sim/state", method="GET").json["requests"] == []
        assert call(app, "/__sim/other").status == 404

    def test_only_from_this_machine(self):
        app = app_of()
        sent = []

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/__sim/state", "client": ("10.0.0.9", 1), "headers": []}
        asyncio.run(app(scope, None, send))
        assert sent[0]["status"] == 404


class TestPaths:
    @pytest.mark.parametrize("dialect", PATHS)
    def test_with_and_without_v1(self, dialect):
        for path in (PATHS[dialect], PATHS[dialect].removeprefix("/v1"), PATHS[dialect] + "/"):
            assert call(app_of(), path, plain(dialect, "Hello.")).status == 200

    @pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses/compactions", "/v2/chat/completions", "/"])
    def test_others_are_not_found(self, path):
        answer = call(app_of(), path, {}, {"authorization": "Bearer k"})
        assert answer.status == 404
        assert answer.json["error"]["message"] == f"Invalid URL (POST {path})"

    def test_in_the_shape_of_who_asks(self):
        answer = call(app_of(), "/v1/threads", {})
        assert (answer.status, answer.json["type"], answer.json["error"]["type"]) == (404, "error", "not_found_error")

    def test_other_methods(self):
        answer = call(app_of(), CHAT, method="GET")
        assert (answer.status, answer.headers["allow"]) == (405, "POST")

    def test_a_websocket_is_sent_to_post_at_once(self):
        headers = KEYS | {"upgrade": "websocket", "connection": "upgrade"}
        assert call(app_of(), "/v1/responses", headers=headers, method="GET").status == 426

    @pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff", b"[" * 100_000])
    @pytest.mark.parametrize("dialect", PATHS)
    def test_no_json_object(self, dialect, body):
        app = app_of()
        assert call(app, PATHS[dialect], body).status == 400
        assert app.state.violations[0].rule == "json"

    def test_too_large(self):
        answer = call(app_of(max_body=100), MESSAGES, messages(user("x" * 200)))
        assert (answer.status, answer.json["error"]["type"]) == (413, "request_too_large")

    def test_lone_surrogates_are_json(self):
        app = app_of()
        body = b'{"model":"m","messages":[{"role":"user","content":"FACT-01 cut \\ud83d"}]}'
        assert call(app, CHAT, body).status == 200
        assert call(app, CHAT, body.replace(b"}]}", b'}],"stream":true}')).status == 200
        assert app.state.facts == ("FACT-01",)


@pytest.mark.parametrize(
    ("profile", "dialect", "status"),
    [
        ("auto", "chat", 401),
        ("auto", "messages", 401),
        ("xai", "chat", 400),
        ("mistral", "chat", 401),
        ("openrouter", "chat", 401),
        ("ollama", "chat", 200),
        ("llamacpp", "messages", 200),
        ("vllm", "responses", 200),
    ],
)
class TestKeys:
    def test_missing(self, profile, dialect, status):
        headers = {"anthropic-version": "2023-06-01"}
        app = app_of(profile=profile)
        assert call(app, PATHS[dialect], plain(dialect, "Hello."), headers).status == status
        assert app.state.violations == []

    def test_wrong_and_right(self, profile, dialect, status):
        app = app_of(profile=profile, keys=frozenset({"right"}))
        for key, expected in (("wrong", status if status != 200 else 401), ("right", 200)):
            headers = {"anthropic-version": "2023-06-01", "authorization": f"Bearer {key}"}
            answer = call(app, PATHS[dialect], plain(dialect, "Hello."), headers)
            assert answer.status == expected
            assert "wrong" not in answer.raw.decode()


class TestModels:
    @pytest.mark.parametrize(
        ("profile", "field"),
        [("auto", "context_window"), ("vllm", "max_model_len"), ("openrouter", "context_length")],
    )
    def test_tell_the_window(self, profile, field):
        app = app_of(window=4000, profile=profile, models=("a", "b"))
        listed = call(app, "/v1/models", headers={"authorization": "Bearer k"}, method="GET").json["data"]
        assert [(entry["id"], entry[field]) for entry in listed] == [("a", 4000), ("b", 4000)]

    def test_llamacpp_tells_it_in_meta(self):
        listed = call(app_of(window=4000, profile="llamacpp"), "/models", method="GET", headers={}).json["data"]
        assert listed[0]["meta"]["n_ctx"] == 4000


@pytest.mark.parametrize("dialect", PATHS)
class TestPromptCache:
    def test_the_known_beginning_is_reported_as_cached(self, dialect):
        app = app_of(prompt_cache=True)
        first = [user("x" * 2000)]
        more = [*first, assistant("Fine."), user("And now?")]
        sizes = []
        for history in (first, more, [user("y" * 2000), *more[1:]]):
            answer = call(app, PATHS[dialect], BODIES[dialect](*history)).json
            sizes.append((input_tokens(dialect, answer), app.state.records[-1].cached_tokens))
        assert sizes[0][1] == 0
        assert sizes[1][1] == sizes[0][0]
        assert sizes[2] == (sizes[1][0], 0)


def test_cache_markers_do_not_break_the_cache():
    app = app_of(prompt_cache=True)
    marked = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
    for block in (marked, {"type": "text", "text": "x"}):
        call(app, MESSAGES, messages(user([block])))
    assert app.state.records[-1].cached_tokens == app.state.records[-1].input_tokens


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"max_tokens": 77}, True),
        ({"tool_choice": {"type": "none"}, "tools": [{"name": "t", "input_schema": {}}]}, False),
        ({"system": "Other."}, False),
    ],
)
def test_what_a_cached_beginning_hangs_on(fields, kept):
    app = app_of(prompt_cache=True)
    for more in ({}, fields):
        call(app, MESSAGES, messages(user("x" * 400), **more))
    assert (app.state.records[-1].cached_tokens > 0) == kept
