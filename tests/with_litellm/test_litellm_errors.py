"""What goes wrong at the provider reaches litellm's caller as litellm's own exception, the same as without Tidegate."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import litellm
import pytest
from rawserver import CLOSE, CUT, HOLD, RawServer, Step, answer, chunks, raw_server, stream_head
from sdks import settings

import tidegate.litellm

pytestmark = pytest.mark.litellm

litellm.suppress_debug_info = True


def refusal(status: str, text: str, kind: str = "invalid_request_error", extra: str = "") -> tuple[Step, ...]:
    body = f'{{"error":{{"message":"{text}","type":"{kind}","param":null,"code":null}}}}'
    return (answer(body.encode(), status=status, extra=extra),)


REFUSALS: dict[str, tuple[Step, ...]] = {
    "bad request": refusal("400 Bad Request", "temperature: must be at most 2"),
    "no key": refusal("401 Unauthorized", "Incorrect API key"),
    "forbidden": refusal("403 Forbidden", "no"),
    "no model": refusal("404 Not Found", "no such model"),
    "bytes": refusal("413 Content Too Large", "Request exceeds the maximum size"),
    "unprocessable": refusal("422 Unprocessable", "bad"),
    "rate limit": refusal("429 Too Many Requests", "Rate limit reached", extra="Retry-After: 7\r\n"),
    "server error": (answer(b"<html>oops</html>", status="500 Internal Server Error", kind="text/html"),),
    "unavailable": refusal("503 Service Unavailable", "Overloaded"),
    "content policy": refusal("400 Bad Request", "content_policy_violation: rejected by our safety system"),
    "closed before its head": (CLOSE,),
    "too late": (HOLD,),
}
EVENT = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
    b'"delta":{"role":"assistant","content":"Hel"},"finish_reason":null}]}\n\n'
)

ASYNCHRONOUS = pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "async"])
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@pytest.fixture(scope="module")
def server() -> Iterator[RawServer]:
    with raw_server() as served:
        yield served


def outcome(url: str, *, asynchronous: bool, stream: bool, **more: Any) -> Any:
    """What came of a call: chunks or an answer, or all that a caller may look at of an exception."""
    arguments = {
        "model": "openai/m", "messages": [{"role": "user", "content": "hi"}], "stream": stream,
        "api_base": f"{url}/v1", "api_key": "sk-1", "timeout": 1, "max_retries": 0, **more,
    }  # fmt: skip
    got: list[str] = []

    async def awaited() -> Any:
        response = await litellm.acompletion(**arguments)
        if not stream:
            return response
        async for chunk in response:
            got.append(chunk.choices[0].delta.content or "")
        return None

    try:
        if asynchronous:
            asyncio.run(awaited())
        else:
            response = litellm.completion(**arguments)
            for chunk in response if stream else ():
                got.append(chunk.choices[0].delta.content or "")
    except Exception as error:
        waits = getattr(getattr(error, "response", None), "headers", {}).get("retry-after")
        text = re.sub(r"time taken=[\d.]+", "", str(error))
        return got, type(error), text, getattr(error, "status_code", None), getattr(error, "body", None), waits
    return got


def both(server: RawServer, steps: tuple[Step, ...], **how: Any) -> tuple[Any, Any]:
    found = []
    for installed in (False, True):
        server.reset()
        for _ in range(4):
            server.then(*steps)
        if installed:
            tidegate.litellm.install(settings=settings())
        found.append(outcome(server.url, **how))
    return found[0], found[1]


@pytest.mark.parametrize("name", list(REFUSALS))
@ASYNCHRONOUS
@STREAM
def test_an_exception_is_litellms_own(server, name, asynchronous, stream):
    plain, kept = both(server, REFUSALS[name], asynchronous=asynchronous, stream=stream)
    assert kept == plain
    assert issubclass(plain[1], Exception)


@ASYNCHRONOUS
def test_a_stream_that_breaks_off_raises_what_litellm_raises(server, asynchronous):
    steps = (stream_head(), *chunks(EVENT, end=False), 0.05, CUT)
    plain, kept = both(server, steps, asynchronous=asynchronous, stream=True)
    assert kept == plain
    assert plain[0] == ["Hel"]
    assert issubclass(plain[1], Exception)


@ASYNCHRONOUS
@pytest.mark.parametrize("more", [{"model": "no-such-provider/m"}, {"model": None}, {"messages": None}, {"tools": 3}])
def test_calls_that_litellm_refuses_itself(server, asynchronous, more):
    plain, kept = both(server, REFUSALS["bad request"], asynchronous=asynchronous, stream=False, **more)
    assert kept == plain
    assert issubclass(plain[1], Exception)
