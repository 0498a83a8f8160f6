"""Several keys of one provider: a conversation keeps to one, a refused one rests, what is bound stays with it."""

from __future__ import annotations

import gzip
import json
import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest
from agents import hold
from native import WAYS, WINDOW, agent_at, toml_of
from rawclient import JSON, Call, body, post
from rawserver import CUT, HOLD, RawServer, Seen, answer, raw_server
from running import Running, settings

from tidegate.context.fingerprint import Hasher
from tidegate.gateway.keyring import Keyring
from tidegate.gateway.server import serving
from tidegate.simulator import SimulatorSettings, Step, serve
from tidegate.simulator.compaction_settings import ResponsesCompaction

GOOD = answer(
    b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2}}'
)
KEYS = {"KEY_A": "sk-aaa", "KEY_B": "sk-bbb", "KEY_C": "sk-ccc"}
ALL = '["KEY_A", "KEY_B", "KEY_C"]'
REFUSED = {
    401: answer(b'{"error":{"message":"Incorrect API key provided"}}', status="401 Unauthorized"),
    403: answer(b'{"error":{"message":"no"}}', status="403 Forbidden"),
    429: answer(b'{"error":{"message":"Rate limit reached"}}', status="429 Too Many", extra="Retry-After: 60\r\n"),
}


@contextmanager
def gate(
    monkeypatch: pytest.MonkeyPatch, server: RawServer, names: str = '["KEY_A", "KEY_B", "KEY_C"]'
) -> Iterator[str]:
    for name, key in KEYS.items():
        monkeypatch.setenv(name, key)
    toml = f'[providers.generic]\nauth.env = {names}\n[models."*"]\nwindow = 100000\n'
    with serving(settings(toml, upstream=server.url)) as (base, _):
        yield base


@pytest.fixture
def server() -> Iterator[RawServer]:
    with raw_server() as served:
        served.default = lambda seen: (GOOD,)
        yield served


def key_of(seen: Seen) -> str:
    return (seen.one("authorization") or "").removeprefix("Bearer ")


def talk(number: int, turns: int = 1) -> dict[str, Any]:
    said = body("chat", f"conversation {number}")
    for turn in range(turns - 1):
        said["messages"] += [{"role": "assistant", "content": "so"}, {"role": "user", "content": f"and {turn}"}]
    return said


def test_conversations_spread_over_the_keys_and_each_keeps_to_its_own(server, monkeypatch):
    with gate(monkeypatch, server) as base:
        for number in range(24):
            for turns in (1, 2, 3):
                assert post(base, "/v1/chat/completions", talk(number, turns)).status == 200
    used = [key_of(seen) for seen in server.seen]
    assert all(len(set(used[start : start + 3])) == 1 for start in range(0, 72, 3))
    assert set(Counter(used)) == set(KEYS.values())
    assert max(Counter(used).values()) < 48


@pytest.mark.parametrize("status", REFUSED)
def test_a_refused_key_rests_and_another_answers_before_the_client_sees_anything(server, monkeypatch, status):
    with gate(monkeypatch, server) as base:
        server.then(REFUSED[status])
        assert post(base, "/v1/chat/completions", talk(1)).status == 200
        first, second = (key_of(seen) for seen in server.seen)
        assert first != second
        assert post(base, "/v1/chat/completions", talk(1, 2)).status == 200
        assert key_of(server.seen[-1]) == second


def test_the_keys_that_one_request_tries_are_bounded_and_the_last_answer_is_told(server, monkeypatch):
    server.default = lambda seen: (REFUSED[429],)
    with gate(monkeypatch, server) as base:
        got = post(base, "/v1/chat/completions", talk(1))
    assert got.status == 429
    assert b"Rate limit reached" in got.body
    assert len({key_of(seen) for seen in server.seen}) == len(server.seen) == 3


@pytest.mark.parametrize("status", ["400 Bad Request", "500 Internal Server Error", "404 Not Found"])
def test_what_is_not_meant_for_the_key_is_told_as_it_is(server, monkeypatch, status):
    server.then(answer(b'{"error":{"message":"x"}}', status=status))
    with gate(monkeypatch, server) as base:
        assert post(base, "/v1/chat/completions", talk(1)).status == int(status[:3])
    assert len(server.seen) == 1


OF_THE_REQUEST = {
    "an overflow as a 403": answer(
        b'{"code":"http_403 Forbidden","message":"Context window exceeded: 306234 tokens exceeds the limit of 272000 '
        b'tokens"}',
        status="403 Forbidden",
    ),
    "an overflow as a 429": answer(
        b'{"error":{"message":"refused","code":"context_length_exceeded"}}', status="429 Too Many Requests"
    ),
    "above a whole allowance": answer(
        b'{"error":{"message":"Request too large for m on tokens per min (TPM): Limit 30000, Requested 342389.",'
        b'"type":"tokens","code":"rate_limit_exceeded"}}',
        status="429 Too Many Requests",
    ),
}


@pytest.mark.parametrize("what", list(OF_THE_REQUEST))
def test_what_is_wrong_with_the_request_is_not_the_keys_fault(server, monkeypatch, what):
    """Any key would be told the same: none is tried, none rests, and the provider's own words are the answer."""
    given = OF_THE_REQUEST[what]
    server.then(given)
    with gate(monkeypatch, server) as base:
        got = post(base, "/v1/chat/completions", talk(1))
        assert given.endswith(got.body)
        assert len(server.seen) == 1
        assert post(base, "/v1/chat/completions", talk(1, 2)).status == 200
    assert key_of(server.seen[0]) == key_of(server.seen[1])


@pytest.mark.parametrize("cut", [False, True], ids=["slow", "cut"])
def test_a_refusal_that_does_not_come_to_its_end_is_passed_on_as_far_as_it_came(server, monkeypatch, cut):
    monkeypatch.setattr("tidegate.gateway.peeked.MOST_SECONDS", 0.1)
    whole = OF_THE_REQUEST["an overflow as a 429"]
    server.default = lambda seen: (whole[:-10], CUT) if cut else (whole[:-10], 0.3, whole[-10:])
    with gate(monkeypatch, server, '["KEY_A", "KEY_B"]') as base:
        got = post(base, "/v1/chat/completions", talk(1))
    assert (got.status, got.whole) == (429, not cut)
    assert whole.endswith(got.body) is not cut


def test_a_refusal_that_came_compressed_is_read_too(server, monkeypatch):
    told = gzip.compress(b'{"error":{"message":"refused","code":"context_length_exceeded"}}')
    server.then(answer(told, status="403 Forbidden", extra="Content-Encoding: gzip\r\n"))
    with gate(monkeypatch, server) as base:
        got = post(base, "/v1/chat/completions", talk(1))
    assert (got.status, got.body) == (403, told)
    assert len(server.seen) == 1


def test_a_client_that_leaves_while_a_refusal_comes_leaves_nothing_open(server, monkeypatch):
    server.then(b"HTTP/1.1 429 Too Many\r\nContent-Length: 99\r\n\r\n{", HOLD)
    with gate(monkeypatch, server) as base:
        leaving = Call(base, "POST", "/v1/chat/completions", JSON, json.dumps(talk(1)).encode())
        seen = server.wait()
        time.sleep(0.05)
        leaving.close()
        assert seen.left.wait(2)


def test_a_client_s_own_key_is_the_one_that_is_used(server, monkeypatch):
    server.then(REFUSED[401])
    with gate(monkeypatch, server) as base:
        got = post(base, "/v1/chat/completions", talk(1), ("authorization", "Bearer sk-mine"))
    assert got.status == 401
    assert [key_of(seen) for seen in server.seen] == ["sk-mine"]


@pytest.mark.parametrize(
    "bound",
    [
        {"input": [{"type": "compaction", "encrypted_content": "x"}, {"role": "user", "content": "hi"}]},
        {"previous_response_id": "resp_1", "input": [{"role": "user", "content": "hi"}]},
    ],
    ids=["a sealed item", "a history that the provider holds"],
)
def test_what_only_one_account_may_read_goes_to_no_other_key(server, monkeypatch, bound):
    server.then(REFUSED[429])
    with gate(monkeypatch, server) as base:
        assert post(base, "/v1/responses", {"model": "m", **bound}).status == 429
    assert len(server.seen) == 1


@pytest.mark.parametrize("names", ['["KEY_A"]', '"KEY_A"', '["KEY_A", "UNSET"]'])
def test_one_key_is_used_as_ever(server, monkeypatch, names):
    server.then(REFUSED[429])
    with gate(monkeypatch, server, names) as base:
        assert post(base, "/v1/chat/completions", talk(1)).status == 429
    assert [key_of(seen) for seen in server.seen] == ["sk-aaa"]


def test_no_key_is_shown(monkeypatch):
    ring = Keyring({"n1": "sk-secret-1", "n2": "sk-secret-2"}, Hasher(b"k" * 32))
    assert "secret" not in repr(ring)
    assert "secret" not in str(ring.order(b"x"))


def test_a_key_that_has_rested_is_preferred_again():
    now = [0.0]
    ring = Keyring({"a": "1", "b": "2"}, Hasher(b"k" * 32), lambda: now[0])
    first, second = ring.order(b"talk")
    assert ring.refused(first, 429, [(b"Retry-After", b"40")])
    assert ring.order(b"talk") == [second, first]
    assert ring.refused(second, 401, [])
    assert ring.order(b"talk") == [first, second]  # both rest: the one that is ready sooner
    now[0] = 41.0
    assert ring.order(b"talk") == [first, second]
    assert not ring.refused(first, 500, [])


# -- sessions --------------------------------------------------------------------------------------------------------

TWO = {"KEY_A": "sk-aaa", "KEY_B": "sk-bbb"}
WAY = WAYS["openai"]
BOUND = {
    "orgs": {"sk-aaa": "one", "sk-bbb": "other"},
    "responses_compaction": ResponsesCompaction(bound_to="key"),
}
"""What one key seals the other can't read: the simulator refuses it, and counts it as a broken rule."""


@contextmanager
def two_keys(monkeypatch: pytest.MonkeyPatch, toml: str = "", **flags: Any) -> Iterator[Running]:
    for name, key in TWO.items():
        monkeypatch.setenv(name, key)
    given = {"window": WINDOW, "tool_rounds": 10**6, "profile": WAY.profile, **BOUND}
    own = f'auth.env = ["KEY_A", "KEY_B"]\n[models."*"]\nwindow = {WINDOW}\n{toml}'
    with (
        serve(SimulatorSettings(**given)) as simulator,
        serving(settings(toml_of(WAY, simulator.url) + own, **flags)) as (
            base,
            app,
        ),
    ):
        yield Running(base, app, simulator)


def agent_without_a_key(gate: Running) -> Any:
    agent = agent_at(gate, WAY)
    agent.headers = lambda: {"content-type": "application/json"}  # type: ignore[method-assign]
    return agent


def used(gate: Running, since: int = 0) -> list[str]:
    return [record.org for record in gate.records[since:]]


def refused_now(gate: Running, status: int = 429) -> None:
    gate.simulator.script(Step(do="error", status=status, on="main", headers={"retry-after": "600"}))


@pytest.mark.parametrize("status", [401, 403, 429])
def test_where_a_key_is_refused_in_mid_session_the_other_goes_on_without_what_the_first_has_sealed(monkeypatch, status):
    with two_keys(monkeypatch, compaction__prepare="off") as gate:
        agent = agent_without_a_key(gate)
        hold(agent, "steps", 8)
        (first,) = set(used(gate))
        assert agent.turns[-1].headers["x-tidegate-strategy"] == "openai"
        since = len(gate.records)
        refused_now(gate, status)
        hold(agent, "steps", 8)
        assert used(gate, since)[0] == first
        assert set(used(gate, since + 1)) == {"one", "other"} - {first}
        assert gate.violations == []
        assert set(gate.of("main")[-1].facts) >= {"FACT-00", "FACT-05"}
        assert all(turn.headers["x-tidegate-action"] != "unrecovered" for turn in agent.turns)


def test_a_summary_is_read_with_every_key_and_goes_on_within_the_same_request(monkeypatch):
    with two_keys(monkeypatch, '[compaction]\nstrategies = ["summary"]\nprepare = "off"\n') as gate:
        agent = agent_without_a_key(gate)
        hold(agent, "steps", 8)
        assert agent.turns[-1].headers["x-tidegate-action"] == "replayed"
        (first,) = set(used(gate))
        summaries, since = len(gate.of("summary")), len(gate.records)
        refused_now(gate)
        agent.history.append(agent.user("And now?"))
        turn = agent.ask()
        assert turn.headers["x-tidegate-action"] == "replayed"
        agent.results(turn, "done")
        assert used(gate, since) == [first, *({"one", "other"} - {first})]
        agent.history.append(agent.user("And then?"))
        assert agent.ask().headers["x-tidegate-strategy"] == "summary"
        assert len(gate.of("summary")) == summaries
        assert gate.violations == []


def test_what_is_sealed_goes_to_the_key_that_sealed_it_though_another_has_rested_again(monkeypatch):
    with two_keys(monkeypatch, compaction__prepare="off") as gate:
        agent = agent_without_a_key(gate)
        hold(agent, "steps", 8)
        (first,) = set(used(gate))
        refused_now(gate)
        agent.history.append(agent.user("And now?"))
        turn = agent.ask()
        assert (turn.headers["x-tidegate-action"], turn.headers["x-tidegate-strategy"]) == ("compacted", "openai")
        agent.results(turn, "done")
        # Until what this key has sealed stands for more than what the other has.
        hold(agent, "steps", 4)
        second, compactions = used(gate)[-1], len(gate.of("compaction"))
        assert second != first
        keyring = next(iter(gate.app.conversations.keyrings._known.values()))
        assert keyring is not None
        keyring._until.clear()
        agent.history.append(agent.user("And then?"))
        turn = agent.ask()
        assert (turn.headers["x-tidegate-action"], turn.headers["x-tidegate-strategy"]) == ("replayed", "openai")
        assert used(gate)[-1] == second
        assert gate.violations == []
        assert len(gate.of("compaction")) == compactions


def test_what_a_client_had_compacted_by_itself_goes_to_the_key_that_sealed_it(monkeypatch):
    """Its first item is another one then, by which alone another key might be chosen."""
    with two_keys(monkeypatch, compaction__prepare="off") as gate:
        client = openai.OpenAI(base_url=f"{gate.base}/v1", api_key="none", max_retries=0)
        hidden = {"Authorization": openai.Omit()}
        for talk in range(4):
            given = client.responses.compact(
                model=WAY.model, input=[{"role": "user", "content": f"talk {talk}: FACT-00"}], extra_headers=hidden
            )
            items: list[Any] = [json.loads(item.model_dump_json(exclude_none=True)) for item in given.output]
            for turn in range(2):
                items.append({"role": "user", "content": f"turn {turn}"})
                answered = client.responses.with_raw_response.create(model=WAY.model, input=items, extra_headers=hidden)
                assert answered.headers["x-tidegate-action"] == "relayed"
                items += [json.loads(item.model_dump_json(exclude_none=True)) for item in answered.parse().output]
            keys = {record.org for record in gate.records[-3:]}
            assert len(keys) == 1
        assert gate.violations == []


HIDDEN = {"Authorization": openai.Omit()}


def talks_of_both_keys(gate: Running) -> Iterator[int]:
    """Numbers of conversations, until both keys were in use: which one a conversation has is by chance."""
    for number in range(64):
        yield number
        if set(used(gate)) == {"one", "other"}:
            return
    pytest.fail("one key was never used")


def without_a_key(gate: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gate.base}/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("knows", [True, False], ids=["remembered", "another process"])
def test_what_the_provider_holds_is_asked_of_the_account_that_has_it(monkeypatch, stream, knows):
    """Each turn begins with other words, by which alone another key might be chosen."""
    with two_keys(monkeypatch, compaction__prepare="off") as gate:
        client = without_a_key(gate)

        def ask(words: str, before: str | None) -> str:
            given: Any = {"previous_response_id": before} if before else {}
            answer: Any = client.responses.create(
                model=WAY.model, input=words, store=True, stream=stream, extra_headers=HIDDEN, **given
            )
            return str([*answer][-1].response.id if stream else answer.id)

        for talk in talks_of_both_keys(gate):
            before = ask(f"talk {talk}", None)
            own = gate.records[-1].org
            since = len(gate.records)
            for turn in range(3):
                if not knows:
                    ring(gate).owners._names.clear()
                before = ask(f"talk {talk}, turn {turn}", before)
                assert gate.records[-1].org == own
            if not knows:
                ring(gate).owners._names.clear()
            client.responses.compact(model=WAY.model, previous_response_id=before, extra_headers=HIDDEN)
            assert gate.records[-1].org == own
            assert client.responses.retrieve(before, extra_headers=HIDDEN).id == before
            if knows:
                assert set(used(gate, since)) == {own}
        assert not knows or gate.violations == []


def test_what_no_account_has_is_refused_as_the_provider_does(monkeypatch):
    with two_keys(monkeypatch, compaction__prepare="off") as gate:
        client = without_a_key(gate)
        with pytest.raises(openai.BadRequestError, match="resp_none"):
            client.responses.create(model=WAY.model, input="hi", previous_response_id="resp_none", extra_headers=HIDDEN)
        assert set(used(gate)) == {"one", "other"}
        assert len(used(gate)) <= 3  # once more without the compaction that was asked for
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve("resp_none", extra_headers=HIDDEN)


def test_a_clients_own_compaction_reads_what_the_conversations_key_has_sealed(monkeypatch):
    with two_keys(monkeypatch, compaction__prepare="off") as gate:
        client = without_a_key(gate)
        for talk in talks_of_both_keys(gate):
            items: list[Any] = [{"role": "user", "content": f"talk {talk}: FACT-00"}]
            answer = client.responses.create(
                model=WAY.model, input=items, store=False, include=["reasoning.encrypted_content"],
                reasoning={"effort": "high"}, extra_headers=HIDDEN,
            )  # fmt: skip
            items += [json.loads(item.model_dump_json(exclude_none=True)) for item in answer.output]
            assert any("encrypted_content" in item for item in items)
            client.responses.compact(model=WAY.model, input=items, extra_headers=HIDDEN)
            assert len(set(used(gate, -2))) == 1
        assert gate.violations == []


def ring(gate: Running) -> Any:
    return next(iter(gate.app.conversations.keyrings._known.values()))


def test_no_key_reaches_the_log_the_store_or_an_answer(monkeypatch, tmp_path, caplog):
    kept = {"store__kind": "sqlite", "store__path": str(tmp_path / "c.db"), "store__key_file": str(tmp_path / "key")}
    with caplog.at_level(logging.DEBUG), two_keys(monkeypatch, compaction__prepare="off", **kept) as gate:
        agent = agent_without_a_key(gate)
        hold(agent, "steps", 8)
        refused_now(gate, 401)
        hold(agent, "steps", 2)
        told = " ".join(" ".join(turn.headers.values()) for turn in agent.turns) + caplog.text
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert not any(key in told or key.encode() in stored for key in TWO.values())
