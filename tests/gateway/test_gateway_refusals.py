"""Refusals and full windows, end to end: what is passed on byte for byte, what is asked for less, what is left out, and
what is compacted before the next turn."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from agents import AGENTS, hold, imagine
from rawserver import RawServer, answer, chunks, raw_server, stream_head
from running import running, settings

from tidegate.gateway.server import serving
from tidegate.simulator import SimulatorSettings
from tidegate.simulator.script import Step

Json = dict[str, Any]
WINDOW = 8000
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
APIS = pytest.mark.parametrize("api", list(PATHS))


@pytest.fixture(scope="module")
def upstream() -> Iterator[RawServer]:
    with raw_server() as server:
        yield server


@pytest.fixture(scope="module")
def base(upstream: RawServer) -> Iterator[str]:
    with serving(settings(upstream=upstream.url)) as (address, _app):
        yield address


@pytest.fixture(autouse=True)
def _fresh(upstream: RawServer) -> None:
    upstream.reset()


def post(base: str, path: str, body: Json) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(urlsplit(base).netloc, timeout=20)
    headers = {"content-type": "application/json", "authorization": "Bearer k", "anthropic-version": "2023-06-01"}
    connection.request("POST", path, json.dumps(body), headers)
    response = connection.getresponse()
    told = response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    connection.close()
    return told


def body_of(api: str, items: list[Json], **fields: Any) -> Json:
    return {"model": "m", "input" if api == "responses" else "messages": items, "max_tokens": 400, **fields} | (
        {"max_tokens": None} if api == "responses" else {}
    )


ASK: Json = {"role": "user", "content": "go on"}
LONG: Json = {"role": "user", "content": "word " * 9000}


def error(message: str, code: str | None = None, kind: str = "invalid_request_error") -> bytes:
    # Spacing that no serializer of ours would write: what comes out is what went in.
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}, indent=3).encode()


# -- passed on -------------------------------------------------------------------------------------------------------

PASSED = [
    ("429 Too Many Requests", error("Rate limit reached for m on tokens per min (TPM): Limit 30000, Used 29000, "
     "Requested 12528. Please try again in 1s.", "rate_limit_exceeded", "tokens"), "rate_limit"),
    ("429 Too Many Requests", error("Request too large for m on tokens per min (TPM): Limit 30000, Requested 342389.",
     "rate_limit_exceeded", "tokens"), "rate_limit"),
    ("413 Payload Too Large", error("Request too large for m on tokens per minute (TPM): Limit 12000, Requested 14137, "
     "please reduce your message size and try again.", "rate_limit_exceeded", "tokens"), "rate_limit"),
    ("400 Bad Request", error("Too many images in request. Maximum is 50."), "media_limit"),
    ("413 Payload Too Large", b'{"type":"error", "error":{"type":"request_too_large","message":"Request exceeds the '
     b'maximum size"}}', "payload_bytes"),
    ("400 Bad Request", error("Invalid 'input[0].content': string too long. Expected a string with maximum length "
     "10485760, but got a string with length 10485761 instead.", "string_above_max_length"), "payload_bytes"),
    ("402 Payment Required", error("Insufficient balance"), "quota"),
    ("429 Too Many Requests", error("Too many tokens per day: limit 100000, used 99000."), "rate_limit"),
    ("429 Too Many Requests", error("Extra usage is required for long context requests."), "quota"),
    ("429 Too Many Requests", b"", "rate_limit"),
    ("413 Payload Too Large", b"", "payload_bytes"),
]  # fmt: skip


@APIS
@pytest.mark.parametrize(
    ("status", "told", "reason"), PASSED, ids=[f"{row[2]}-{row[0][:3]}-{len(row[1])}" for row in PASSED]
)
def test_what_no_compaction_would_help_is_passed_on_byte_for_byte_with_one_send(
    base, upstream, api, status, told, reason
):
    upstream.default = lambda seen: (answer(told, status=status, extra="Retry-After: 7\r\n"),)
    got, headers, body = post(base, PATHS[api], body_of(api, [LONG, ASK]))
    assert (got, body, headers["retry-after"]) == (int(status[:3]), told, "7")
    assert (headers["x-tidegate-action"], headers["x-tidegate-reason"]) == ("relayed", reason)
    assert len(upstream.seen) == 1


# -- less output -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", ["chat", "messages"])
def test_where_only_the_answer_does_not_fit_less_is_asked_for(api, stream):
    with running(SimulatorSettings(window=WINDOW, counts_output=True)) as gate:
        agent = AGENTS[api](gate.base, stream=stream)
        imagine(agent, "steps", 3)
        agent.history.append(agent.user("And now?"))
        agent.extra = {"max_tokens": 7000}
        turn = agent.ask()
        assert (turn.headers["x-tidegate-action"], turn.headers["x-tidegate-reason"]) == ("recovered", "output_clamped")
        refused, answered = gate.of("main")
        assert gate.of("summary") == []
        asked, sent = json.loads(refused.body), json.loads(answered.body)
        assert sent["max_tokens"] < 7000 - 1000
        assert {**sent, "max_tokens": 7000} == asked


# -- what the provider can't read any more ---------------------------------------------------------------------------

SEALED: Json = {"type": "reasoning", "id": "rs_0000000000", "summary": [], "encrypted_content": "gAAAAstale"}
SAID: Json = {"type": "message", "id": "msg_0000000000", "role": "assistant", "status": "completed",
              "content": [{"type": "output_text", "text": "so", "annotations": []}]}  # fmt: skip
THOUGHT: Json = {"type": "thinking", "thinking": "hm", "signature": "EuYstale"}
STALE = {
    "responses": [ASK, SEALED, SAID, ASK],
    "messages": [ASK, {"role": "assistant", "content": [THOUGHT, {"type": "text", "text": "so"}]}, ASK],
}
WITHOUT = {
    "responses": [ASK, {key: value for key, value in SAID.items() if key != "id"}, ASK],
    "messages": [ASK, {"role": "assistant", "content": [{"type": "text", "text": "so"}]}, ASK],
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", list(STALE))
def test_a_stale_artifact_is_left_out_and_sent_once_more(api, stream):
    with running(SimulatorSettings(window=WINDOW)) as gate:
        agent = AGENTS[api](gate.base, stream=stream)
        agent.history = list(STALE[api])
        turn = agent.ask()
        told = turn.headers["x-tidegate-action"], turn.headers["x-tidegate-reason"]
        assert told == ("recovered", "artifact_dropped")
        refused, answered = gate.records
        assert refused.status == 400
        sent = json.loads(answered.body)
        assert sent["input" if api == "responses" else "messages"][-len(WITHOUT[api]) :] == WITHOUT[api]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_another_makers_reasoning_is_left_out_with_the_fields_that_give_it_away(stream):
    """Grok's has a status, which OpenAI does not know: left out at once, for what is sealed could be read no better."""
    with running(SimulatorSettings(window=WINDOW)) as gate:
        agent = AGENTS["responses"](gate.base, stream=stream)
        agent.history = [ASK, SEALED | {"status": "completed"}, SAID, ASK]
        turn = agent.ask()
        told = turn.headers["x-tidegate-action"], turn.headers["x-tidegate-reason"]
        assert told == ("recovered", "artifact_dropped")
        refused, answered = gate.records
        assert "status" in str(refused.violation)
        assert json.loads(answered.body)["input"][-3:] == WITHOUT["responses"]


def test_a_field_of_another_item_that_is_refused_is_the_clients_to_mend():
    with running(SimulatorSettings(window=WINDOW)) as gate:
        body = {"model": "m", "input": [ASK, SEALED, SAID, {**ASK, "stauts": "completed"}]}
        status, headers, told = post(gate.base, PATHS["responses"], body)
        assert (status, headers["x-tidegate-action"]) == (400, "relayed")
        assert b"input[3].stauts" in told
        assert len(gate.records) == 1


COMPACTED: Json = {"type": "compaction", "id": "cmp_0000000000", "encrypted_content": "gAAAAstale"}


def test_a_compaction_of_the_clients_own_that_is_stale_is_left_out():
    with running(SimulatorSettings(window=WINDOW)) as gate:
        agent = AGENTS["responses"](gate.base, stream=False)
        agent.history = [ASK, COMPACTED, ASK]
        turn = agent.ask()
        told = turn.headers["x-tidegate-action"], turn.headers["x-tidegate-reason"]
        assert told == ("recovered", "artifact_dropped")
        assert len(gate.records) == 2
        assert COMPACTED not in json.loads(gate.records[-1].body)["input"]


EVENTS = {
    "responses": b'event: error\ndata: {"type":"error","sequence_number":0,"error":{"type":"invalid_request_error",'
    b'"code":"invalid_encrypted_content","message":"The encrypted content for item rs_0000000000 could not be '
    b'verified."}}\n\n',
    "messages": b'event: error\ndata: {"type":"error","error":{"type":"invalid_request_error","message":'
    b'"messages.1.content.0: Invalid `signature` in `thinking` block"}}\n\n',
    "chat": b'data: {"error":{"message":"messages.1.content.0: Invalid `signature` in `thinking` block"}}\n\n',
}
SIGNED: Json = {
    "role": "assistant",
    "content": "so",
    "reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}],
}
ITEMS = {**STALE, "chat": [ASK, SIGNED, ASK]}


@APIS
def test_a_stale_artifact_that_is_told_in_the_stream_is_left_out_too(base, upstream, api):
    upstream.then(stream_head(), *chunks(EVENTS[api]))
    good = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    upstream.then(stream_head(), *chunks(good))
    status, headers, body = post(base, PATHS[api], body_of(api, ITEMS[api], stream=True))
    assert (status, body) == (200, good)
    assert headers["x-tidegate-reason"] == "artifact_dropped"
    first, second = (bytes(seen.body) for seen in upstream.seen)
    assert b"stale" in first or b"reasoning_details" in first
    assert b"stale" not in second
    assert b"reasoning_details" not in second


@APIS
def test_where_that_does_not_help_the_first_answer_is_given_byte_for_byte(base, upstream, api):
    refusals = [error(f"messages.{n}.content.0: Invalid `signature` in `thinking` block") for n in (1, 2)]
    if api == "responses":
        refusals = [error(f"The encrypted content for item rs_{n} could not be verified.") for n in (1, 2)]
    for refusal in refusals:
        upstream.then(answer(refusal, status="400 Bad Request"))
    status, headers, body = post(base, PATHS[api], body_of(api, ITEMS[api]))
    assert (status, body) == (400, refusals[0])
    assert (headers["x-tidegate-action"], headers["x-tidegate-reason"]) == ("relayed", "stale_artifact")
    assert len(upstream.seen) == 2


# -- a request above a whole allowance -------------------------------------------------------------------------------

ALLOWANCE = {"error": {"message": "Request too large for m on tokens per min (TPM): Limit 6000, Requested 9000.",
                       "type": "tokens", "param": None, "code": "rate_limit_exceeded"}}  # fmt: skip


@APIS
def test_a_request_above_a_whole_allowance_is_shrunk_where_that_is_configured(api):
    with running(SimulatorSettings(window=200_000), compaction__shrink_on_admission=True) as gate:
        gate.simulator.script(Step(do="error", on="main", status=429, body=ALLOWANCE))
        agent = AGENTS[api](gate.base, stream=True)
        imagine(agent, "steps", 6, 1300)
        agent.history.append(agent.user("And now?"))
        turn = agent.ask()
        assert turn.headers["x-tidegate-action"] == "recovered"
        refused, answered = gate.of("main")
        assert refused.input_tokens > 6000 >= answered.input_tokens + 400
        assert gate.violations == []
        # Never the size of a window: a later turn as long as the first goes as it is.
        assert [known.limit for known in gate.app.conversations.kit.windows] in ([], [None])


# -- an input that is cut in silence ---------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [None, 131_072], ids=["no window known", "a table says more"])
def test_a_server_that_cuts_in_silence_is_found_out(known):
    cutting = SimulatorSettings(window=4096, profile="ollama", silent_truncation=True, tool_rounds=10**6)
    with running(cutting, window=known) as gate:
        agent = AGENTS["chat"](gate.base, stream=False)
        hold(agent, "steps", 40, 300)
        main = gate.of("main")
        cut = [number for number, record in enumerate(main) if record.truncated]
        assert cut, "the window was too large to try this"
        # The first cuts teach it; from then on it is compacted in time.
        assert cut[-1] < cut[0] + 15
        assert gate.of("summary")
        assert not any(record.truncated for record in gate.of("summary"))
        assert {turn.headers["x-tidegate-action"] for turn in agent.turns[cut[-1] + 1 :]} == {"compacted", "replayed"}


@APIS
@pytest.mark.parametrize("factor", [0.4, 0.6, 0.8])
def test_a_high_estimate_alone_compacts_nothing(api, factor):
    with running(SimulatorSettings(window=10**6, usage_factor=factor, tool_rounds=10**6)) as gate:
        hold(AGENTS[api](gate.base, stream=False), "single", 20, 1300)
        assert gate.of("summary") == []
        assert all(record.outcome == "answered" for record in gate.of("main"))


@APIS
def test_an_answer_that_the_window_cut_is_followed_by_a_compaction(api):
    with running(SimulatorSettings(window=WINDOW, tool_rounds=10**6), window=WINDOW) as gate:
        agent = AGENTS[api](gate.base, stream=False)
        hold(agent, "single", 3)
        gate.simulator.script(Step(do="window_exceeded", on="main"))
        turn = agent.ask()
        agent.history.append(agent.user("Go on."))
        assert gate.of("summary") == []
        agent.ask()
        assert turn.headers["x-tidegate-action"] == "relayed"
        assert agent.turns[-1].headers["x-tidegate-action"] == "compacted"
