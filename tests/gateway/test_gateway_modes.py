"""What users of other gateways met, and no other test here would notice (`docs/failure-modes.md` lists them all)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from native import WAYS, agent_at, natively
from rawclient import Front, body, fronted, post
from rawserver import answer, chunks, stream_head

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
    assert len(front.upstream.seen) == 1


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
