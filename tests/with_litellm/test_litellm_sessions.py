"""Sessions through litellm: with `install()` every turn is answered, without it they die of the window."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import litellm
import pytest
from agents import fact, run
from lite import Claude, Lite, Routed, headers
from litellm.integrations.custom_logger import CustomLogger
from pages import Name, blocks
from sdks import here

import tidegate
import tidegate.litellm
from tidegate import testing
from tidegate.simulator import SimulatorSettings

pytestmark = pytest.mark.litellm

WINDOW = 4000
TURNS = 30
PLANTED = {f"FACT-{number:02d}" for number in range(0, TURNS, 5)}
SMALL = SimulatorSettings(window=WINDOW, tool_rounds=10**6)

KINDS = pytest.mark.parametrize("kind", [Lite, Claude, Routed], ids=["openai", "anthropic", "router"])
ASYNCHRONOUS = pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "async"])
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@KINDS
@STREAM
@ASYNCHRONOUS
def test_thirty_turns_over_a_window_of_4000_tokens(kind, stream, asynchronous):
    with here(SMALL, window=WINDOW) as place:
        tidegate.litellm.install(settings=place.given)
        agent = kind(place.url, stream=stream)
        run(agent, "steps", TURNS, asynchronous=asynchronous, size=700)
        assert len(agent.turns) == TURNS
        assert len(json.dumps(agent.history)) // 4 > 5 * WINDOW
        assert place.violations == []
        assert {record.outcome for record in place.of("main")} == {"answered"}
        assert set(place.of("main")[-1].facts) >= PLANTED
        assert {turn.headers["x-tidegate-action"] for turn in agent.turns} == {"relayed", "compacted", "replayed"}


def test_what_in_process_shows(monkeypatch):
    monkeypatch.setenv("TIDEGATE_STORE__KIND", "memory")
    with here(SMALL) as place:
        exec(blocks("python")[Name("in-process.md", "LiteLLM")], {})
        agent = Lite(place.url, stream=False)
        run(agent, "single", 12, asynchronous=False, size=700)
        assert any(turn.headers["x-tidegate-action"] == "recovered" for turn in agent.turns)


@KINDS
@STREAM
@ASYNCHRONOUS
def test_where_nobody_knows_the_window_a_refusal_is_recovered_from(kind, stream, asynchronous):
    with here(SMALL) as place:
        tidegate.litellm.install(settings=place.given)
        agent = kind(place.url, stream=stream)
        run(agent, "single", 12, asynchronous=asynchronous, size=700)
        assert len(agent.turns) == 12
        assert [record.outcome for record in place.records].count("overflow") == 1
        assert any(turn.headers["x-tidegate-action"] == "recovered" for turn in agent.turns)
        assert fact(0)[:7] in set(place.of("main")[-1].facts)


@KINDS
@STREAM
@ASYNCHRONOUS
@pytest.mark.parametrize("taken_away", [False, True], ids=["never installed", "uninstalled"])
def test_without_it_the_same_session_dies(kind, stream, asynchronous, taken_away):
    with here(SMALL) as place:
        if taken_away:
            tidegate.litellm.install(settings=place.given)
            tidegate.litellm.uninstall()
        agent = kind(place.url, stream=stream)
        with pytest.raises(litellm.ContextWindowExceededError):
            run(agent, "single", 12, asynchronous=asynchronous, size=700)


def test_messages_may_be_litellms_own_objects_and_arguments_positional():
    with here(SMALL, window=WINDOW) as place:
        tidegate.litellm.install(settings=place.given)
        there = {"api_base": f"{place.url}/v1", "api_key": "sk-1"}
        history: list[Any] = []
        actions = set()
        for number in range(12):
            history.append({"role": "user", "content": f"{fact(number)} {'word ' * 500}"})
            response = litellm.completion("openai/shop-model", list(history), **there)
            history.append(response.choices[0].message)
            actions.add(headers(response)["x-tidegate-action"])
        assert "compacted" in actions
        assert place.violations == []
        assert isinstance(response, litellm.ModelResponse)


def test_callers_with_keys_of_their_own_share_nothing():
    with here(SMALL, window=WINDOW) as place:
        tidegate.litellm.install(settings=place.given)
        there = {"model": "openai/shop-model", "api_base": f"{place.url}/v1", "api_key": "sk-1"}
        turns = [{"role": role, "content": "word " * 350} for _ in range(6) for role in ("user", "assistant")]
        history = [*turns, {"role": "user", "content": "go on"}]

        def action(key: str) -> str:
            response = litellm.completion(messages=history, metadata={"user_api_key": key}, **there)
            return headers(response)["x-tidegate-action"]

        assert [action(key) for key in ("one", "one", "two", "two")] == ["compacted", "replayed"] * 2


def test_what_litellm_knows_of_a_model_is_its_window():
    litellm.register_model({"openai/shop-registered": {"max_input_tokens": WINDOW, "litellm_provider": "openai"}})
    with here(SMALL) as place:
        tidegate.litellm.install(settings=place.given)
        agent = Lite(place.url, model="shop-registered", stream=False)
        run(agent, "single", 8, asynchronous=False, size=700)
        assert {record.outcome for record in place.records} == {"answered"}
        assert "compacted" in {turn.headers["x-tidegate-action"] for turn in agent.turns}


def test_rules_of_a_block_and_of_a_request_and_the_switch_hold():
    with here(SMALL) as place:
        tidegate.litellm.install(settings=place.given)
        there = {"model": "openai/shop-model", "api_base": f"{place.url}/v1", "api_key": "sk-1"}
        turns = [{"role": role, "content": "word " * 200} for _ in range(6) for role in ("user", "assistant")]
        history = [*turns, {"role": "user", "content": "go on"}]

        def action(**more: Any) -> str:
            return headers(litellm.completion(messages=history, **there, **more)).get("x-tidegate-action", "")

        assert action() == "relayed"
        with testing.untouched(), tidegate.policy(trigger="tokens", max_tokens=1500):
            assert action() == "relayed"
        assert action(extra_headers={"x-tidegate-bypass": "1", "x-mine": "2"}) == "relayed"
        with tidegate.policy(trigger="tokens", max_tokens=1500):
            assert action() == "compacted"


class Heard(CustomLogger):
    def __init__(self) -> None:
        super().__init__()
        self.succeeded: list[str] = []
        self.failed: list[str] = []

    async def async_log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        self.succeeded.append(kwargs["litellm_call_id"])

    async def async_log_failure_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        self.failed.append(kwargs["litellm_call_id"])


def test_litellms_callbacks_hear_of_every_call_that_was_made():
    with here(SMALL) as place:
        tidegate.litellm.install(settings=place.given)
        listener = Heard()
        before = litellm.callbacks
        litellm.callbacks = [listener]
        try:

            async def session() -> None:
                history: list[Any] = []
                for number in range(8):
                    history.append({"role": "user", "content": f"{fact(number)} {'word ' * 500}"})
                    there = {"api_base": f"{place.url}/v1", "api_key": "sk-1"}
                    response = await litellm.acompletion("openai/shop-model", list(history), **there)
                    history.append(response.choices[0].message)
                for _ in range(100):
                    await asyncio.sleep(0.02)
                    if len(listener.succeeded) + len(listener.failed) >= len(place.records):
                        return

            asyncio.run(session())
        finally:
            litellm.callbacks = before
        outcomes = [record.outcome for record in place.records]
        assert "overflow" in outcomes
        assert place.of("summary")
        assert len(listener.succeeded) == outcomes.count("answered")
        assert len(listener.failed) == outcomes.count("overflow")


@ASYNCHRONOUS
def test_a_stream_may_be_left_early(asynchronous):
    with here(SimulatorSettings(window=WINDOW, answer_tokens=300), window=WINDOW) as place:
        tidegate.litellm.install(settings=place.given)
        there = {"model": "openai/shop-model", "api_base": f"{place.url}/v1", "api_key": "sk-1", "stream": True}
        asked = {"messages": [{"role": "user", "content": "tell me"}], **there}

        async def left() -> int:
            response = await litellm.acompletion(**asked)
            async for _ in response:
                break
            del response
            await asyncio.sleep(0.1)
            return len([task for task in asyncio.all_tasks() if "drive" in repr(task)])

        if asynchronous:
            assert asyncio.run(left()) == 0
        else:
            response = litellm.completion(**asked)
            next(iter(response))
            response.close()
            assert list(response) == []
