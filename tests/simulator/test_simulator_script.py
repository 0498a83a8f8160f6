"""Scripted steps: who gets which, and each fault as a client sees it."""

import socket
import time

import httpx2 as httpx
import pytest
from simulator_calls import CHAT, KEYS, PATHS, app_of, call, finish_of, plain, text_of

from tidegate.simulator import SimulatorSettings, Step, read_steps, serve

FENCED = "<transcript>FACT-01 is blue.</transcript>"


class TestOrder:
    def test_first_in_first_out_then_ordinary_again(self):
        app = app_of(script=(Step(do="text", text="one"), Step(do="text", text="two", times=2)))
        said = [text_of("chat", call(app, CHAT, plain("chat", "Hello.")).json) for _ in range(4)]
        assert said == ["one", "two", "two", "You said: Hello."]

    def test_by_path(self):
        app = app_of(script=(Step(do="text", text="m", path="messages"), Step(do="text", text="any")))
        for dialect, expected in (("chat", "any"), ("chat", "You said: Hello."), ("messages", "m")):
            assert text_of(dialect, call(app, PATHS[dialect], plain(dialect, "Hello.")).json) == expected

    def test_by_who_asks(self):
        app = app_of(script=(Step(do="text", text="s", on="summary"), Step(do="text", text="m", on="main")))
        assert text_of("chat", call(app, CHAT, plain("chat", "Hello.")).json) == "m"
        assert text_of("chat", call(app, CHAT, plain("chat", FENCED)).json) == "s"

    def test_counting_only_when_named(self):
        app = app_of(script=(Step(do="error", status=503), Step(do="error", status=529, path="count")))
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
        assert call(app, "/v1/messages/count_tokens", body).status == 529
        assert call(app, "/v1/messages/count_tokens", body).status == 200
        assert call(app, CHAT, plain("chat", "Hello.")).status == 503

    def test_a_request_that_breaks_a_rule_uses_none_up(self):
        app = app_of(script=(Step(do="text", text="one"),))
        assert call(app, CHAT, {"model": "m", "messages": []}).status == 400
        assert text_of("chat", call(app, CHAT, plain("chat", "Hello.")).json) == "one"

    def test_nor_does_the_window_wait_for_it(self):
        app = app_of(window=50, script=(Step(do="text", text="one"),))
        assert call(app, CHAT, plain("chat", "x" * 1000)).status == 400


class TestReading:
    def test_one_or_many(self):
        assert read_steps({"do": "error", "status": 500}) == [Step(do="error", status=500)]
        assert read_steps([{"do": "echo"}, {"do": "hang", "seconds": 1}])[1].seconds == 1

    @pytest.mark.parametrize(
        ("value", "words"),
        [
            ([{"do": "explode"}], "step 0: do: 'explode' is not one of answer, text,"),
            ([{"do": "echo"}, {"do": "echo", "when": 1}], "step 1: unknown 'when'; allowed: after, arguments,"),
            ([{"path": "chat"}], "step 0: "),
            (["echo"], "step 0: expected an object"),
            ({"do": "echo", "path": "models"}, "path: 'models' is not one of any, chat,"),
            ({"do": "echo", "times": 0}, "times: 0 is less than 1"),
        ],
    )
    def test_says_what_is_wrong(self, value, words):
        with pytest.raises(ValueError) as caught:
            read_steps(value)
        assert words in str(caught.value)


@pytest.mark.parametrize("dialect", PATHS)
class TestAnswers:
    @pytest.mark.parametrize(
        ("step", "expected"),
        [
            (Step(do="echo"), "Hello."),
            (Step(do="text", text="Bye."), "Bye."),
            (Step(do="empty"), ""),
        ],
        ids=lambda value: getattr(value, "do", None),
    )
    def test_words(self, dialect, step, expected):
        answer = call(app_of(script=(step,)), PATHS[dialect], plain(dialect, "Hello."))
        assert text_of(dialect, answer.json) == expected

    def test_long(self, dialect):
        app = app_of(script=(Step(do="long", tokens=300),))
        assert len(text_of(dialect, call(app, PATHS[dialect], plain(dialect, "Hello.")).json)) == 1200
        assert app.state.records[-1].output_tokens == 300

    def test_usage_may_lie(self, dialect):
        app = app_of(script=(Step(do="answer", usage={"input": 500}),))
        usage = call(app, PATHS[dialect], plain(dialect, "Hello.")).json["usage"]
        assert usage.get("prompt_tokens", usage.get("input_tokens")) == 500

    def test_overflow_of_any_size(self, dialect):
        app = app_of(script=(Step(do="overflow"), Step(do="overflow", in_stream=True)))
        assert call(app, PATHS[dialect], plain(dialect, "Hello.")).status == 400
        answer = call(app, PATHS[dialect], plain(dialect, "Hello.", stream=True))
        assert answer.status == 200
        assert "error" in answer.events[-1]
        assert [record.outcome for record in app.state.records] == ["overflow", "overflow"]

    def test_error_in_the_apis_own_shape(self, dialect):
        app = app_of(script=(Step(do="error", status=503, headers={"retry-after": "2"}),))
        answer = call(app, PATHS[dialect], plain(dialect, "Hello."))
        assert (answer.status, answer.headers["retry-after"]) == (503, "2")
        assert answer.error == "Simulated error 503."
        assert ("request_id" in answer.json) is (dialect == "messages")
        assert (app.state.records[-1].outcome, app.state.records[-1].step) == ("faulted", "error")

    def test_error_with_a_body_of_its_own(self, dialect):
        app = app_of(script=(Step(do="error", status=413, body={"x": 1}), Step(do="error", status=400, body="no")))
        assert call(app, PATHS[dialect], plain(dialect, "Hello.")).json == {"x": 1}
        answer = call(app, PATHS[dialect], plain(dialect, "Hello."))
        assert (answer.raw, answer.headers["content-type"]) == (b"no", "text/plain")

    def test_error_with_an_empty_body(self, dialect):
        answer = call(app_of(script=(Step(do="error", status=413, body=""),)), PATHS[dialect], plain(dialect, "Hello."))
        assert (answer.status, answer.raw) == (413, b"")

    def test_a_page(self, dialect):
        answer = call(app_of(script=(Step(do="html", status=413),)), PATHS[dialect], plain(dialect, "Hello."))
        assert (answer.status, answer.headers["content-type"]) == (413, "text/html")
        assert b"<h1>413</h1>" in answer.raw

    def test_error_inside_the_stream(self, dialect):
        app = app_of(script=(Step(do="error", status=529, in_stream=True, after=3),))
        answer = call(app, PATHS[dialect], plain(dialect, "Hello.", stream=True))
        assert answer.status == 200
        assert len(answer.events) == 4
        assert "error" in answer.events[3]
        assert not {"[DONE]"} & {str(event) for event in answer.events}

    def test_response_failed(self, dialect):
        app = app_of(script=(Step(do="overflow", in_stream=True, event="response.failed"),))
        last = call(app, PATHS[dialect], plain(dialect, "Hello.", stream=True)).events[-1]
        if dialect == "responses":
            assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
            assert last["response"]["error"]["code"] == "context_length_exceeded"
        else:
            assert "error" in last

    def test_garbage(self, dialect):
        app = app_of(script=(Step(do="garbage", times=2),))
        answer = call(app, PATHS[dialect], plain(dialect, "Hello."))
        assert answer.status == 200
        with pytest.raises(ValueError):
            answer.json  # noqa: B018
        stream = call(app, PATHS[dialect], plain(dialect, "Hello.", stream=True))
        assert (stream.status, stream.headers["content-type"].split(";")[0]) == (200, "text/event-stream")

    def test_refusal(self, dialect):
        app = app_of(script=(Step(do="refusal", times=2),))
        whole = call(app, PATHS[dialect], plain(dialect, "Hello.")).json
        assert finish_of(dialect, whole) == {"messages": "refusal", "chat": "stop"}.get(dialect, "completed")
        assert text_of(dialect, whole) == ""
        assert call(app, PATHS[dialect], plain(dialect, "Hello.", stream=True)).status == 200


@pytest.fixture(scope="module")
def running():
    with serve(SimulatorSettings()) as simulator:
        yield simulator


@pytest.fixture
def simulator(running):
    running.reset()
    return running


def post(simulator, dialect="chat", **more):
    return httpx.post(simulator.url + PATHS[dialect], json=plain(dialect, "Hello.", **more), headers=KEYS, timeout=5)


class TestConnections:
    """Faults of the line, over a real one."""

    def test_dropped_before_any_byte(self, simulator):
        simulator.script(Step(do="drop"))
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            post(simulator)
        assert (simulator.state.records[-1].outcome, simulator.state.records[-1].status) == ("faulted", 0)
        assert post(simulator).status_code == 200

    @pytest.mark.parametrize("dialect", PATHS)
    def test_cut_in_the_middle_of_a_stream(self, simulator, dialect):
        simulator.script(Step(do="cut", after=2))
        body = plain(dialect, "Hello.", stream=True)
        got = []
        with httpx.stream("POST", simulator.url + PATHS[dialect], json=body, headers=KEYS) as answer:
            assert answer.status_code == 200
            with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
                got.extend(answer.iter_bytes())
        assert b"".join(got).count(b"data: ") == 2

    def test_cut_in_the_middle_of_a_body(self, simulator):
        simulator.script(Step(do="cut"))
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            post(simulator)

    def test_hang_ends_when_the_client_has_had_enough(self, simulator):
        simulator.script(Step(do="hang"))
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(simulator.url + CHAT, json=plain("chat", "Hello."), headers=KEYS, timeout=0.1)
        for _ in range(100):
            if simulator.state.records[-1].outcome != "pending":
                break
            time.sleep(0.01)
        assert simulator.state.records[-1].outcome == "cancelled"

    def test_hang_ends_by_itself(self, simulator):
        simulator.script(Step(do="hang", seconds=0.05))
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            post(simulator)

    def test_delay(self, simulator):
        simulator.script(Step(do="answer", delay=0.1))
        start = time.perf_counter()
        assert post(simulator).status_code == 200
        assert time.perf_counter() - start >= 0.1

    def test_a_client_that_leaves_a_stream_is_noticed(self, simulator):
        simulator.configure(gap=0.05)
        try:
            body = plain("chat", "Hello. " * 50, stream=True)
            with httpx.stream("POST", simulator.url + CHAT, json=body, headers=KEYS) as answer:
                next(answer.iter_bytes())
        finally:
            simulator.configure(gap=0.0)
        for _ in range(100):
            if simulator.state.records[-1].outcome != "pending":
                break
            time.sleep(0.01)
        assert simulator.state.counters()["cancelled"] == 1

    def test_half_a_request_is_no_request(self, simulator):
        host, port = simulator.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as line:
            line.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        time.sleep(0.05)
        assert post(simulator).status_code == 200
