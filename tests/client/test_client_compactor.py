"""Lists in, new lists out: for people who keep the messages themselves, in all three APIs."""

from __future__ import annotations

import copy
from typing import Any

import anthropic
import openai
import pytest
from sdks import Here, here

import tidegate
from tidegate.simulator import SimulatorSettings, Step

WINDOW = 3000
DIALECTS = pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
WAYS = pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "async"])


def client(place: Here, dialect: str, *, asynchronous: bool = False) -> Any:
    if dialect == "messages":
        kind: Any = anthropic.AsyncAnthropic if asynchronous else anthropic.Anthropic
        return kind(base_url=place.url, api_key="k", max_retries=0)
    kind = openai.AsyncOpenAI if asynchronous else openai.OpenAI
    return kind(base_url=f"{place.url}/v1", api_key="k", max_retries=0)


def compactor(place: Here, dialect: str, *, asynchronous: bool = False, **how: Any) -> tidegate.Compactor:
    how = {"window": WINDOW, **how}
    return tidegate.Compactor(
        client(place, dialect, asynchronous=asynchronous),
        model="shop-model",
        dialect=dialect,  # type: ignore[arg-type]
        settings=place.given,
        **how,
    )


def talk(turns: int, words: int = 60) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = []
    for number in range(turns):
        said += [
            {"role": "user", "content": f"FACT-{number:02d} question " + "and more " * words},
            {"role": "assistant", "content": f"answer {number} " + "and more " * words},
        ]
    return [*said, {"role": "user", "content": "And now?"}]


async def compacted(made: tidegate.Compactor, messages: Any, *, asynchronous: bool, **how: Any) -> Any:
    return await made.compact(messages, **how) if asynchronous else made.compact_sync(messages, **how)


def words(messages: Any) -> str:
    return str(messages)


@DIALECTS
@WAYS
async def test_a_list_that_is_due_comes_back_smaller_and_the_given_one_is_left_alone(dialect, asynchronous):
    with here(SimulatorSettings(window=WINDOW)) as place:
        made = compactor(place, dialect, asynchronous=asynchronous, system="You are a shop.")
        messages = talk(20)
        before = copy.deepcopy(messages)
        assert made.should_compact(messages)
        got = await compacted(made, messages, asynchronous=asynchronous)
        assert messages == before
        assert got.tokens_after < WINDOW * 0.6 < got.tokens_before
        assert made.estimate(got.messages) <= got.tokens_after + 50
        assert got.dropped_count >= len(messages) - len(got.messages)
        assert got.summary
        assert got.strategy == "summary"
        assert got.calls >= 1
        assert all(f"FACT-{number:02d}" in words(got.messages) for number in range(20))
        assert got.messages[-1] == messages[-1]
        assert not any(message.get("role") == "system" for message in got.messages)
        assert place.violations == []


@DIALECTS
async def test_what_is_not_due_is_none(dialect):
    with here(SimulatorSettings()) as place:
        made = compactor(place, dialect, window=100_000)
        assert not made.should_compact(talk(3))
        assert made.check(talk(3)).reason == "below_threshold"
        assert made.compact_sync(talk(3)) is None
        assert await made.compact(talk(3)) is None
        assert place.records == []


@DIALECTS
def test_force_halves_a_list_of_any_size(dialect):
    with here(SimulatorSettings()) as place:
        made = compactor(place, dialect, window=100_000)
        got = made.compact_sync(talk(10), force=True)
        assert got is not None
        assert got.tokens_after <= got.tokens_before * 0.6


def test_the_same_list_again_and_one_that_goes_on_need_no_other_call():
    with here(SimulatorSettings(window=WINDOW)) as place:
        made = compactor(place, "chat")
        messages = talk(20)
        first = made.compact_sync(messages)
        longer = [*messages, {"role": "assistant", "content": "so"}, {"role": "user", "content": "go on"}]
        again = made.compact_sync(longer)
        assert first is not None
        assert again is not None
        assert again.messages[: len(first.messages)] == first.messages
        assert (again.calls, again.summary) == (0, first.summary)
        assert len(place.of("summary")) == first.calls


def test_a_list_that_was_compacted_and_grew_is_compacted_again_with_all_that_was_known():
    with here(SimulatorSettings(window=WINDOW)) as place:
        made = compactor(place, "chat")
        first = made.compact_sync(talk(20))
        assert first is not None
        later = [
            {**message, "content": message["content"].replace("FACT-", "NEWS-")}
            if message["role"] == "user"
            else message
            for message in talk(12)
        ]
        second = made.compact_sync([*first.messages[:-1], *later])
        assert second is not None
        assert all(f"FACT-{number:02d}" in words(second.messages) for number in range(20))


def test_a_focus_reaches_the_summarizer():
    with here(SimulatorSettings(window=WINDOW)) as place:
        compactor(place, "chat").compact_sync(talk(20), focus="the prices")
        assert b"Additional focus: the prices" in place.of("summary")[0].body


def test_rules_are_those_of_the_configuration():
    with here(SimulatorSettings()) as place:
        by_tokens = compactor(place, "chat", window=None, max_tokens=500, preserve_last_n=2, policy="rubypi")
        assert by_tokens.should_compact(talk(5))
        assert not by_tokens.should_compact(talk(1, words=10))
        got = by_tokens.compact_sync(talk(5))
        assert got is not None
        assert len(got.messages) <= 4
        with pytest.raises(tidegate.ConfigError, match=r"unknown rule .*did you mean|allowed: .*threshold_percent"):
            compactor(place, "chat", treshold=3)


def test_another_model_sums_up_where_one_is_named():
    with here(SimulatorSettings(window=WINDOW)) as place:
        compactor(place, "chat", summary_model="small").compact_sync(talk(20))
        assert b'"small"' in place.of("summary")[0].body


@DIALECTS
@WAYS
async def test_a_summarizer_that_fails_is_told(dialect, asynchronous):
    with here(SimulatorSettings(window=WINDOW)) as place:
        made = compactor(place, dialect, asynchronous=asynchronous)
        place.simulator.script(Step(do="error", status=401, times=3))
        with pytest.raises(tidegate.CompactionFailed, match="summary_http_401"):
            await compacted(made, talk(20), asynchronous=asynchronous)


async def test_without_a_client_sizes_can_be_had_and_nothing_can_be_compacted():
    made = tidegate.Compactor(model="gpt-5.5", window=WINDOW, settings={"store": {"kind": "memory"}})
    assert made.should_compact(talk(20))
    with pytest.raises(TypeError, match="has no client"):
        made.compact_sync(talk(20))
    with pytest.raises(TypeError, match="has no client"):
        await made.compact(talk(20))


async def test_a_blocking_client_serves_an_asynchronous_program_and_not_the_other_way():
    with here(SimulatorSettings(window=WINDOW)) as place:
        assert await compactor(place, "chat").compact(talk(20)) is not None
        with pytest.raises(TypeError, match="await `compact`"):
            compactor(place, "chat", asynchronous=True).compact_sync(talk(20))


def test_a_client_of_another_kind_is_told_so():
    with pytest.raises(tidegate.NoSuchApi, match="openai or anthropic"):
        tidegate.Compactor(object(), model="m")
    with pytest.raises(tidegate.NoSuchApi, match="does not speak the chat API"):
        tidegate.Compactor(
            anthropic.Anthropic(api_key="k"), model="m", dialect="chat", settings={"store": {"kind": "memory"}}
        ).estimate(talk(1))


def test_azure_s_client_is_asked_at_its_deployment():
    azure = openai.AzureOpenAI(azure_endpoint="https://x.example", api_version="2026-01-01", api_key="k")
    made = tidegate.Compactor(azure, model="mine", window=WINDOW, settings={"store": {"kind": "memory"}})
    place = made._sending(made._list(talk(1))).place
    assert place.root == "https://x.example/openai/deployments/mine"
    assert place.query == b"api-version=2026-01-01"
