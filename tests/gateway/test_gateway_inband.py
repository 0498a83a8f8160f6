"""Compaction within the request (`context_management`): asked for where nothing else helps or its turn has come, taken
back where the provider does not have it, and never a reason why a client gets less than its own request would."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import openai
import pytest
from agents import SYSTEM, Turn, fact, hold, imagine, output
from native import WAYS, PlainResponses, Refused, Way, done, leave, natively, soon
from running import Running

from tidegate.simulator import Step
from tidegate.simulator.compaction_settings import ResponsesCompaction

OPENAI = WAYS["openai"]
COPILOT = replace(OPENAI, provider="github-copilot", strategy="openai-inband")
"""Its file lists the way first; here its base URL is the simulated OpenAI's."""
SEALED = {"reasoning": {"effort": "low"}, "include": ["reasoning.encrypted_content"]}
FIELD = b',"context_management":[{"type":"compaction","compact_threshold":6800}]'
TURNS = 30
SIZE = 900


def planted(turns: int = TURNS) -> set[str]:
    return {f"FACT-{number:02d}" for number in range(0, turns, 5)}


def asked(gate: Running) -> list[Any]:
    return [record for record in gate.of("main") if b"context_management" in record.body]


def compactions(agent: Any) -> int:
    return sum(item.get("type") == "compaction" for item in agent.history)


def reasons(agent: Any) -> list[str]:
    return [turn.headers.get("x-tidegate-reason", "") for turn in agent.turns]


def at(gate: Running, way: Way = COPILOT, *, stream: bool = False, **extra: Any) -> Any:
    agent = PlainResponses(gate.base, model=way.model, stream=stream, key="sk-agent-1")
    agent.path, agent.extra = f"/{way.provider}/v1/responses", extra or SEALED
    return agent


# -- clients that send sealed items back -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("boundary", "stream"),
    [
        ("keep_users", True),
        ("keep_all_and_bill", False),
        pytest.param("keep_users", False, marks=pytest.mark.slow),
        pytest.param("drop_all", True, marks=pytest.mark.slow),
    ],
)
def test_a_client_that_carries_what_is_sealed_carries_compactions_too(boundary, stream):
    with natively(COPILOT, responses_compaction=ResponsesCompaction(boundary=boundary)) as gate:
        agent = at(gate, stream=stream)
        hold(agent, "steps", TURNS, SIZE)
        assert gate.violations == []
        assert all(record.outcome == "answered" for record in gate.of("main"))
        assert set(gate.of("main")[-1].facts) >= planted()
        assert compactions(agent) >= 3
        assert not gate.of("summary")
        assert not gate.of("compaction")
        assert [turn.headers["x-tidegate-action"] for turn in agent.turns] == ["relayed"] * TURNS
        assert {turn.headers.get("x-tidegate-strategy") for turn in agent.turns[-20:]} == {"openai-inband"}
        items = [item for item in agent.history if item.get("type") == "compaction"]
        assert json.dumps(items[-1])[1:-1] in gate.of("main")[-1].body.decode()  # as it was given, byte for byte


def test_no_byte_changes_but_for_the_field():
    with natively(COPILOT) as gate:
        agent = at(gate)
        hold(agent, "steps", 5, SIZE)
        before = json.dumps({**agent.request(), "stream": False}).encode()
        agent.ask()
        assert gate.of("main")[-1].body == before[:-1] + FIELD + b"}"


def test_far_below_the_threshold_nothing_is_asked():
    with natively(COPILOT) as gate:
        hold(at(gate), "steps", 3, SIZE)
        assert asked(gate) == []


@pytest.mark.parametrize(
    ("flags", "extra"),
    [
        ({}, {"store": False}),
        ({"compaction.strategies": ["summary"]}, SEALED),
        ({"compaction.enabled": False}, SEALED),
        ({}, {**SEALED, "context_management": None}),
        ({"providers.github-copilot.strategies.responses": ["summary"]}, SEALED),
        ({"providers.github-copilot.inband": False}, SEALED),
    ],
    ids=["never sent anything sealed", "forbidden", "switched off", "the client decides itself", "not listed", "no"],
)  # fmt: skip
def test_who_is_not_asked_for(flags, extra):
    with natively(COPILOT, flags=flags) as gate:
        agent = at(gate, **extra)
        hold(agent, "steps", 6, SIZE)
        assert not any(b'"compact_threshold"' in record.body for record in gate.of("main"))
        assert gate.violations == []


def test_every_client_may_be_meant():
    with natively(COPILOT, toml='[compaction]\ninband = "always"\n') as gate:
        agent = at(gate, store=False)
        hold(agent, "steps", 20, SIZE)
        assert compactions(agent) >= 2
        assert gate.violations == []
        assert set(gate.of("main")[-1].facts) >= planted(20)


def test_a_client_that_leaves_the_item_out_gets_summaries_from_then_on():
    class Forgetful(PlainResponses):
        def take(self, turn: Turn) -> Turn:
            turn.items = [item for item in turn.items if item["type"] != "compaction"]
            return super().take(turn)

    with natively(COPILOT, toml='[compaction]\ninband = "always"\n') as gate:
        agent = Forgetful(gate.base, model="gpt-5.1", stream=True, key="sk-agent-1")
        agent.path = "/github-copilot/v1/responses"
        hold(agent, "steps", TURNS, SIZE)
        assert gate.violations == []
        assert all(record.outcome == "answered" for record in gate.of("main"))
        assert set(gate.of("main")[-1].facts) >= planted()
        used = [turn.headers.get("x-tidegate-strategy") for turn in agent.turns]
        assert used.count("openai-inband") <= 5
        assert used[-1] == "summary"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_where_the_field_is_ignored_the_next_way_is_taken(stream):
    """A 200 without an item did not happen; the provider's own count shows it."""
    with natively(COPILOT, responses_compaction=ResponsesCompaction(in_band="ignored")) as gate:
        agent = at(gate, stream=stream)
        hold(agent, "steps", TURNS, SIZE)
        assert gate.violations == []
        assert set(gate.of("main")[-1].facts) >= planted()
        assert gate.of("summary")
        assert asked(gate)
        assert all(record.outcome == "answered" for record in gate.of("main"))


# -- where it is not the first way -----------------------------------------------------------------------------------


def test_the_ways_before_it_come_first():
    with natively(OPENAI) as gate:
        agent = at(gate, OPENAI)
        hold(agent, "steps", 14, SIZE)
        assert asked(gate) == []
        assert {turn.headers.get("x-tidegate-strategy") for turn in agent.turns} - {None} == {"openai"}


def test_it_is_asked_for_where_they_fail_before_a_summary_is_written():
    gone = ResponsesCompaction(path="404", trigger="refused")
    with natively(OPENAI, responses_compaction=gone, flags={"compaction.prepare": "off"}) as gate:
        agent = at(gate, OPENAI)
        hold(agent, "steps", TURNS, SIZE)
        assert gate.violations == [] or {violation.rule for violation in gate.violations} <= {"item-type"}
        assert not gate.of("summary")
        assert compactions(agent) >= 3
        assert set(gate.of("main")[-1].facts) >= planted()


def test_a_history_over_the_window_is_not_left_to_it():
    """The provider compacts no more than its window: the history is summed up."""
    with natively(COPILOT, flags={"compaction.prepare": "off"}) as gate:
        agent = at(gate)
        hold(agent, "steps", 2, SIZE)
        imagine(agent, "steps", 9, SIZE)
        agent.history.append(agent.user("Where were we?"))
        turn = agent.ask()
        assert turn.headers["x-tidegate-strategy"] == "summary"
        assert asked(gate) == []


# -- histories that the provider holds -------------------------------------------------------------------------------


class Held(PlainResponses):
    """Sends what is new only: the provider holds the rest."""

    sent = 0
    last = conversation = ""

    def request(self) -> dict[str, Any]:
        whole = {**super().request(), "input": self.history[self.sent :], "store": True}
        if self.conversation:
            return {**whole, "conversation": self.conversation}
        return {**whole, "previous_response_id": self.last} if self.last else whole

    def ask(self) -> Turn:
        status, headers, raw = self.post({**self.request(), "stream": self.stream})
        if status != 200:
            raise Refused(status, headers, raw)
        items = done(raw) if self.stream else json.loads(raw)["output"]
        self.last = _id_of(raw, streamed=self.stream)
        turn = self.take(Turn(items, [item["call_id"] for item in items if item["type"] == "function_call"], headers))
        self.sent = len(self.history)
        return turn


def _id_of(raw: bytes, *, streamed: bool) -> str:
    if not streamed:
        return str(json.loads(raw)["id"])
    events = [json.loads(line[5:]) for line in raw.decode().splitlines() if line.startswith("data: {")]
    return str(next(event["response"]["id"] for event in events if event["type"] == "response.created"))


def holding(gate: Running, *, stream: bool = False, conversation: bool = False) -> Held:
    agent = Held(gate.base, model="gpt-5.1", stream=stream, key="sk-agent-1")
    agent.path = "/openai/v1/responses"
    if conversation:
        agent.conversation = conversation_at(gate)
    return agent


@pytest.mark.parametrize(
    ("conversation", "stream"),
    [
        (False, True),
        (True, False),
        pytest.param(False, False, marks=pytest.mark.slow),
        pytest.param(True, True, marks=pytest.mark.slow),
    ],
)
def test_what_the_provider_holds_it_is_asked_to_compact(conversation, stream):
    with natively(OPENAI) as gate:
        agent = holding(gate, stream=stream, conversation=conversation)
        hold(agent, "steps", TURNS, SIZE)
        assert gate.violations == []
        assert all(record.outcome == "answered" for record in gate.of("main"))
        assert set(gate.of("main")[-1].facts) >= planted()
        assert compactions(agent) >= 3
        assert not gate.of("summary")
        assert reasons(agent)[-1] == "asked_in_band"


def test_one_that_wants_to_be_left_alone_is():
    with natively(OPENAI) as gate:
        agent = holding(gate)
        hold(agent, "steps", 1, 50)
        agent.history.append(agent.user("Where were we?"))
        plain = agent.headers
        agent.headers = lambda: {**plain(), "x-tidegate-bypass": "1"}
        agent.ask()
        assert asked(gate) == []


def test_where_less_input_is_taken_that_counts():
    """Of a window of 400,000 tokens 272,000 are taken as input: 85 % of the window would come too late."""
    with natively(OPENAI, known=False) as gate:
        agent = holding(gate)
        hold(agent, "steps", 2, 50)
        assert b'"compact_threshold":231200}' in gate.of("main")[-1].body


def test_an_unknown_window_is_left_to_the_provider():
    with natively(OPENAI, known=False) as gate:
        agent = holding(gate)
        agent.model = "model-nobody-knows"
        hold(agent, "steps", 2, 50)
        assert asked(gate) == []
        assert reasons(agent)[-1] == "server_held"


def test_where_held_histories_are_not_compacted_the_client_sees_the_providers_own_refusal():
    with natively(OPENAI, responses_compaction=ResponsesCompaction(in_band="ignored")) as gate:
        with pytest.raises(Refused) as refused:
            hold(holding(gate), "steps", TURNS, SIZE)
        assert refused.value.status == 400
        assert json.loads(refused.value.body)["error"]["code"] == "context_length_exceeded"
        assert gate.of("main")[-1].outcome == "overflow"
        assert gate.of("main")[-2].outcome == "answered"  # once, and no more


# -- whatever goes wrong ---------------------------------------------------------------------------------------------

ONCE = {
    "400": {"do": "error", "status": 400},
    "an unknown field": {
        "do": "error", "status": 400,
        "body": {"error": {"message": "Unknown parameter: 'context_management'.", "type": "invalid_request_error",
                           "param": "context_management", "code": "unknown_parameter"}},
    },
    "422": {"do": "error", "status": 422},
    "500": {"do": "error", "status": 500},
    "529": {"do": "error", "status": 529},
    "an error in the stream": {"do": "error", "status": 500, "in_stream": True},
    "a page": {"do": "html", "status": 502},
    "dropped": {"do": "drop", "times": 2},
    "nothing in time": {"do": "hang", "seconds": 3},
}  # fmt: skip
"""What makes the client's own request go out in place of the one that asks."""

AS_IT_IS = {
    "401": ({"do": "error", "status": 401}, 401),
    "403": ({"do": "error", "status": 403}, 403),
    "429": ({"do": "error", "status": 429}, 429),
    "garbage": ({"do": "garbage"}, 200),
    "no item": ({"do": "no_artifact"}, 200),
    "two items": ({"do": "two_artifacts"}, 200),
    "a bad item": ({"do": "bad_artifact"}, 200),
    "cut by length": ({"do": "length"}, 200),
    "a refusal": ({"do": "refusal"}, 200),
}
"""What the client gets as it came: the provider's own answer."""

IMPATIENT = {"upstream.read_timeout": 0.5, "compaction.prepare": "off"}


def prepared(gate: Running, kind: str) -> Any:
    """An agent whose next request asks for a compaction that is due."""
    agent = holding(gate, stream=True) if kind == "held" else at(gate, stream=True)
    hold(agent, "steps", *((2, 50) if kind == "held" else (4, 1500)))
    agent.history.append(agent.user("Where were we?"))
    return agent


CARRIED = {"an unknown field", "500", "dropped", "nothing in time"}


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        *(("held", fault) for fault in ONCE),
        *(pytest.param("carried", fault, marks=() if fault in CARRIED else pytest.mark.slow) for fault in ONCE),
    ],
)
def test_what_is_refused_with_the_field_goes_out_without(kind, fault):
    way = OPENAI if kind == "held" else COPILOT
    with natively(way, flags=IMPATIENT) as gate:
        agent = prepared(gate, kind)
        before = len(gate.of("main"))
        gate.simulator.script(Step(on="main", **ONCE[fault]))
        turn = agent.ask()
        sent = gate.of("main")[before:]
        # A connection that proves closed costs one more sending of the same.
        assert [b"context_management" in record.body for record in sent][-2:] == [True, False]
        assert len(sent) == (3 if fault == "dropped" else 2)
        assert turn.headers["x-tidegate-reason"] in ("in_band_refused", "below_threshold")
        agent.results(turn, output(8, 50))
        agent.history.append(agent.user("And now?"))
        again = agent.ask()
        assert b"context_management" not in gate.of("main")[-1].body  # for a day, or for minutes
        assert again.headers.get("x-tidegate-strategy") != "openai-inband"


@pytest.mark.parametrize(
    ("kind", "fault"), [*(("carried", fault) for fault in AS_IT_IS), ("held", "429"), ("held", "no item")]
)
def test_any_other_answer_is_the_clients(kind, fault):
    way, (given, status) = (OPENAI if kind == "held" else COPILOT), AS_IT_IS[fault]
    with natively(way, flags=IMPATIENT) as gate:
        agent = prepared(gate, kind)
        before = len(gate.of("main"))
        gate.simulator.script(Step(on="main", times=5, **given))
        found, headers, _raw = agent.post({**agent.request(), "stream": True})
        assert found == status
        assert headers["x-tidegate-action"] == "relayed"
        assert len(gate.of("main")[before:]) == 1


def wrong(name: str) -> dict[str, Any]:
    text = f"Invalid 'tools[0].name': '{name}'. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
    return {
        "error": {"message": text, "type": "invalid_request_error", "param": "tools[0].name", "code": "invalid_value"}
    }


@pytest.mark.parametrize("kind", ["held", "carried"])
def test_what_is_refused_both_ways_is_refused_as_the_clients_own(kind):
    with natively(OPENAI if kind == "held" else COPILOT, flags=IMPATIENT) as gate:
        agent = prepared(gate, kind)
        before = len(gate.of("main"))
        gate.simulator.script(
            Step(do="error", status=400, body=wrong("first")),
            Step(do="error", status=400, body=wrong("second")),
        )
        status, _headers, raw = agent.post({**agent.request(), "stream": True})
        assert (status, json.loads(raw)) == (400, wrong("second"))
        assert len(gate.of("main")[before:]) == 2
        agent.ask()
        assert b"context_management" in gate.of("main")[-1].body  # nothing says that it was the field


def test_a_conversation_is_added_to_once():
    """After no answer nobody knows whether the provider has taken the items in: nothing is sent again."""
    with natively(OPENAI, flags=IMPATIENT) as gate:
        agent = holding(gate, conversation=True)
        hold(agent, "steps", 2, 50)
        agent.history.append(agent.user("Where were we?"))
        before = len(gate.of("main"))
        gate.simulator.script(Step(do="error", status=500))
        with pytest.raises(Refused):
            agent.ask()
        assert len(gate.of("main")[before:]) == 1


def test_a_client_that_leaves_takes_it_along():
    with natively(OPENAI, delay=20) as gate:
        body = {"model": "gpt-5.1", "input": "Hello", "conversation": conversation_at(gate)}
        leave(gate.base, "/openai/v1/responses", body, lambda: bool(gate.of("main")))
        soon(lambda: gate.of("main")[0].outcome == "cancelled")
        assert len(asked(gate)) == len(gate.of("main")) == 1


def conversation_at(gate: Running) -> str:
    client = openai.OpenAI(base_url=f"{gate.base}/openai/v1", api_key="sk-agent-1", max_retries=0)
    return client.conversations.create().id


def test_a_stream_that_breaks_is_cut_for_the_client_too():
    with natively(COPILOT, flags=IMPATIENT) as gate:
        agent = prepared(gate, "carried")
        gate.simulator.script(Step(do="cut", after=4))
        with pytest.raises(Exception, match=r"IncompleteRead|Remote"):
            agent.ask()


def test_the_sdk_sees_what_the_provider_made():
    with natively(COPILOT) as gate:
        client = openai.OpenAI(base_url=f"{gate.base}/github-copilot/v1", api_key="sk-agent-1", max_retries=0)
        history: list[Any] = [{"role": "user", "content": fact(0)}]
        kinds: list[str] = []
        for number in range(12):
            with client.responses.stream(
                model="gpt-5.1", instructions=SYSTEM, input=history, store=False, **SEALED, max_output_tokens=200
            ) as stream:
                made = stream.get_final_response().output
            kinds += [item.type for item in made]
            history += [item.model_dump(exclude_none=True) for item in made]
            for item in history:
                for part in item.get("content") or () if isinstance(item.get("content"), list) else ():
                    part.pop("parsed", None)
            history.append({"role": "user", "content": f"Step {number}. " + output(number, 700)})
        assert "compaction" in kinds
        assert gate.violations == []
