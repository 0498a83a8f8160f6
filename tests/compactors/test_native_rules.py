"""The reasons of failed compactions under the rules of the provider files, which know more than the words built in."""

import json

import pytest
from native_cases import drive, passage_of, user

from tidegate.compactors import anthropic, openai, xai
from tidegate.compactors.native import Options, looks_too_long
from tidegate.compactors.strategy import CompactionFailed, Reply
from tidegate.overflow.verdict import Refusal
from tidegate.providers import classify

TOO_LONG = "compact_overflow"
LONG = "Your input exceeds the context window of this model. Please adjust your input and try again."
CODE = "context_length_exceeded"


def event(kind, body):
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **body})}\n\n".encode()


def error(message, **more):
    return json.dumps({"error": {"message": message, "type": "invalid_request_error", **more}}).encode()


def refused(message):
    return json.dumps({"type": "error", "error": {"type": "invalid_request_error", "message": message}}).encode()


def flat(message):
    return json.dumps({"code": "invalid-argument", "error": message}).encode()


FAILED = {"response": {"status": "failed", "error": {"code": CODE, "message": LONG}, "output": []}}
AZURE = "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 509178 tokens."
XAI = "This model's maximum prompt length is 500000 but the request contains 637815 tokens."

CASES = {
    "openai": (openai.compact, "openai", 400, error(LONG, code=CODE, param="input"), TOO_LONG),
    "openai-within": (openai.compact, "openai", 200, error(LONG, code=CODE), TOO_LONG),
    "azure": (openai.compact, "azure", 400, error(AZURE, code=CODE), TOO_LONG),
    "stream-nested": (
        openai.trigger,
        "chatgpt",
        200,
        event("error", {"error": {"type": "invalid_request_error", "code": CODE, "message": LONG, "param": "input"}}),
        TOO_LONG,
    ),
    "stream-flat": (
        openai.trigger,
        "chatgpt",
        200,
        event("error", {"code": CODE, "message": LONG}),
        TOO_LONG,
    ),
    "stream-failed": (openai.trigger, "chatgpt", 200, event("response.failed", FAILED), TOO_LONG),
    "xai": (xai.compact, "xai", 400, flat(XAI), TOO_LONG),
    "anthropic": (
        anthropic.compact,
        "anthropic",
        400,
        refused("prompt is too long: 215692 tokens > 200000 maximum"),
        TOO_LONG,
    ),
    "tokens-a-minute": (
        openai.compact,
        "openai",
        429,
        error("Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 342389.", type="tokens"),
        "compact_http_429",
    ),
    "one-string-too-long": (
        openai.compact,
        "openai",
        400,
        error("Invalid 'input[0].content': string too long.", code="string_above_max_length"),
        "compact_http_400",
    ),
    "quota-for-long-context": (
        anthropic.compact,
        "anthropic",
        429,
        refused("Extra usage is required for long context requests."),
        "compact_http_429",
    ),
    "output-limit": (
        anthropic.compact,
        "anthropic",
        400,
        refused("max_tokens: 250000 > 128000, which is the maximum allowed number of output tokens for M"),
        "compact_http_400",
    ),
    "bytes": (
        anthropic.compact,
        "anthropic",
        413,
        b'{"type":"error","error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}',
        "compact_http_413",
    ),
}


def reason_of(strategy, options, reply):
    dialect = "messages" if strategy is anthropic.compact else "responses"
    with pytest.raises(CompactionFailed) as failure:
        drive(strategy(passage_of(dialect, [user("Go.")]), options), lambda _call: reply)
    return failure.value.reason


@pytest.mark.parametrize(("strategy", "provider", "status", "body", "reason"), CASES.values(), ids=CASES)
def test_what_is_too_long_and_what_only_sounds_so(strategy, provider, status, body, reason):
    def overflows(reply):
        return classify(Refusal(reply.status, reply.body, reply.headers), provider=provider).action == "compact"

    reply = Reply(status, body)
    assert reason_of(strategy, Options(overflows=overflows), reply) == reason
    assert reason_of(strategy, Options(overflows=looks_too_long), reply) == reason


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_never_means_that_something_is_missing(status):
    for strategy in (openai.compact, openai.trigger, xai.compact, anthropic.compact):
        reply = Reply(status, error("Unknown parameter: the model does not support compaction_trigger."))
        assert reason_of(strategy, Options(), reply) == f"compact_http_{status}"
