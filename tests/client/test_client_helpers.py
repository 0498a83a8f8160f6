"""The SDKs' helpers over histories that outgrow the window: parsing, tool runners, counting, pages."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pydantic
import pytest
from rawserver import answer, raw_server
from sdks import Here, here, settings

import tidegate
from tidegate.simulator import SimulatorSettings, Step

WINDOW = 4000
LONG: Any = [
    {"role": role, "content": f"FACT-{number:02d} " + "and so on, as agents do " * 40}
    for number in range(12)
    for role in ("user", "assistant")
]
HISTORY: Any = [*LONG, {"role": "user", "content": "What is x?"}]


class Point(pydantic.BaseModel):
    x: int


def clients(place: Here, *, asynchronous: bool) -> tuple[Any, Any]:
    """Wrapped clients of both packages."""
    kinds: tuple[Any, Any] = (
        (openai.AsyncOpenAI, anthropic.AsyncAnthropic) if asynchronous else (openai.OpenAI, anthropic.Anthropic)
    )
    roots = (f"{place.url}/v1", place.url)
    made = [kind(base_url=root, api_key="k", max_retries=0) for kind, root in zip(kinds, roots, strict=True)]
    by_openai, by_anthropic = (tidegate.wrap(client, settings=place.given) for client in made)
    return by_openai, by_anthropic


async def got(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


PARSES: dict[str, Callable[[Any, Any], Any]] = {
    "chat": lambda it, _: it.chat.completions.parse(model="m", messages=HISTORY, response_format=Point),
    "beta.chat": lambda it, _: it.beta.chat.completions.parse(model="m", messages=HISTORY, response_format=Point),
    "responses": lambda it, _: it.responses.parse(model="m", input=HISTORY, text_format=Point),
    "messages": lambda _, it: it.messages.parse(
        model="claude-sonnet-4-6", max_tokens=100, messages=HISTORY, output_format=Point
    ),
}


def parsed(result: Any) -> Any:
    """What a helper made of the answer."""
    if hasattr(result, "choices"):
        return result.choices[0].message.parsed
    return result.parsed_output if hasattr(result, "parsed_output") else result.output_parsed


@pytest.mark.parametrize("name", PARSES)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "async"])
async def test_an_answer_is_parsed_after_a_compaction(name, asynchronous):
    with here(SimulatorSettings(window=WINDOW)) as place:
        place.simulator.script(Step(do="overflow", on="main"), Step(do="text", text='{"x": 3}', on="main"))
        result = await got(PARSES[name](*clients(place, asynchronous=asynchronous)))
        assert parsed(result) == Point(x=3)
        assert [record.outcome for record in place.of("main")] == ["overflow", "answered"]
        assert place.of("summary")
        assert place.violations == []


ROUNDS = 16


@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "async"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_tool_runner_goes_on_beyond_the_window(asynchronous, stream):
    called: list[str] = []

    def look(query: str) -> str:
        """Looks something up.

        Args:
            query: What to look up.
        """
        called.append(query)
        return f"FACT-{len(called):02d} " + "and so on, as tools do " * 60

    async def look_async(query: str) -> str:
        """Looks something up.

        Args:
            query: What to look up.
        """
        return look(query)

    tools = [anthropic.beta_async_tool(look_async) if asynchronous else anthropic.beta_tool(look)]
    with here(SimulatorSettings(window=WINDOW, tool_rounds=10**6), window=WINDOW) as place:
        _, client = clients(place, asynchronous=asynchronous)
        asked: Any = [{"role": "user", "content": "FACT-00 Look it all up."}]
        runner = client.beta.messages.tool_runner(
            model="claude-sonnet-4-6",
            max_tokens=200,
            messages=asked,
            tools=tools,
            stream=stream,
            max_iterations=ROUNDS,
            thread=False,
        )
        last = await got(runner.until_done())
        assert len(called) >= ROUNDS - 1
        assert last.stop_reason == "tool_use"
        assert place.violations == []
        assert {record.outcome for record in place.of("main")} == {"answered"}
        assert place.of("summary")
        assert {"FACT-00", "FACT-01", f"FACT-{ROUNDS - 1:02d}"} <= set(place.of("main")[-1].facts)


def test_what_is_counted_is_what_would_be_sent():
    with here(SimulatorSettings(window=WINDOW), window=WINDOW) as place:
        _, client = clients(place, asynchronous=False)
        ask: Any = {"model": "claude-sonnet-4-6", "messages": HISTORY}
        before = client.messages.count_tokens(**ask).input_tokens
        client.messages.create(**ask, max_tokens=100)
        assert client.messages.count_tokens(**ask).input_tokens < before * 0.6 < WINDOW


@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "async"])
async def test_pages_follow_each_other(asynchronous):
    pages = [
        b'{"object":"list","data":[{"id":"file-1","object":"file"}],"has_more":true}',
        b'{"object":"list","data":[{"id":"file-2","object":"file"}],"has_more":false}',
    ]
    with raw_server() as server:
        kind: Any = openai.AsyncOpenAI if asynchronous else openai.OpenAI
        client = tidegate.wrap(kind(base_url=f"{server.url}/v1", api_key="k"), settings=settings())
        for page in pages:
            server.then(answer(page))
        files = client.files.list()
        ids = [file.id async for file in files] if asynchronous else [file.id for file in files]
        assert ids == ["file-1", "file-2"]
        assert b"after=file-1" in server.seen[-1].target.encode()
