"""Clients that are dropped, shared and forked, and streams that nobody ends: what others have goes on."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import threading
import time
from types import SimpleNamespace
from typing import Any

import anthropic
import openai
import pytest
from openai.types.chat import ChatCompletionMessage
from rawserver import HOLD, RawServer, chunks, raw_server, stream_head
from sdks import here, settings

import tidegate
from tidegate.client import waiting
from tidegate.compactors.strategy import Call
from tidegate.simulator import SimulatorSettings, Step
from tidegate.upstream.custom import Compactors, Here

ASK: Any = {"model": "m", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 50}
EVENT = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":'
    b'[{"index":0,"delta":{"content":"a"}}]}\n\n'
)


def slowly(server: RawServer) -> None:
    server.then(stream_head(), *chunks(EVENT, end=False), 0.1, *chunks(EVENT, b"data: [DONE]\n\n"))


@pytest.mark.parametrize("kind", [openai.OpenAI, anthropic.Anthropic], ids=["openai", "anthropic"])
def test_a_wrapped_client_that_is_dropped_ends_no_stream_of_another(kind):
    with raw_server() as server:
        client = kind(base_url=f"{server.url}/v1", api_key="k", max_retries=0)
        for reading in (client, tidegate.wrap(client, settings=settings())):
            slowly(server)
            with reading._client.stream("POST", f"{server.url}/v1/chat/completions", json=ASK) as response:
                pieces = response.iter_bytes()
                next(pieces)
                tidegate.wrap(client, settings=settings())
                gc.collect()
                assert b"[DONE]" in b"".join(pieces)


async def test_nor_does_an_asynchronous_one():
    with raw_server() as server:
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0)
        slowly(server)
        stream = await client.chat.completions.create(**ASK, stream=True)
        tidegate.wrap(client, settings=settings())
        gc.collect()
        assert len([chunk async for chunk in stream]) == 2


async def test_an_answer_that_is_dropped_unread_ends_its_request_in_silence():
    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    with raw_server() as server:
        client = tidegate.wrap(openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k"), settings=settings())
        server.then(stream_head(), *chunks(EVENT, end=False), HOLD)
        await client.chat.completions.create(**ASK, stream=True)
        assert len(waiting._under_way) == 1
        gc.collect()
        assert await asyncio.to_thread(server.seen[-1].left.wait, 5)
        assert not waiting._under_way
        assert not [context for context in told if "drive" in str(context)]


def test_a_server_that_is_known_by_another_name_is_asked_by_that():
    with raw_server() as server:
        client = tidegate.wrap(openai.OpenAI(base_url=f"{server.url}/v1", api_key="k"), settings=settings())
        client.with_options(default_headers={"Host": "inner.example"}).chat.completions.with_raw_response.create(**ASK)
        assert server.seen[-1].one("host") == "inner.example"


@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "async"])
async def test_what_a_compaction_made_is_not_paid_for_again_where_the_sdk_sends_again(asynchronous):
    with here(SimulatorSettings(window=3000), window=3000, compaction={"prepare": "off"}) as place:
        kind: Any = openai.AsyncOpenAI if asynchronous else openai.OpenAI
        client = tidegate.wrap(kind(base_url=f"{place.url}/v1", api_key="k", max_retries=1), settings=place.given)
        words = [{"role": role, "content": f"{n} " + "word " * 200} for n in range(7) for role in ("user", "assistant")]
        place.simulator.script(Step(do="error", status=503, on="main"))
        said = {**ASK, "messages": [*words, *ASK["messages"]]}
        answer = client.chat.completions.create(**said)
        assert (await answer if asynchronous else answer).choices
        kinds = [record.kind for record in place.records]
        assert "summary" in kinds
        assert kinds[kinds.index("main") :] == ["main", "main"]


def _in_the_child(client: openai.OpenAI, told: Any) -> None:
    told.send(client.chat.completions.with_raw_response.create(**ASK).headers["x-tidegate-action"])


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_client_goes_on_in_a_forked_process_whatever_the_parent_held():
    with here(SimulatorSettings(behaviour="echo")) as place:
        client = tidegate.wrap(openai.OpenAI(base_url=f"{place.url}/v1", api_key="k"), settings=place.given)
        held, done = threading.Event(), threading.Event()

        def hold() -> None:
            with client._client._transport.house.lock:
                held.set()
                done.wait(20)

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait(5)
        fork = multiprocessing.get_context("fork")
        heard, told = fork.Pipe(duplex=False)
        child = fork.Process(target=_in_the_child, args=(client, told), daemon=True)
        child.start()
        try:
            assert heard.poll(8), "the forked process waits for a lock of its parent's"
            assert heard.recv() == "relayed"
        finally:
            child.kill()
            child.join()
            done.set()
            holder.join()


def test_a_compactor_takes_the_objects_of_answers_as_the_sdk_does():
    call: Any = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    said = ChatCompletionMessage.model_validate({"role": "assistant", "content": None, "tool_calls": [call]})
    kept: Any = [
        {"role": "user", "content": "Look."},
        said,
        {"role": "tool", "tool_call_id": "call_1", "content": "ok"},
    ]
    messages = [{"role": "user", "content": "word " * 1200}, {"role": "assistant", "content": "word " * 1200}, *kept]
    assert tidegate.Compactor(model="m", window=3000, settings=settings()).estimate(messages) > 1000
    with here(SimulatorSettings(window=3000)) as place:
        client = openai.OpenAI(base_url=f"{place.url}/v1", api_key="k")
        made = tidegate.Compactor(client, model="m", window=3000, settings=place.given).compact_sync(messages)
        assert made is not None
        assert made.messages[-2] == {"role": "assistant", "content": None, "tool_calls": [call]}


async def test_compactors_that_hang_keep_no_thread_that_a_loop_needs():
    hangs = Compactors({"notes": Here(SimpleNamespace(compact=lambda view: threading.Event().wait(3)))})
    asked = [
        asyncio.create_task(hangs.ask_async(Call("/compact", b'{"items": [], "since": 0}', timeout=0.5, via="notes")))
        for _ in range(40)
    ]
    await asyncio.sleep(0.05)
    began = time.monotonic()
    await asyncio.to_thread(int)
    assert time.monotonic() - began < 0.3
    assert {reply.error for reply in await asyncio.gather(*asked)} == {"no answer within 0.5 seconds"}
