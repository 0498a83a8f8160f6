"""Listeners hear of the slow part of a compaction, once as it begins and once as it ends; rules of a block count."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest
from agents import output
from sdks import Here, here

import tidegate
from tidegate import testing
from tidegate.simulator import SimulatorSettings, Step

WINDOW = 3000
OFF = {"compaction": {"prepare": "off"}}


@dataclass
class Heard:
    began: list[tidegate.Compacting] = field(default_factory=list)
    ended: list[tidegate.Compacted] = field(default_factory=list)


@pytest.fixture
def heard() -> Iterator[Heard]:
    told = Heard()
    away = tidegate.on_compacting(told.began.append), tidegate.on_compacted(told.ended.append)
    yield told
    for remove in away:
        remove()


def messages(count: int = 16) -> list[Any]:
    said: list[Any] = []
    for number in range(count):
        said += [
            {"role": "user", "content": f"FACT-{number:02d} " + output(number, 100)},
            {"role": "assistant", "content": output(number, 100)},
        ]
    return [*said, {"role": "user", "content": "and now?"}]


def ask(place: Here, *, count: int = 16, asynchronous: bool = False, **more: Any) -> Any:
    kind: Any = openai.AsyncOpenAI if asynchronous else openai.OpenAI
    client = tidegate.wrap(
        kind(base_url=f"{place.url}/v1", api_key="k", max_retries=0), settings={**place.given, **OFF}
    )
    create = client.chat.completions.with_raw_response.create
    body = {"model": "m", "messages": messages(count), "max_tokens": 50, **more}
    return asyncio.run(create(**body)) if asynchronous else create(**body)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "async"])
def test_a_compaction_is_told_when_it_begins_and_when_it_ends(heard, asynchronous):
    with here(SimulatorSettings(window=WINDOW), window=WINDOW) as place:
        got = ask(place, asynchronous=asynchronous)
        (began,), (ended,) = heard.began, heard.ended
        assert (began.why, began.model, began.request_id) == ("threshold", "m", got.headers["x-tidegate-request-id"])
        assert (ended.outcome, ended.strategy, ended.calls) == ("compacted", "summary", 1)
        assert ended.dropped_count > 10
        assert ended.tokens_after < ended.tokens_before == began.tokens
        assert "FACT-00" in ended.summary
        assert "FACT-00" not in repr(ended)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "async"])
def test_so_is_one_that_is_prepared_between_turns(heard, asynchronous):
    async def later(client: Any) -> None:
        await client.chat.completions.create(model="m", messages=messages(12), max_tokens=50)
        async with asyncio.timeout(10):
            while not heard.ended:
                await asyncio.sleep(0.01)

    with here(SimulatorSettings(window=WINDOW), window=WINDOW) as place:
        kind: Any = openai.AsyncOpenAI if asynchronous else openai.OpenAI
        client = tidegate.wrap(kind(base_url=f"{place.url}/v1", api_key="k"), settings=place.given)
        if asynchronous:
            asyncio.run(later(client))
        else:
            client.chat.completions.create(model="m", messages=messages(12), max_tokens=50)
            deadline = time.monotonic() + 10
            while not heard.ended and time.monotonic() < deadline:
                time.sleep(0.01)
        (began,), (ended,) = heard.began, heard.ended
        assert (began.why, ended.why, ended.outcome, ended.calls) == ("prepared", "prepared", "compacted", 1)
        assert ended.dropped_count > 0
        assert ended.tokens_before == began.tokens > 0
        assert "FACT-00" in ended.summary


def test_a_replay_is_nothing_slow(heard):
    with here(SimulatorSettings(window=WINDOW), window=WINDOW) as place:
        ask(place)
        ask(place)
        assert len(heard.began) == len(heard.ended) == 1


def test_a_failure_is_an_end(heard):
    with here(SimulatorSettings(window=WINDOW), window=WINDOW) as place:
        place.simulator.script(Step(do="error", status=401, times=2, on="summary"))
        with pytest.raises(openai.BadRequestError):
            ask(place)
        assert heard.ended[0].outcome == "failed"
        assert heard.ended[0].reason == "summary_http_401"
        assert len(heard.began) == len(heard.ended)


async def test_so_is_a_cancellation(heard):
    with here(SimulatorSettings(window=WINDOW, delay=5), window=WINDOW) as place:
        client = tidegate.wrap(
            openai.AsyncOpenAI(base_url=f"{place.url}/v1", api_key="k"), settings={**place.given, **OFF}
        )
        task = asyncio.create_task(client.chat.completions.create(model="m", messages=messages(), max_tokens=50))
        while not heard.began:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [event.outcome for event in heard.ended] == ["cancelled"]


def test_a_listener_that_fails_changes_nothing(heard, caplog):
    def fails(event: object) -> None:
        raise RuntimeError("secret words")

    remove = tidegate.on_compacting(fails)
    with here(SimulatorSettings(window=WINDOW), window=WINDOW) as place:
        assert ask(place).headers["x-tidegate-action"] == "compacted"
    remove()
    assert "RuntimeError" in caplog.text
    assert "secret words" not in caplog.text


def test_a_compactor_tells_too(heard):
    with here(SimulatorSettings(window=WINDOW)) as place:
        client = openai.OpenAI(base_url=f"{place.url}/v1", api_key="k")
        tidegate.Compactor(client, model="m", window=WINDOW, settings=place.given).compact_sync(messages(), force=True)
        assert [event.why for event in heard.ended] == ["requested"]


# -- rules of a block, of a request ----------------------------------------------------------------------------------


def action(place: Here, **more: Any) -> str:
    return str(ask(place, count=6, **more).headers["x-tidegate-action"])


def test_rules_of_a_block_count_in_it_only():
    with here(SimulatorSettings(window=WINDOW), window=WINDOW) as place:
        with tidegate.policy(threshold_percent=20, target_percent=10):
            assert action(place) == "compacted"
        with tidegate.policy(enabled=False):
            assert action(place) == "replayed"
        assert action(place) == "replayed"


def test_blocks_lie_over_each_other():
    with here(SimulatorSettings(window=WINDOW), window=WINDOW) as place:
        with tidegate.policy(threshold_percent=20, target_percent=10), tidegate.policy(enabled=False):
            assert action(place) == "relayed"
        with tidegate.policy(enabled=False), tidegate.policy("rubypi", max_tokens=500):
            assert action(place) == "compacted"


def test_rules_of_one_request_are_told_in_a_header_that_goes_no_further():
    with here(SimulatorSettings(window=WINDOW), window=WINDOW) as place:
        rules = {"x-tidegate-compaction": "threshold_percent=20, target_percent=10"}
        assert action(place, extra_headers=rules) == "compacted"
        assert action(place, extra_headers={"x-tidegate-compaction": "rubypi, max_tokens=300"}) in (
            "compacted",
            "replayed",
        )
        assert not any("x-tidegate" in name for record in place.records for name in record.headers)


@pytest.mark.parametrize("wrong", ["nonsense", "threshold_percent=400", "no_such=1"])
def test_rules_that_are_not_allowed_are_told_to_whoever_wrote_them(wrong):
    with here(SimulatorSettings(window=WINDOW)) as place:
        with pytest.raises((tidegate.ConfigError, openai.APIConnectionError)) as told:
            action(place, extra_headers={"x-tidegate-compaction": wrong})
        assert "x-tidegate-compaction" in str(told.value.__cause__ or told.value)
        assert place.records == []
    with pytest.raises(tidegate.ConfigError), tidegate.policy(threshold_percent=400):
        pass


# -- a program's own tests -------------------------------------------------------------------------------------------


def test_a_program_under_test_can_have_all_pass_untouched():
    with here(SimulatorSettings(window=50_000), window=WINDOW) as place, testing.untouched():
        got = ask(place)
        assert (got.headers["x-tidegate-action"], got.headers["x-tidegate-reason"]) == ("relayed", "testing")
    assert not testing.is_testing()


def test_a_provider_in_the_process_refuses_what_is_too_long():
    with testing.simulator(window=1000) as provider:
        client = openai.OpenAI(base_url=f"{provider.url}/v1", api_key="k", max_retries=0)
        with pytest.raises(openai.BadRequestError) as told:
            client.chat.completions.create(model="m", messages=messages(), max_tokens=20)
        assert tidegate.classify(told.value).kind == "overflow"


def test_recorded_refusals_come_with_what_they_mean():
    recorded = testing.recorded_refusals("openai")
    assert {refusal.verdict.kind for refusal in recorded} >= {"overflow"}
    assert len(testing.recorded_refusals()) > 30
