"""What the SDKs can do they can do with Tidegate in place: nothing of theirs is taken away or changed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pydantic
import pytest
from rawserver import HOLD, answer, chunks, raw_server, stream_head
from sdks import here, settings

import tidegate
from tidegate.config import ConfigError
from tidegate.simulator import SimulatorSettings

ASK: Any = {"model": "m", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 50}


def test_a_client_made_for_the_sdk_and_a_wrapped_one_do_the_same():
    with here(SimulatorSettings(behaviour="echo")) as place:
        base = f"{place.url}/v1"
        made = openai.OpenAI(base_url=base, api_key="k", http_client=tidegate.http_client(settings=place.given))
        wrapped = tidegate.wrap(openai.OpenAI(base_url=base, api_key="k"), settings=place.given)
        for client in (made, wrapped):
            got = client.chat.completions.with_raw_response.create(**ASK)
            assert got.headers["x-tidegate-action"] == "relayed"
            assert type(client) is openai.OpenAI


async def test_the_same_for_asynchronous_clients():
    with here(SimulatorSettings(behaviour="echo")) as place:
        base = f"{place.url}/v1"
        made = openai.AsyncOpenAI(
            base_url=base, api_key="k", http_client=tidegate.async_http_client(settings=place.given)
        )
        wrapped = tidegate.wrap(openai.AsyncOpenAI(base_url=base, api_key="k"), settings=place.given)
        for client in (made, wrapped):
            got = await client.chat.completions.with_raw_response.create(**ASK)
            assert got.headers["x-tidegate-action"] == "relayed"


@pytest.mark.parametrize("library", [httpx2, httpx], ids=["httpx2", "httpx"])
def test_a_plain_client_of_either_library_is_wrapped(library):
    with here(SimulatorSettings(behaviour="echo")) as place:
        client = tidegate.wrap(library.Client(), settings=place.given)
        got = client.post(f"{place.url}/v1/chat/completions", json=ASK, headers={"authorization": "Bearer k"})
        assert got.headers["x-tidegate-action"] == "relayed"
        assert got.json()["choices"]


def test_wrapping_twice_wraps_once():
    client = tidegate.wrap(openai.OpenAI(api_key="k"), settings=settings())
    again = tidegate.wrap(client, settings=settings())
    assert not isinstance(again._client._transport.below, type(client._client._transport))


def test_the_client_that_was_given_is_left_as_it_was():
    client = openai.OpenAI(api_key="k")
    before = client._client._transport
    tidegate.wrap(client, settings=settings())
    assert client._client._transport is before


class Team(openai.OpenAI):
    """A class of somebody's own, made by arguments that the SDK's `with_options` does not know."""

    def __init__(self, url: str, team: str) -> None:
        super().__init__(base_url=f"{url}/v1", api_key="k", default_headers={"x-team": team})
        self.team = team


class Fixed(openai.AsyncOpenAI):
    """One that takes any argument and drops it."""

    url = ""

    def __init__(self, **dropped: Any) -> None:
        super().__init__(base_url=f"{self.url}/v1", api_key="k")


class Claude(anthropic.Anthropic):
    """One with an argument more, that has to be there."""

    def __init__(self, *, team: str, **more: Any) -> None:
        super().__init__(**more)
        self.team = team


async def test_classes_of_somebodys_own_are_wrapped_however_they_are_made(monkeypatch):
    with here(SimulatorSettings(behaviour="echo")) as place:
        monkeypatch.setattr(Fixed, "url", place.url)
        team, fixed = Team(place.url, "red"), Fixed()
        claude = Claude(team="blue", base_url=place.url, api_key="k")
        given = [(client, client._client) for client in (team, fixed, claude)]
        bare = [team.chat.completions.with_raw_response, claude.messages.with_raw_response, fixed.chat]
        assert "x-tidegate-action" not in bare[0].create(**ASK).headers
        wrapped = tidegate.wrap(team, settings=place.given)
        answers = [
            wrapped.chat.completions.with_raw_response.create(**ASK),
            wrapped.with_raw_response.chat.completions.create(**ASK),
            await tidegate.wrap(fixed, settings=place.given).chat.completions.with_raw_response.create(**ASK),
            tidegate.wrap(claude, settings=place.given).messages.with_raw_response.create(**ASK),
        ]
        assert [answer.headers["x-tidegate-action"] for answer in answers] == ["relayed"] * 4
        assert (type(wrapped), wrapped.team) == (Team, "red")
        assert wrapped.default_headers["x-team"] == "red"
        # The ones that were given send as they did.
        assert all(client._client is before for client, before in given)
        assert "x-tidegate-action" not in team.chat.completions.with_raw_response.create(**ASK).headers


def test_what_is_no_client_is_told_so():
    with pytest.raises(tidegate.NotAClient, match="takes a client of the openai or anthropic package"):
        tidegate.wrap(object())  # type: ignore[type-var]


def test_settings_that_are_not_allowed_are_told_with_their_place():
    with pytest.raises(ConfigError, match=r"compaction.threshold_percent: 170 is not allowed.*given in `settings`"):
        tidegate.http_client(settings={"compaction": {"threshold_percent": 170}})


class Point(pydantic.BaseModel):
    x: int


def test_helpers_of_the_openai_package():
    body = (
        b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":'
        b'{"role":"assistant","content":"{\\"x\\": 3}"},"finish_reason":"stop"}]}'
    )
    listed = b'{"object":"list","data":[{"id":"file-1","object":"file"}],"has_more":false}'
    with raw_server() as server:
        client = tidegate.wrap(openai.OpenAI(base_url=f"{server.url}/v1", api_key="k"), settings=settings())
        server.then(answer(body))
        parsed = client.chat.completions.parse(**ASK, response_format=Point)
        assert parsed.choices[0].message.parsed == Point(x=3)
        server.then(answer(listed))
        assert [file.id for file in client.files.list()] == ["file-1"]
        server.then(answer(b'{"id":"file-2","object":"file"}'))
        client.files.create(file=("a.txt", b"words"), purpose="user_data")
        assert b'filename="a.txt"' in bytes(server.seen[-1].body)
        server.then(answer(b"the content", kind="application/octet-stream"))
        assert client.files.content("file-2").read() == b"the content"


def test_a_timeout_of_one_request_counts():
    with raw_server() as server:
        client = tidegate.wrap(
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0), settings=settings()
        )
        server.then(HOLD)
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=0.2).chat.completions.create(**ASK)
        assert server.seen[-1].left.wait(5)


def test_a_stream_that_is_left_ends_at_the_provider():
    event = (
        b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":'
        b'[{"index":0,"delta":{"content":"a"}}]}\n\n'
    )
    with raw_server() as server:
        client = tidegate.wrap(openai.OpenAI(base_url=f"{server.url}/v1", api_key="k"), settings=settings())
        server.then(stream_head(), *chunks(event, end=False), HOLD)
        with client.chat.completions.create(**ASK, stream=True) as stream:
            assert next(iter(stream)).choices[0].delta.content == "a"
        assert server.seen[-1].left.wait(5)


async def test_a_cancelled_request_ends_at_the_provider():
    with raw_server() as server:
        client = tidegate.wrap(openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k"), settings=settings())
        server.then(HOLD)
        task = asyncio.create_task(client.chat.completions.create(**ASK))
        await asyncio.to_thread(server.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(server.seen[-1].left.wait, 5)


def test_pieces_of_a_stream_come_when_they_come():
    event = (
        b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":'
        b'[{"index":0,"delta":{"content":"a"}}]}\n\n'
    )
    with raw_server() as server:
        client = tidegate.wrap(openai.OpenAI(base_url=f"{server.url}/v1", api_key="k"), settings=settings())
        server.then(stream_head(), *chunks(event, end=False), 30.0)
        with client.chat.completions.create(**ASK, stream=True, timeout=5) as stream:
            assert next(iter(stream)).choices[0].delta.content == "a"  # long before the thirty seconds are over


def test_helpers_of_the_anthropic_package():
    with here(SimulatorSettings(behaviour="echo")) as place:
        client = tidegate.wrap(anthropic.Anthropic(base_url=place.url, api_key="k"), settings=place.given)
        assert client.messages.count_tokens(model="m", messages=ASK["messages"]).input_tokens > 0
        with client.messages.stream(**ASK) as stream:
            assert "".join(stream.text_stream) == stream.get_final_text()


def test_proxies_and_mounts_stay_below():
    seen = []

    def answered(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(200, json={"ok": True})

    client = tidegate.http_client(settings=settings(), mounts={"https://other.example": httpx2.MockTransport(answered)})
    assert client.post("https://other.example/v1/chat/completions", json=ASK).json() == {"ok": True}
    assert [request.headers["host"] for request in seen] == ["other.example"]


def test_a_request_may_ask_to_be_left_alone():
    with here(SimulatorSettings(behaviour="echo")) as place:
        client = tidegate.wrap(openai.OpenAI(base_url=f"{place.url}/v1", api_key="k"), settings=place.given)
        got = client.chat.completions.with_raw_response.create(**ASK, extra_headers={"x-tidegate-bypass": "1"})
        assert got.headers["x-tidegate-reason"] == "bypassed"


def test_the_import_brings_no_sdk_and_no_server():
    code = (
        "import sys, tidegate; tidegate.__version__; "
        "print([name for name in ('openai','anthropic','litellm','httpx','httpx2','uvicorn','pydantic','starlette',"
        "'aiohttp') if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def test_the_transport_brings_no_server_and_no_sdk():
    code = (
        "import sys, tidegate; tidegate.http_client(settings={'store': {'kind': 'memory'}}); "
        "print([name for name in ('openai','anthropic','litellm','uvicorn','starlette','aiohttp','uvloop',"
        "'tidegate.gateway.app','tidegate.gateway.server') if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
