"""litellm's Responses and Messages: by the chat they come to, or by an HTTP client that is given to the call."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import litellm
import pytest
from pages import Name, blocks
from sdks import here

import tidegate
import tidegate.litellm
from tidegate.simulator import SimulatorSettings

pytestmark = pytest.mark.litellm

litellm.suppress_debug_info = True

WINDOW = 4000
FACTS = {f"FACT-{number:02d}" for number in range(12)}
HISTORY: Any = [
    {"role": role, "content": f"FACT-{number:02d} " + "and so on, as agents do " * 40}
    for number in range(12)
    for role in ("user", "assistant")
]
HISTORY.append({"role": "user", "content": "And now?"})

STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
ASYNCHRONOUS = pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "async"])


def called(function: Any, **arguments: Any) -> str:
    """Makes a call, awaited where it has to be, and reads what it gives to its end: the last of it, as a text."""

    async def awaited() -> str:
        client = arguments.get("client")
        given = await function(**{**arguments, **({"client": client()} if client else {})})
        return [str(chunk) async for chunk in given][-1] if arguments.get("stream") else str(given)

    if inspect.iscoroutinefunction(function):
        return asyncio.run(awaited())
    given = function(**arguments)
    return [str(chunk) for chunk in given][-1] if arguments.get("stream") else str(given)


def recovered(place: Any) -> None:
    outcomes = [record.outcome for record in place.of("main")]
    assert outcomes == ["overflow", "answered"]
    assert place.violations == []
    assert set(place.of("main")[-1].facts) >= FACTS


def died(place: Any) -> None:
    assert [record.outcome for record in place.of("main")] == ["overflow"]


@STREAM
@ASYNCHRONOUS
def test_responses_that_litellm_makes_of_chats_are_looked_after(asynchronous, stream):
    with here(SimulatorSettings(window=WINDOW)) as place:
        tidegate.litellm.install(settings=place.given)
        function = litellm.aresponses if asynchronous else litellm.responses
        there = {"model": "anthropic/claude-sonnet-4-6", "api_base": place.url, "api_key": "k"}
        called(function, input=HISTORY, max_output_tokens=100, stream=stream, **there)
        recovered(place)


NATIVE = pytest.mark.parametrize(
    ("name", "arguments", "root"),
    [
        ("aresponses", {"model": "openai/shop-model", "input": HISTORY}, "/v1"),
        ("responses", {"model": "openai/shop-model", "input": HISTORY}, "/v1"),
        ("anthropic_messages", {"model": "anthropic/claude-sonnet-4-6", "messages": HISTORY, "max_tokens": 100}, ""),
    ],
    ids=["responses-async", "responses", "messages"],
)


@NATIVE
@STREAM
def test_an_http_client_looks_after_the_apis_themselves(name, arguments, root, stream):
    with here(SimulatorSettings(window=WINDOW)) as place:

        def handler(kind: Any = litellm.AsyncHTTPHandler) -> Any:
            made = kind()
            made.client = tidegate.wrap(made.client, settings=place.given)
            return made

        function = getattr(litellm, name)
        # The clients of a loop are that loop's.
        client = handler if inspect.iscoroutinefunction(function) else handler(litellm.HTTPHandler)
        there = {"api_base": place.url + root, "api_key": "k"}
        called(function, **arguments, **there, stream=stream, client=client)
        recovered(place)


@NATIVE
def test_without_one_they_pass_untouched(name, arguments, root):
    with here(SimulatorSettings(window=WINDOW)) as place:
        tidegate.litellm.install(settings=place.given)
        with pytest.raises(litellm.BadRequestError):
            called(getattr(litellm, name), **arguments, api_base=place.url + root, api_key="k")
        died(place)


def test_what_in_process_shows(monkeypatch):
    monkeypatch.setenv("TIDEGATE_STORE__KIND", "memory")
    with here(SimulatorSettings(window=WINDOW)) as place:
        monkeypatch.setenv("ANTHROPIC_API_BASE", place.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "k")

        async def shown() -> Any:
            space: dict[str, Any] = {"litellm": litellm, "tidegate": tidegate}
            exec(blocks("python")[Name("in-process.md", "LiteLLM", 1)], space)
            return await space["ask"](HISTORY)

        assert asyncio.run(shown())["content"]
        recovered(place)
