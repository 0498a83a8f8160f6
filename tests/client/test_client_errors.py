"""What goes wrong at the provider reaches the caller as the SDK's own exception, the same as without Tidegate."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from rawserver import CLOSE, CUT, HOLD, RawServer, Step, answer, chunks, raw_server, stream_head
from sdks import settings

import tidegate

REFUSALS = {
    "bad request": answer(
        b'{"error":{"message":"temperature: must be at most 2","type":"invalid_request_error"}}',
        status="400 Bad Request",
    ),
    "no key": answer(
        b'{"error":{"message":"Incorrect API key","type":"authentication_error"}}', status="401 Unauthorized"
    ),
    "forbidden": answer(b'{"error":{"message":"no","type":"permission_error"}}', status="403 Forbidden"),
    "no model": answer(b'{"error":{"message":"no such model","type":"not_found_error"}}', status="404 Not Found"),
    "conflict": answer(b'{"error":{"message":"again"}}', status="409 Conflict"),
    "bytes": answer(
        b'{"error":{"message":"Request exceeds the maximum size","type":"request_too_large"}}',
        status="413 Content Too Large",
    ),
    "unprocessable": answer(b'{"detail":[{"loc":["body","tools"],"msg":"bad"}]}', status="422 Unprocessable"),
    "rate limit": answer(
        b'{"error":{"message":"Rate limit reached","type":"rate_limit_error"}}',
        status="429 Too Many Requests",
        extra="Retry-After: 7\r\nX-Request-Id: req_1\r\n",
    ),
    "server error": answer(b"<html>oops</html>", status="500 Internal Server Error", kind="text/html"),
    "overloaded": answer(b'{"error":{"message":"Overloaded","type":"overloaded_error"}}', status="529 Overloaded"),
}
FAULTS: dict[str, tuple[Step, ...]] = {
    "cut before its head": (CUT,),
    "closed before its head": (CLOSE,),
    "too late": (HOLD,),
    "cut in its body": (b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 90\r\n\r\n{"id":', CUT),
}
EVENTS = {
    "openai": b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
    b'"delta":{"role":"assistant","content":"Hel"},"finish_reason":null}]}\n\n',
    "anthropic": b"event: content_block_start\n"
    b'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n',
}

PACKAGES = pytest.mark.parametrize("package", ["openai", "anthropic"])
ASYNCHRONOUS = pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "async"])


@pytest.fixture(scope="module")
def server() -> Iterator[RawServer]:
    with raw_server() as served:
        yield served


def client(package: str, url: str, *, asynchronous: bool) -> Any:
    if package == "openai":
        kind: Any = openai.AsyncOpenAI if asynchronous else openai.OpenAI
        return kind(base_url=f"{url}/v1", api_key="sk-1", max_retries=0, timeout=0.4)
    kind = anthropic.AsyncAnthropic if asynchronous else anthropic.Anthropic
    return kind(base_url=url, api_key="sk-1", max_retries=0, timeout=0.4)


def asked(made: Any, package: str, *, asynchronous: bool, stream: bool = False) -> Any:
    """What a client makes of one request: the text of a stream, or the exception."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "stream": stream}
    create = made.chat.completions.create if package == "openai" else made.messages.create

    async def awaited() -> Any:
        got = await create(**body)
        return [event async for event in got] if stream else got

    try:
        if asynchronous:
            return asyncio.run(awaited())
        got = create(**body)
        return list(got) if stream else got
    except Exception as error:
        return error


def told(error: Any) -> tuple[Any, ...]:
    """All that a caller may look at."""
    response = getattr(error, "response", None)
    hop = ("date", "server")
    headers = {
        name: value
        for name, value in (response.headers.items() if response is not None else ())
        if name not in hop and not name.startswith("x-tidegate-")
    }
    return (
        type(error), str(error), getattr(error, "status_code", None), getattr(error, "body", None),
        getattr(error, "code", None), getattr(error, "request_id", None), headers, type(error.__cause__),
    )  # fmt: skip


def both(server: RawServer, package: str, steps: tuple[Step, ...], **how: Any) -> tuple[Any, Any]:
    """The same request without Tidegate and with it, against the same steps."""
    results = []
    for wrapped in (False, True):
        server.reset()
        server.then(*steps)
        made = client(package, server.url, asynchronous=how["asynchronous"])
        results.append(asked(tidegate.wrap(made, settings=settings()) if wrapped else made, package, **how))
        assert len(server.seen) == 1
    return results[0], results[1]


@PACKAGES
@ASYNCHRONOUS
@pytest.mark.parametrize("kind", REFUSALS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_refusal_is_the_same_exception(server, package, asynchronous, kind, stream):
    bare, ours = both(server, package, (REFUSALS[kind],), asynchronous=asynchronous, stream=stream)
    assert isinstance(bare, openai.APIStatusError if package == "openai" else anthropic.APIStatusError)
    assert told(ours) == told(bare)


@PACKAGES
@ASYNCHRONOUS
@pytest.mark.parametrize("kind", FAULTS)
def test_a_broken_connection_is_the_same_exception(server, package, asynchronous, kind):
    bare, ours = both(server, package, FAULTS[kind], asynchronous=asynchronous)
    assert isinstance(bare, Exception)
    assert told(ours) == told(bare)


@PACKAGES
@ASYNCHRONOUS
def test_a_stream_that_is_cut_is_the_same_exception(server, package, asynchronous):
    steps = (stream_head(), *chunks(EVENTS[package], end=False), 0.05, CUT)
    bare, ours = both(server, package, steps, asynchronous=asynchronous, stream=True)
    assert isinstance(bare, Exception)
    assert told(ours) == told(bare)


@PACKAGES
@ASYNCHRONOUS
def test_nobody_listening_is_the_same_exception(package, asynchronous):
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    bare = asked(client(package, url, asynchronous=asynchronous), package, asynchronous=asynchronous)
    made = tidegate.wrap(client(package, url, asynchronous=asynchronous), settings=settings())
    assert told(asked(made, package, asynchronous=asynchronous)) == told(bare)


@PACKAGES
def test_the_sdks_own_retries_go_on_as_they_did(server, package):
    server.reset()
    body = (
        b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":'
        b'{"role":"assistant","content":"hello"},"finish_reason":"stop"}]}'
        if package == "openai"
        else b'{"id":"m","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"hello"}],'
        b'"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":1,"output_tokens":1}}'
    )
    server.then(answer(b"{}", status="503 Unavailable", extra="Retry-After-Ms: 5\r\n"))
    server.then(answer(body))
    made = client(package, server.url, asynchronous=False).with_options(max_retries=1)
    got = asked(tidegate.wrap(made, settings=settings()), package, asynchronous=False)
    assert not isinstance(got, Exception)
    assert [seen.one("x-stainless-retry-count") for seen in server.seen] == ["0", "1"]
