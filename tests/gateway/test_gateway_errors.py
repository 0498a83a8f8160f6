"""What an upstream refuses is told as it said it; what it can't say is told in the client's dialect."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import anthropic
import openai
import pytest
from rawclient import JSON, PATHS, Answer, Front, body, call, error_of, fronted, history, post
from rawserver import CLOSE, CUT, HOLD, Step, answer
from running import Running, running, settings
from stores import recorded

from tidegate.gateway.server import serving
from tidegate.simulator import SimulatorSettings
from tidegate.simulator import Step as Scripted

DIALECTS = pytest.mark.parametrize(("dialect", "path"), PATHS.items(), ids=list(PATHS))
ANYWHERE = pytest.mark.parametrize(
    ("dialect", "path"), [*PATHS.items(), ("chat", "/v1/embeddings"), ("messages", "/v1/messages/batches")]
)
VERSION = ("anthropic-version", "2023-06-01")


@pytest.fixture(scope="module")
def shared() -> Iterator[Front]:
    with fronted(upstream__read_timeout=0.3) as front:
        yield front


@pytest.fixture
def front(shared: Front) -> Front:
    shared.upstream.reset()
    return shared


@pytest.fixture(scope="module")
def nowhere() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with serving(settings(upstream=f"http://127.0.0.1:{port}")) as (base, _):
        yield base


@ANYWHERE
@pytest.mark.parametrize("stream", [False, True])
def test_an_upstream_that_cannot_be_reached_is_a_502_with_what_to_check(nowhere, dialect, path, stream):
    got = post(nowhere, path, body(dialect, stream=stream))
    message, kind = error_of(dialect, got)
    assert (got.status, kind) == (502, "api_error" if dialect == "messages" else "server_error")
    assert "127.0.0.1" in message
    assert "Check" in message
    assert got.one("content-type") == "application/json"
    assert got.one("x-tidegate-request-id")


@ANYWHERE
def test_an_upstream_that_does_not_begin_in_time_is_a_504(front, dialect, path):
    front.upstream.then(HOLD)
    got = post(front.base, path, body(dialect))
    assert got.status == 504
    assert "within 0.3 seconds" in error_of(dialect, got)[0]
    assert len(front.upstream.seen) == 1


NO_ANSWERS: dict[str, tuple[Step, ...]] = {
    "closed": (CLOSE,),
    "broken off": (CUT,),
    "half a head": (b"HTTP/1.1 200 OK\r\nContent-Ty", CUT),
    "no http": (b"SSH-2.0-OpenSSH_9.6\r\n", CLOSE),
    "another http": (b"HTTP/2.0 200 OK\r\n\r\n", CLOSE),
    "a status that is none": (b"HTTP/1.1 700 Whatever\r\nContent-Length: 2\r\n\r\n{}",),
    "two lengths": (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", CLOSE),
    "a switch of protocols": (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", CLOSE),
}


@DIALECTS
@pytest.mark.parametrize("kind", NO_ANSWERS)
def test_what_is_no_answer_is_a_502_and_nothing_is_kept(front, dialect, path, kind):
    front.upstream.default = lambda seen: NO_ANSWERS[kind]
    with recorded(front.app) as store:
        got = post(front.base, path, history(dialect, 3))
    message, _ = error_of(dialect, got)
    assert got.status == 502
    assert "step 0" not in message
    assert store.empty


@DIALECTS
def test_a_refusal_whose_body_is_cut_stays_that_refusal(front, dialect, path):
    whole = answer(b'{"error":{"message":"slow down"}}', status="429 Too Many Requests", extra="Retry-After: 7\r\n")
    front.upstream.default = lambda seen: (whole[:-5], CUT)
    got = post(front.base, path, history(dialect, 3))
    assert (got.status, got.one("retry-after"), got.whole) == (429, "7", False)


def test_an_sdk_reads_the_gateways_own_errors(nowhere):
    with openai.OpenAI(base_url=f"{nowhere}/v1", api_key="k", max_retries=0) as client:
        with pytest.raises(openai.InternalServerError, match="refused the connection"):
            client.chat.completions.create(**body("chat"))
        with pytest.raises(openai.InternalServerError, match="refused the connection"):
            client.responses.create(**body("responses"), stream=True)
    with (
        anthropic.Anthropic(base_url=nowhere, api_key="k", max_retries=0) as claude,
        pytest.raises(anthropic.InternalServerError, match="refused the connection"),
    ):
        claude.messages.create(**body("messages"))


# -- the provider's own refusals ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared_gate() -> Iterator[Running]:
    with running(SimulatorSettings(window=4000), window=4000) as found:
        yield found


@pytest.fixture
def gate(shared_gate: Running) -> Iterator[Running]:
    shared_gate.simulator.reset()
    yield shared_gate
    shared_gate.simulator.reset()


def through(gate: Running, path: str, sent: object, key: str) -> Answer:
    return post(gate.base, path, sent, VERSION, ("Authorization", f"Bearer {key}"))


REFUSALS = [
    (429, {"retry-after": "17"}),
    (529, {"retry-after": "2"}),
    (500, {}),
    (503, {"retry-after": "9"}),
    (401, {}),
    (403, {}),
]


@DIALECTS
@pytest.mark.parametrize(("status", "headers"), REFUSALS, ids=[str(r[0]) for r in REFUSALS])
@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_is_left_to_the_clients_own_retry(gate, dialect, path, status, headers, stream):
    """Sent once, told in the provider's words, also where the history had been compacted for it."""
    key = f"sk-{dialect}-{status}-{stream}"
    assert through(gate, path, history(dialect, 14), key).action == "compacted"
    gate.simulator.reset()
    text = {"error": {"message": "later, please", "type": "some_error", "code": None}}
    gate.simulator.script(Scripted(do="error", status=status, headers=headers, body=text))
    with recorded(gate.app) as store:
        got = through(gate, path, history(dialect, 14, stream=stream), key)
    assert (got.status, got.json) == (status, text)
    assert got.one("retry-after") == headers.get("retry-after")
    assert [record.kind for record in gate.records] == ["main"]
    assert store.empty


@DIALECTS
def test_a_rate_limit_on_the_way_to_a_summary_lets_the_request_go_as_it_is(gate, dialect, path):
    gate.simulator.script(Scripted(do="error", status=429, on="summary", times=9))
    direct = post(gate.simulator.url, path, history(dialect, 14), VERSION, ("x-api-key", "k"))
    gate.simulator.state.records.clear()
    got = through(gate, path, history(dialect, 14), f"sk-limited-{dialect}")
    told, said = got.json, direct.json
    assert (got.status, told["error"]["message"]) == (direct.status, said["error"]["message"])
    assert got.status == 400


def test_a_conversation_by_another_method_is_relayed(front):
    got = call(front.base, "PUT", PATHS["chat"], JSON, json.dumps(body("chat")).encode())
    assert (got.status, got.reason) == (200, "not_a_conversation")
