"""`tidegate.classify` as a program meets it: real exceptions of real clients, texts and answers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import anthropic
import httpx2
import openai
import pytest

import tidegate
from tidegate import Refusal, Sent

OVERFLOW = {
    "error": {
        "message": "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 "
        "tokens.",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
}
TOO_LONG = {
    "type": "error",
    "error": {"type": "invalid_request_error", "message": "prompt is too long: 215692 tokens > 200000 maximum"},
}
RATE = {"error": {"message": "Rate limit reached. Please try again in 2s.", "code": "rate_limit_exceeded"}}


def events(*data: object) -> bytes:
    return b"".join(b"event: error\ndata: " + json.dumps(one).encode() + b"\n\n" for one in data)


def raised_by(call: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


def http(status: int, body: bytes, kind: str = "application/json", **headers: str) -> Any:
    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, content=body, headers={"content-type": kind, **headers})

    return httpx2.Client(transport=httpx2.MockTransport(answer))


def by_openai(
    status: int, body: object, *, stream: bool = False, base_url: str = "https://api.openai.com/v1", **headers: str
) -> Exception:
    """What the OpenAI client raises for this answer."""
    raw, kind = (events(body), "text/event-stream") if stream else (json.dumps(body).encode(), "application/json")
    client = openai.OpenAI(
        api_key="k", base_url=base_url, max_retries=0, http_client=http(status, raw, kind, **headers)
    )
    messages: Any = [{"role": "user", "content": "hi"}]
    if stream:
        return raised_by(lambda: list(client.chat.completions.create(model="gpt-5", messages=messages, stream=True)))
    return raised_by(lambda: client.chat.completions.create(model="gpt-5", messages=messages))


def by_anthropic(status: int, body: object, *, stream: bool = False) -> Exception:
    """What the Anthropic client raises for this answer."""
    raw, kind = (events(body), "text/event-stream") if stream else (json.dumps(body).encode(), "application/json")
    client = anthropic.Anthropic(api_key="k", max_retries=0, http_client=http(status, raw, kind))
    messages: Any = [{"role": "user", "content": "hi"}]
    if stream:
        call = lambda: list(client.messages.create(model="m", max_tokens=9, messages=messages, stream=True))  # noqa: E731
        return raised_by(call)
    return raised_by(lambda: client.messages.create(model="m", max_tokens=9, messages=messages))


# ── exceptions of the real clients ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stream", [False, True], ids=["answer", "event"])
def test_an_overflow_that_the_openai_client_raised(stream: bool) -> None:
    verdict = tidegate.classify(by_openai(200 if stream else 400, OVERFLOW, stream=stream))
    assert (verdict.kind, verdict.action, verdict.certain) == ("overflow", "compact", True)
    assert (verdict.input_tokens, verdict.window) == (130_000, 128_000)


@pytest.mark.parametrize("stream", [False, True], ids=["answer", "event"])
def test_an_overflow_that_the_anthropic_client_raised(stream: bool) -> None:
    verdict = tidegate.classify(by_anthropic(200 if stream else 400, TOO_LONG, stream=stream))
    assert (verdict.kind, verdict.input_tokens, verdict.evidence.source) == ("overflow", 215_692, "anthropic.toml")


def test_a_rate_limit_with_its_wait() -> None:
    error = by_openai(429, RATE, **{"retry-after": "7"})
    verdict = tidegate.classify(error)
    assert (verdict.kind, verdict.retry_after) == ("rate_limit", 7.0)


def test_a_body_that_is_no_json() -> None:
    client = openai.OpenAI(api_key="k", max_retries=0, http_client=http(413, b"<html>Request Entity Too Large</html>"))
    error = raised_by(lambda: client.models.list())
    assert tidegate.classify(error).kind == "payload_bytes"


def test_whose_it_is_is_read_from_the_address() -> None:
    body = {"error": {"message": "Please reduce the length of the messages or completion."}}
    error = by_openai(400, body, base_url="https://api.groq.com/openai/v1")
    assert tidegate.classify(error).evidence.source == "groq.toml"


def test_no_answer_is_a_servers_failure() -> None:
    def lost(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectTimeout("timed out", request=request)

    client = openai.OpenAI(api_key="k", max_retries=0, http_client=httpx2.Client(transport=httpx2.MockTransport(lost)))
    error = raised_by(lambda: client.models.list())
    for each in (error, error.__cause__, TimeoutError("read timed out"), ConnectionResetError()):
        assert isinstance(each, BaseException)
        verdict = tidegate.classify(each)
        assert (verdict.kind, verdict.action, verdict.certain) == ("server", "none", True), each


@pytest.mark.parametrize("package", ["httpx", "httpx2"])
def test_an_answer_that_was_raised_for_its_status(package: str) -> None:
    module = pytest.importorskip(package)
    request = module.Request("POST", "https://api.anthropic.com/v1/messages")
    response = module.Response(400, json=TOO_LONG, request=request)
    verdict = tidegate.classify(raised_by(response.raise_for_status))
    assert (verdict.kind, verdict.window or verdict.input_limit) == ("overflow", 200_000)


def test_a_streamed_body_that_was_never_read() -> None:
    response = httpx2.Response(
        400, stream=httpx2.ByteStream(b"{}"), request=httpx2.Request("POST", "https://example.com/")
    )
    error = httpx2.HTTPStatusError("Client error '400 Bad Request'", request=response.request, response=response)
    verdict = tidegate.classify(error, sent=Sent(tokens=900, window=128_000))
    assert verdict.kind == "other_4xx"


def test_what_botocore_raises() -> None:
    exceptions = pytest.importorskip("botocore.exceptions")
    refused = {
        "Error": {"Code": "ValidationException", "Message": "Input is too long for requested model."},
        "ResponseMetadata": {"HTTPStatusCode": 400, "HTTPHeaders": {}},
    }
    throttled = {
        "Error": {"Code": "ThrottlingException", "Message": "Too many tokens, please wait before trying again."},
        "ResponseMetadata": {"HTTPStatusCode": 429, "HTTPHeaders": {"retry-after": "3"}},
    }
    event = {"Error": {"Code": "validationException", "Message": "Input is too long for requested model."}}
    assert tidegate.classify(exceptions.ClientError(refused, "Converse")).kind == "overflow"
    assert tidegate.classify(exceptions.EventStreamError(event, "ConverseStream")).kind == "overflow"
    verdict = tidegate.classify(exceptions.ClientError(throttled, "Converse"))
    assert (verdict.kind, verdict.retry_after) == ("rate_limit", 3.0)
    lost = exceptions.ReadTimeoutError(endpoint_url="https://bedrock-runtime.us-east-1.amazonaws.com/")
    assert tidegate.classify(lost).kind == "server"


def litellm_like(name: str, message: str, *, status: int, **fields: object) -> Exception:
    """An exception with the name and attributes of one of LiteLLM's, which is too large to install for this."""
    kind = type(name, (openai.BadRequestError,), {"__module__": "litellm.exceptions"})
    request = httpx2.Request("GET", "https://litellm.ai")
    error: Exception = kind(f"litellm.{name}: {message}", response=httpx2.Response(status, request=request), body=None)
    for key, value in {"llm_provider": "openai", "model": "gpt-5", "status_code": status, **fields}.items():
        setattr(error, key, value)
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (
            litellm_like(
                "ContextWindowExceededError",
                "litellm.BadRequestError: OpenAIException - This model's maximum context length is 8192 tokens. "
                "However, your messages resulted in 9000 tokens.",
                status=400,
            ),
            "overflow",
        ),
        (
            litellm_like(
                "BadRequestError",
                f"AnthropicException - b'{json.dumps(TOO_LONG)}'",
                status=400,
                llm_provider="anthropic",
            ),
            "overflow",
        ),
        (litellm_like("RateLimitError", "GroqException - Rate limit reached", status=429), "rate_limit"),
        (litellm_like("APIConnectionError", "OllamaException - Connection refused", status=500), "server"),
        (
            litellm_like(
                "MidStreamFallbackError",
                "the stream broke",
                status=503,
                original_exception=litellm_like("BadRequestError", json.dumps(TOO_LONG), status=400),
            ),
            "server",
        ),
    ],
)
def test_what_litellm_raises(error: Exception, kind: str) -> None:
    assert tidegate.classify(error).kind == kind


def test_a_timeout_says_nothing_of_the_window_whatever_its_text() -> None:
    assert tidegate.classify(TimeoutError("prompt is too long: 213462 tokens > 200000 maximum")).kind == "server"


def test_the_cause_of_somebodys_own_exception() -> None:
    def call() -> None:
        try:
            raise by_openai(400, OVERFLOW)
        except openai.APIError as error:
            raise RuntimeError("the agent's turn failed") from error

    assert tidegate.classify(raised_by(call)).kind == "overflow"

    def handle() -> None:
        try:
            raise by_openai(400, OVERFLOW)
        except openai.APIError:
            raise RuntimeError("the agent's turn failed")  # noqa: B904

    def hide() -> None:
        try:
            raise by_openai(400, OVERFLOW)
        except openai.APIError:
            raise RuntimeError("the agent's turn failed") from None

    assert tidegate.classify(raised_by(handle)).kind == "overflow"
    assert tidegate.classify(raised_by(hide)).kind != "overflow"
    grouped = ExceptionGroup("several", [ValueError("no"), by_openai(400, OVERFLOW)])
    assert tidegate.classify(grouped).kind == "overflow"


def test_an_answer_that_was_cut_or_filtered() -> None:
    answer = {
        "id": "c", "object": "chat.completion", "created": 0, "model": "gpt-5",
        "choices": [{"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": "{"}}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150},
    }  # fmt: skip
    completion = openai.types.chat.ChatCompletion.model_validate(answer)
    assert tidegate.classify(openai.LengthFinishReasonError(completion=completion)).kind == "truncated_output"


class Hostile(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")

    @property
    def response(self) -> object:
        raise KeyError("no")

    @property
    def status_code(self) -> int:
        raise ValueError("no")


@pytest.mark.parametrize("error", [Hostile(), KeyboardInterrupt(), ValueError(), Exception(b"\xff"), StopIteration(3)])
def test_no_exception_makes_it_raise(error: BaseException) -> None:
    assert tidegate.classify(error).action == "none"


def test_causes_in_a_circle_end() -> None:
    one, two = ValueError("a"), ValueError("b")
    one.__cause__, two.__cause__ = two, one
    assert tidegate.classify(one).kind == "other_4xx"


# ── texts, answers, and what was sent ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "refusal",
    [
        "prompt is too long: 215692 tokens > 200000 maximum",
        b"prompt is too long: 215692 tokens > 200000 maximum",
        json.dumps(TOO_LONG),
        Refusal(400, json.dumps(TOO_LONG)),
        Refusal(200, json.dumps(TOO_LONG), in_stream=True),
        ValueError("prompt is too long: 215692 tokens > 200000 maximum"),
    ],
)
def test_whatever_one_has_of_a_refusal(refusal: Any) -> None:
    verdict = tidegate.classify(refusal)
    assert (verdict.kind, verdict.input_tokens) == ("overflow", 215_692)


def test_a_models_window_is_known_by_its_name() -> None:
    sent = Sent(tokens=31_000)
    assert tidegate.classify(Refusal(400, ""), model="claude-haiku-4-5", sent=Sent(tokens=190_000)).kind == "overflow"
    assert tidegate.classify(Refusal(400, ""), model="claude-haiku-4-5", sent=sent).kind == "other_4xx"
    assert tidegate.classify(Refusal(400, ""), model="nobody-knows", sent=sent).kind == "other_4xx"
    given = Sent(tokens=31_000, window=32_768)
    assert tidegate.classify(Refusal(400, ""), model="claude-haiku-4-5", sent=given).kind == "overflow"


def test_a_provider_nobody_knows_has_the_rules_for_any() -> None:
    assert tidegate.classify("Input is too long for requested model.", provider="bedrock").kind == "overflow"


# ── what it costs to have it ──────────────────────────────────────────────────────────────────────────────────────────


def test_importing_tidegate_brings_nothing_along() -> None:
    code = (
        "import sys, time; began = time.process_time(); import tidegate; spent = time.process_time() - began; "
        "print(spent < 0.3, sorted({'pydantic', 'openai', 'anthropic', 'uvicorn', 'httpx', 'httpx2', 'click', "
        "'msgspec'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "True []"


def test_classifying_imports_no_client_and_no_server() -> None:
    code = (
        "import sys, tidegate; tidegate.classify('x'); print(sorted({'openai', 'anthropic', 'litellm', 'httpx', "
        "'httpx2', 'botocore', 'uvicorn', 'tidegate.gateway', 'tidegate.store'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"


def test_the_public_names() -> None:
    assert {"classify", "Refusal", "Sent", "Verdict"} <= set(dir(tidegate))
    with pytest.raises(AttributeError, match="no attribute 'clasify'"):
        _ = tidegate.clasify  # type: ignore[attr-defined]
