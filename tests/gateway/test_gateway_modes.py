"""What users of other gateways met, and no other test here would notice (`docs/failure-modes.md` lists them all)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from native import WAYS, agent_at, natively
from rawclient import Front, body, fronted, history, post
from rawserver import answer, chunks, stream_head
from running import settings
from test_gateway_native_faults import QUICK, late

from tidegate.gateway.http1 import Limits
from tidegate.gateway.server import serving
from tidegate.simulator import SimulatorSettings, Step, serve

LARGE = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA" + "x" * 200_000}


@pytest.fixture(scope="module")
def shared() -> Iterator[Front]:
    with fronted() as front:
        yield front


@pytest.fixture
def front(shared: Front) -> Front:
    shared.upstream.reset()
    return shared


# -- the provider's compaction in the client's own stream ------------------------------------------------------------


def sse(end: str, *events: dict[str, Any]) -> bytes:
    return "".join(f"event: {it['type']}{end}data: {json.dumps(it)}{end}{end}" for it in events).encode()


ASKED = {
    "by a trigger": body("responses", input=[{"role": "user", "content": "hi"}, {"type": "compaction_trigger"}]),
    "by a field": body("responses", context_management=[{"type": "compaction", "compact_threshold": 1000}]),
    "by nobody": body("responses"),
}


@pytest.mark.parametrize("size", [64 * 1024, 4096], ids=["large pieces", "small pieces"])
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("asked", list(ASKED))
def test_an_answer_that_is_a_compaction_and_nothing_else_passes_whole(front, asked, end, size):
    """One frame of 200 KB, and a last event that lists no output: no empty answer, and no failure of our own making."""
    given = sse(
        end,
        {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**LARGE, "encrypted_content": ""}},
        {"type": "response.output_item.done", "output_index": 0, "item": LARGE},
        {"type": "response.completed", "response": {"id": "resp_1", "status": "completed", "output": []}},
    )
    pieces = [given[at : at + size] for at in range(0, len(given), size)]
    front.upstream.then(stream_head(), *chunks(*pieces))
    got = post(front.base, "/v1/responses", {**ASKED[asked], "stream": True})
    assert (got.status, got.whole) == (200, True)
    assert got.body == given
    assert [seen.one("accept-encoding") for seen in front.upstream.seen] == ["identity"]


MALFORMED = {
    "no content": {"type": "compaction", "id": "cmp_1"},
    "content of another kind": {"type": "compaction", "id": "cmp_1", "encrypted_content": 7},
    "nothing at all": {"type": "compaction"},
}


@pytest.mark.parametrize("item", list(MALFORMED))
def test_a_malformed_compaction_of_the_clients_is_the_providers_to_refuse(item):
    """It is not left out: a model would answer that remembers nothing."""
    way = WAYS["openai"]
    with natively(way) as gate:
        agent = agent_at(gate, way)
        agent.history = [agent.user("Hi."), MALFORMED[item], agent.user("Where were we?")]
        status, headers, raw = agent.post(agent.request())
        assert (status, headers["x-tidegate-action"]) == (400, "relayed")
        told = json.loads(raw)["error"]["message"]
        assert "input[1]" in told or "cmp_1" in told
        # Once more where the provider had been asked to compact within the request.
        assert 1 <= len(gate.records) <= 2
        assert all(json.loads(record.body)["input"][1] == MALFORMED[item] for record in gate.records)


@pytest.mark.parametrize("prefix", ["", "/v1", "/openai/v1", "/openai"])
def test_a_clients_own_compact_call_reaches_its_provider_as_it_came(front, prefix):
    raw = json.dumps({"model": "m", "input": [{"role": "user", "content": "hi"}]}).encode()
    made = json.dumps({"object": "response.compaction", "output": [LARGE]}).encode()
    front.upstream.then(answer(made))
    got = post(front.base, f"{prefix}/responses/compact", raw)
    assert (got.status, got.body) == (200, made)
    assert [(seen.target, bytes(seen.body)) for seen in front.upstream.seen] == [("/v1/responses/compact", raw)]
    # So that it can be seen what the endpoint gave.
    assert front.upstream.seen[0].one("accept-encoding") == "identity"


# -- time and size ---------------------------------------------------------------------------------------------------


def test_what_is_set_by_default_outlives_what_stands_between():
    """Middleboxes cut a silent connection after 30 to 120 seconds; compactions of 756 were seen, and bodies of 32 MiB
    that an agent sent to compact itself."""
    made = settings()
    assert made.stream.heartbeat_after_seconds <= 15
    assert made.stream.heartbeat_every_seconds <= 15
    assert made.upstream.read_timeout >= 600
    assert made.server.body_limit_bytes > 2 * 32 * 1024 * 1024


def test_an_agents_own_compaction_of_more_than_32_mib_passes(front):
    large = json.dumps({"model": "m", "input": [{"role": "user", "content": "x" * (33 * 1024 * 1024)}]}).encode()
    front.upstream.then(answer(json.dumps({"object": "response.compaction", "output": [LARGE]}).encode()))
    assert post(front.base, "/v1/responses/compact", large).status == 200
    assert len(front.upstream.seen[0].body) == len(large)


def test_a_compact_answer_that_takes_its_time_comes_whole(monkeypatch):
    """No limit that is meant for streams or for connections without a request applies to it."""
    brief = partial(Limits, idle_seconds=0.1, head_seconds=0.1, body_seconds=0.1)
    monkeypatch.setattr("tidegate.gateway.server.Limits", brief)
    made = json.dumps({"object": "response.compaction", "output": [LARGE]}).encode()
    with fronted(toml="[stream]\nhold_seconds = 0.05\nheartbeat_after_seconds = 0.05\n") as slow:
        slow.upstream.then(0.5, answer(made)[:-100_000], 0.3, made[-100_000:])
        got = post(slow.base, "/v1/responses/compact", body("responses"))
    assert (got.status, got.whole, got.body) == (200, True, made)


@pytest.mark.parametrize("name", ["openai", "codex", "xai", "anthropic", "bedrock"])
def test_a_compaction_that_is_late_is_not_asked_for_again(name):
    """It may be done and paid for all the same: the next way is another one."""
    with natively(WAYS[name], flags=QUICK) as gate:
        gate.simulator.script(Step(do="hang", seconds=3, on="compaction", times=50))
        assert late(gate, WAYS[name]).ask().headers["x-tidegate-strategy"] == "summary"
        paths = [record.path for record in gate.of("compaction")]
        assert len(paths) == len(set(paths)) >= 1


# -- whom the history is shown ---------------------------------------------------------------------------------------


def test_a_summary_is_asked_of_the_sessions_own_provider_with_its_own_credential():
    same: dict[str, Any] = {"window": 4000, "tool_rounds": 10**6, "orgs": {"sk-mine": "acme/lab"}}
    with serve(SimulatorSettings(**same)) as here, serve(SimulatorSettings(**same)) as there:
        toml = f'[providers.here]\nbase_url = "{here.url}"\n[providers.there]\nbase_url = "{there.url}"\n'
        toml += '[models."*"]\nwindow = 4000\n'
        with serving(settings(toml, **{"routing.default_chat": "there"})) as (base, _):
            got = post(base, "/here/v1/chat/completions", history("chat", 14), ("Authorization", "Bearer sk-mine"))
        assert got.action == "compacted"
        summaries = [record for record in here.state.records if record.kind == "summary"]
        assert summaries
        assert {record.org for record in summaries} == {"acme/lab"}
        assert there.state.records == []
