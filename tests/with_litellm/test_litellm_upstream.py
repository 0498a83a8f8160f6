"""LiteLLM's SDK as the gateway's upstream: providers that no HTTP of ours reaches, in every API, with compaction."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from agents import Chat, Messages, Responses, run
from rawserver import CUT, HOLD, RawServer, chunks, raw_server, stream_head
from running import Running, settings

from tidegate.gateway.server import serving
from tidegate.simulator import SimulatorSettings, Step, serve

pytestmark = pytest.mark.litellm

WINDOW = 4000
TURNS = 30
PLANTED = {f"FACT-{number:02d}" for number in range(0, TURNS, 5)}
SMALL = SimulatorSettings(window=WINDOW, tool_rounds=10**6)
OWN = """
[providers.litellm.sdk.arguments]
api_base = "{url}/v1"

[providers.claude]
title = "Claude by LiteLLM"
through = "litellm"
dialects = ["messages"]
sdk.prefix = "anthropic/"
sdk.arguments.api_base = "{url}"
"""
KINDS: dict[str, tuple[type[Any], str, str]] = {
    "chat": (Chat, "litellm", "openai/shop-model"),
    "responses": (Responses, "litellm", "openai/shop-model"),
    "messages": (Messages, "claude", "claude-sonnet-4-5"),
}
EACH = pytest.mark.parametrize("kind", ["chat", "responses", "messages"])
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@contextmanager
def gateway(simulated: SimulatorSettings = SMALL, *, window: int | None = WINDOW, more: str = "") -> Iterator[Running]:
    known = f'[models."*"]\nwindow = {window}\n' if window else ""
    with (
        serve(simulated) as simulator,
        serving(settings(OWN.replace("{url}", simulator.url) + more + known)) as (base, app),
    ):
        yield Running(base, app, simulator)


def agent(kind: str, base: str, *, stream: bool = False) -> Any:
    shape, provider, model = KINDS[kind]
    return shape(f"{base}/{provider}", model=model, stream=stream)


@EACH
@STREAM
def test_thirty_turns_over_a_window_of_4000_tokens(kind, stream):
    with gateway() as place:
        talker = agent(kind, place.base, stream=stream)
        run(talker, "steps", TURNS, asynchronous=False, size=700)
        assert len(talker.turns) == TURNS
        assert len(json.dumps(talker.history)) // 4 > 5 * WINDOW
        assert place.violations == []
        assert {record.outcome for record in place.of("main")} == {"answered"}
        assert set(place.of("main")[-1].facts) >= PLANTED
        assert {turn.headers["x-tidegate-action"] for turn in talker.turns} == {"relayed", "compacted", "replayed"}


@EACH
@STREAM
def test_where_nobody_knows_the_window_a_refusal_is_recovered_from(kind, stream):
    with gateway(window=None) as place:
        talker = agent(kind, place.base, stream=stream)
        run(talker, "single", 12, asynchronous=False, size=700)
        assert len(talker.turns) == 12
        assert [record.outcome for record in place.records].count("overflow") == 1
        assert any(turn.headers["x-tidegate-action"] == "recovered" for turn in talker.turns)


STATUSES = {400: "bad", 401: "no key", 403: "no", 404: "no model", 422: "bad", 429: "slow down", 500: "oh", 503: "busy"}


@EACH
@STREAM
@pytest.mark.parametrize("status", STATUSES)
def test_refusals_are_the_sdks_own_exceptions(kind, stream, status):
    with gateway() as place:
        talker = agent(kind, place.base, stream=stream)
        talker.history.append(talker.user("hello"))
        headers = {"retry-after": "7"} if status == 429 else {}
        place.simulator.script(Step(do="error", status=status, headers=headers, times=3))
        package: Any = anthropic if kind == "messages" else openai
        with pytest.raises(package.APIStatusError) as caught:
            talker.ask()
        assert caught.value.status_code == status
        assert f"Simulated error {status}." in str(caught.value)
        assert caught.value.response.headers.get("retry-after") == headers.get("retry-after")
        assert len(place.records) == 1  # nothing is sent twice


@EACH
def test_an_error_inside_a_stream_is_told_inside_it(kind):
    with gateway() as place:
        talker = agent(kind, place.base, stream=True)
        talker.history.append(talker.user("hello"))
        place.simulator.script(Step(do="error", status=500, in_stream=True, times=3))
        with pytest.raises((openai.OpenAIError, anthropic.AnthropicError)):
            talker.ask()


def test_a_client_sets_no_argument_of_litellms():
    with gateway() as place:
        client = openai.OpenAI(base_url=f"{place.base}/litellm/v1", api_key="sk-agent-1", max_retries=0)
        said: Any = [{"role": "user", "content": "hello"}]
        hostile = {"api_base": "http://127.0.0.1:9", "mock_response": "mocked", "model_list": [], "fallbacks": ["x"]}
        for name, value in hostile.items():
            # It goes where it was meant to, into the body, where this provider knows no such field.
            with pytest.raises(openai.BadRequestError, match=name):
                client.chat.completions.create(model="openai/m", messages=said, extra_body={name: value})


@pytest.mark.parametrize("model", ["oobabooga/{url}", "huggingface/{url}/v1"])
def test_a_models_name_sends_nothing_elsewhere(model):
    with raw_server() as elsewhere, gateway() as place:
        client = openai.OpenAI(base_url=f"{place.base}/litellm/v1", api_key="sk-agent-1", max_retries=0)
        with pytest.raises(openai.BadRequestError, match="URL"):
            client.chat.completions.create(
                model=model.format(url=elsewhere.url), messages=[{"role": "user", "content": "hello"}]
            )
        assert (elsewhere.seen, place.records) == ([], [])


@contextmanager
def before(upstream: RawServer) -> Iterator[openai.OpenAI]:
    with serving(settings(OWN.replace("{url}", upstream.url))) as (base, _):
        yield openai.OpenAI(base_url=f"{base}/litellm/v1", api_key="sk-one", max_retries=0)


def ask(client: openai.OpenAI, **how: Any) -> Any:
    return client.chat.completions.create(model="openai/m", messages=[{"role": "user", "content": "hello"}], **how)


def test_the_callers_key_is_the_one_that_is_used():
    with raw_server() as upstream, before(upstream) as client:
        for key in ("sk-one", "sk-two"):
            with pytest.raises(openai.OpenAIError):
                ask(client.with_options(api_key=key))
        assert [seen.one("authorization") for seen in upstream.seen] == ["Bearer sk-one", "Bearer sk-two"]


EVENT = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
    b'"delta":{"role":"assistant","content":"Hel"},"finish_reason":null}]}\n\n'
)


@STREAM
def test_a_client_that_leaves_ends_the_call(stream):
    with raw_server() as upstream, before(upstream) as client:
        upstream.then(*((stream_head(), *chunks(EVENT, end=False)) if stream else ()), HOLD)
        if stream:
            answer = ask(client, stream=True)
            assert next(iter(answer)).choices[0].delta.content == "Hel"
            answer.close()
        else:
            with pytest.raises(openai.APITimeoutError):
                ask(client.with_options(timeout=0.3))
        assert upstream.wait().left.wait(5)


def test_a_stream_that_is_cut_is_no_whole_answer():
    with raw_server() as upstream, before(upstream) as client:
        upstream.then(stream_head(), *chunks(EVENT, end=False), CUT)
        with pytest.raises((openai.OpenAIError, httpx2.HTTPError)):
            list(ask(client, stream=True))
