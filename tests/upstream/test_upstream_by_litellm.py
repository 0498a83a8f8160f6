"""What is asked of LiteLLM's SDK, and what becomes of its answers. `tests/with_litellm` asks the real one."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any, ClassVar

import pytest

from tidegate.engine.effects import UpstreamError
from tidegate.upstream.by_litellm import FIELDS, ByLiteLLM
from tidegate.upstream.http import Request, Timeouts

URL = "litellm://litellm"
CHAT = {"model": "gemini/g", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
FULL = {**CHAT, "input": "hi"}


class Stream:
    """A stream of the SDK's."""

    def __init__(self, *chunks: Any, waits: bool = False) -> None:
        self.chunks, self.waits, self.closed = chunks, waits, False

    async def __aiter__(self) -> AsyncIterator[Any]:
        for chunk in self.chunks:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk
        if self.waits:
            await asyncio.sleep(60)

    async def aclose(self) -> None:
        self.closed = True


class StandIn(ModuleType):
    """Records the calls, and gives or raises what it is told."""

    def __init__(self) -> None:
        super().__init__("litellm")
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.gives: Any = {"id": "x"}

    def __getattr__(self, name: str) -> Any:
        if name not in ("acompletion", "aresponses", "anthropic_messages"):
            raise AttributeError(name)

        async def call(**arguments: Any) -> Any:
            self.calls.append((name, arguments))
            if isinstance(self.gives, Exception):
                raise self.gives
            if self.gives is Ellipsis:
                await asyncio.sleep(60)
            return self.gives

        return call


class ContextWindowExceededError(Exception):
    status_code = 400


class RateLimitError(Exception):
    status_code = 429
    litellm_response_headers: ClassVar = {"retry-after": "7", "x-secret": "no"}


@pytest.fixture
def sdk(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn()
    monkeypatch.setitem(sys.modules, "litellm", made)
    return made


def post(path: str, body: Any, headers: Any = (), **how: Any) -> Any:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def asked() -> Any:
        answer = await ByLiteLLM(**how).send(Request("POST", f"{URL}{path}", list(headers), raw))
        return answer.status, dict(answer.headers), await answer.read_all(1 << 20)

    return asyncio.run(asked())


@pytest.mark.parametrize(
    ("path", "function"),
    [("/chat/completions", "acompletion"), ("/responses", "aresponses"), ("/messages", "anthropic_messages")],
)
def test_each_api_has_its_function(sdk, path, function):
    status, headers, body = post(path, FULL)
    assert (status, headers[b"content-type"], body) == (200, b"application/json", b'{"id":"x"}')
    assert sdk.calls[0][0] == function


def test_it_is_never_sent_twice_and_never_waits_longer_than_it_may(sdk):
    post("/chat/completions", CHAT, timeouts=Timeouts(read=33))
    [(_, arguments)] = sdk.calls
    assert (arguments["num_retries"], arguments["max_retries"], arguments["timeout"]) == (0, 0, 33)


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ([(b"authorization", b"Bearer sk-1")], "sk-1"),
        ([(b"X-Api-Key", b"sk-2")], "sk-2"),
        ([(b"authorization", b"Basic dXNlcg==")], None),
        ([], None),
    ],
)
def test_the_callers_key_is_the_key(sdk, headers, key):
    post("/chat/completions", CHAT, headers)
    assert sdk.calls[0][1].get("api_key") == key


@pytest.mark.parametrize("prefix", ["", "bedrock/"])
@pytest.mark.parametrize("model", ["m", "bedrock/m"])
def test_a_model_is_named_as_litellm_does(sdk, prefix, model):
    post("/chat/completions", {**CHAT, "model": model}, prefix=prefix)
    assert sdk.calls[0][1]["model"] == ("bedrock/m" if prefix or model != "m" else "m")


@pytest.mark.parametrize("path", ["/chat/completions", "/responses", "/messages"])
@pytest.mark.parametrize(
    "name",
    [
        "api_base", "api_key", "aws_secret_access_key", "base_url", "client", "custom_llm_provider", "extra_headers",
        "fallbacks", "logger_fn", "max_retries", "mock_response", "model_list", "num_retries", "timeout",
        "vertex_credentials",
    ],
)  # fmt: skip
def test_what_says_how_a_call_is_made_is_no_clients_to_set(sdk, path, name):
    body = {"model": "m", "input": "hi"} if path == "/responses" else CHAT
    post(path, {**body, name: "hostile"}, arguments={"api_base": "http://mine"})
    arguments = sdk.calls[0][1]
    assert arguments.get(name) != "hostile"
    assert arguments["api_base"] == "http://mine"
    assert arguments.get("extra_body", {}) == ({name: "hostile"} if path != "/messages" else {})


@pytest.mark.parametrize("path", ["/chat/completions", "/responses", "/messages"])
@pytest.mark.parametrize("model", ["oobabooga/http://127.0.0.1:9", "huggingface/https://x.example/v1", "http://x"])
def test_no_models_name_says_where_a_call_goes(sdk, path, model):
    status, _, body = post(path, {**FULL, "model": model})
    assert (status, sdk.calls) == (400, [])
    assert "127.0.0.1" not in body.decode()


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/chat/completions", "messages"), ("/chat/completions", "model"), ("/responses", "input"),
        ("/messages", "messages"), ("/messages", "max_tokens"), ("/messages", "model"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("null", [False, True])
def test_what_litellm_can_not_be_called_without_is_a_fault_of_the_request(sdk, path, field, null):
    body = {**FULL, field: None} if null else {name: value for name, value in FULL.items() if name != field}
    status, _, told = post(path, body)
    assert (status, sdk.calls) == (400, [])
    assert f"no {field}" in json.loads(told)["error"]["message"]


def test_no_field_of_an_api_says_how_a_call_is_made():
    for names in FIELDS.values():
        assert not {name for name in names if "api_" in name or "base" in name or "litellm" in name or "aws" in name}


def test_betas_go_with_a_messages_call(sdk):
    post("/messages", CHAT, [(b"anthropic-beta", b"one"), (b"anthropic-beta", b"two"), (b"x-other", b"no")])
    assert sdk.calls[0][1]["extra_headers"] == {"anthropic-beta": "one,two"}


@pytest.mark.parametrize("stream", [1, "yes", True])
def test_what_is_no_stream_is_answered_whole_whatever_was_asked_for(sdk, stream):
    status, headers, body = post("/chat/completions", {**CHAT, "stream": stream})
    assert (status, headers[b"content-type"], body) == (200, b"application/json", b'{"id":"x"}')


def test_a_stream_of_chunks_ends_as_chat_streams_do(sdk):
    sdk.gives = Stream({"id": "a"}, {"id": "b"})
    status, headers, body = post("/chat/completions", {**CHAT, "stream": True})
    assert (status, headers[b"content-type"]) == (200, b"text/event-stream")
    assert body == b'data: {"id":"a"}\n\ndata: {"id":"b"}\n\ndata: [DONE]\n\n'


def test_events_of_responses_are_named_and_bytes_of_messages_are_left_as_they_are(sdk):
    sdk.gives = Stream({"type": "response.created"})
    assert post("/responses", {**FULL, "stream": True})[2] == (
        b'event: response.created\ndata: {"type":"response.created"}\n\n'
    )
    sdk.gives = Stream(b"event: ping\ndata: {}\n\n")
    assert post("/messages", {**CHAT, "stream": True})[2] == b"event: ping\ndata: {}\n\n"


def test_an_overflow_has_the_apis_own_shape(sdk):
    sdk.gives = ContextWindowExceededError("litellm.ContextWindowExceededError: too many tokens")
    status, _, body = post("/chat/completions", CHAT)
    assert (status, json.loads(body)["error"]["code"]) == (400, "context_length_exceeded")
    status, _, body = post("/messages", CHAT)
    assert (status, json.loads(body)["type"]) == (400, "error")


@pytest.mark.parametrize("status", [200, None, "400"])
def test_an_overflow_within_an_answer_of_200_is_an_overflow(sdk, monkeypatch, status):
    monkeypatch.setattr(ContextWindowExceededError, "status_code", status)
    sdk.gives = ContextWindowExceededError("too many tokens")
    told, _, body = post("/responses", FULL)
    assert (told, json.loads(body)["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("path", ["/chat/completions", "/messages"])
def test_a_body_is_held_up_to_a_limit(sdk, path, packed):
    for size, expected in ((100, 200), (900, 413)):
        raw = json.dumps({**CHAT, "messages": [{"role": "user", "content": "a" * size}]}).encode()
        headers = [(b"content-encoding", b"gzip")] if packed else []
        status, _, told = post(path, gzip.compress(raw) if packed else raw, headers, body_limit=800)
        assert status == expected
        assert status == 200 or "800 bytes" in json.loads(told)["error"]["message"]
    assert len(sdk.calls) == 1


def test_a_providers_words_within_an_answer_of_200_are_told(sdk):
    class APIError(Exception):
        status_code = 200
        llm_provider = "openai"

    sdk.gives = APIError("litellm.APIError: This model's maximum context length is 10 tokens")
    status, _, body = post("/chat/completions", CHAT)
    assert status == 502
    assert "maximum context length is 10" in json.loads(body)["error"]["message"]


def test_no_line_of_litellms_code_reaches_a_client(sdk):
    trace = 'No key is set.\nTraceback (most recent call last):\n  File "/srv/app/litellm/main.py", line 712, in x\n'
    sdk.gives = RateLimitError(trace)
    assert json.loads(post("/chat/completions", CHAT)[2])["error"]["message"] == "No key is set."
    sdk.gives = Stream({"id": "a"}, RateLimitError(trace))
    assert b"/srv/app" not in post("/chat/completions", {**CHAT, "stream": True})[2]


@pytest.mark.parametrize(
    ("path", "own"),
    [
        ("/chat/completions", {"error": {"message": "no", "type": "t", "param": None, "code": "c"}}),
        ("/messages", {"type": "error", "error": {"type": "t", "message": "no"}}),
    ],
)
def test_a_providers_own_words_are_given_where_they_have_the_apis_shape(sdk, path, own):
    sdk.gives = RateLimitError(f"litellm.RateLimitError: XException - {json.dumps(own)}. Handle with care.")
    status, headers, body = post(path, CHAT)
    assert (status, json.loads(body)) == (429, own)
    assert headers[b"retry-after"] == b"7"
    assert b"x-secret" not in headers


def test_an_error_of_another_api_is_told_in_this_one(sdk):
    other = {"type": "error", "error": {"type": "t", "message": "no"}}
    sdk.gives = RateLimitError(f"AnthropicException - {json.dumps(other)}")
    told = json.loads(post("/chat/completions", CHAT)[2])
    assert told["error"]["message"].startswith("AnthropicException")


def test_an_error_in_the_course_of_a_stream_is_told_in_it(sdk):
    sdk.gives = Stream({"id": "a"}, RateLimitError("slow down"))
    body = post("/chat/completions", {**CHAT, "stream": True})[2]
    assert body.startswith(b'data: {"id":"a"}\n\n')
    assert b"slow down" in body


@pytest.mark.parametrize("streamed", [False, True])
def test_what_stands_for_no_answer_is_an_upstream_error_and_quotes_nothing(sdk, streamed):
    fault = ValueError("the secret words of somebody")
    sdk.gives = Stream({"id": "a"}, fault) if streamed else fault
    with pytest.raises(UpstreamError) as caught:
        post("/chat/completions", {**CHAT, "stream": streamed})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'"x"'])
def test_what_is_no_json_object_is_refused(sdk, body):
    status, _, told = post("/chat/completions", body)
    assert (status, sdk.calls) == (400, [])
    assert "no JSON object" in json.loads(told)["error"]["message"]


@pytest.mark.parametrize("path", ["/models", "/messages/count_tokens", "/responses/compact", "/files"])
def test_other_paths_are_not_served(sdk, path):
    status, _, told = post(path, CHAT)
    assert status == 404
    assert path in json.loads(told)["error"]["message"]
    assert (json.loads(told).get("type") == "error") is path.startswith("/messages")


def test_a_call_that_takes_too_long_is_a_timeout(sdk):
    sdk.gives = Ellipsis
    with pytest.raises(UpstreamError) as caught:
        post("/chat/completions", CHAT, timeouts=Timeouts(head=0.05))
    assert caught.value.status == 504


@pytest.mark.parametrize("how", ["closed", "abandoned", "silent", "too long"])
def test_a_stream_that_nobody_reads_on_is_closed(sdk, how):
    sdk.gives = source = Stream({"id": "a"}, waits=True)

    async def asked() -> None:
        client = ByLiteLLM(timeouts=Timeouts(read=0.05))
        answer = await client.send(
            Request("POST", f"{URL}/chat/completions", [], json.dumps({**CHAT, "stream": True}).encode())
        )
        if how == "too long":
            with pytest.raises(UpstreamError):
                await answer.read_all(3)
        else:
            assert await answer.read()
        if how == "closed":
            await answer.close()
        elif how == "abandoned":
            answer.abandon()
        elif how == "silent":
            with pytest.raises(UpstreamError) as caught:
                await answer.read()
            assert caught.value.status == 504
        await asyncio.sleep(0.01)
        assert await answer.read() == b""

    asyncio.run(asked())
    assert source.closed


def test_where_it_is_not_installed_people_are_told_how(monkeypatch):
    monkeypatch.setitem(sys.modules, "litellm", None)
    with pytest.raises(UpstreamError, match=r"pip install 'tidegate\[litellm\]'") as caught:
        post("/chat/completions", CHAT)
    assert caught.value.status == 501
