"""What repeats the request or the model is not read: quoted, bracketed, cut off, before or after a cut."""

from __future__ import annotations

import json

import pytest

from tidegate.overflow import Refusal, Verdict, classify
from tidegate.overflow.echo import without_echo
from tidegate.providers import load

GENERIC = load().rules("generic")
TOO_LONG = "prompt is too long: 213462 tokens > 200000 maximum"


def judge(body: str, status: int = 400) -> Verdict:
    return classify(Refusal(status, body), GENERIC)


def error(message: str, **fields: object) -> str:
    return json.dumps({"error": {"message": message, **fields}})


def inside(**fields: object) -> str:
    return error("Upstream 400: " + json.dumps(fields))


ECHOES = {
    "python repr": error(f"Error: bad request {{'messages': [{{'role': 'user', 'content': '{TOO_LONG}'}}]}}"),
    "python repr, words after it": error(
        f"Invalid request body: {{'model': 'm', 'messages': [{{'content': '{TOO_LONG}'}}]}} tool schema is bad"
    ),
    "python repr, an apostrophe in it": error(f"bad request: {{'content': \"it's: {TOO_LONG}\"}} is not allowed"),
    "json, cut": error(f'Bad tool schema. Request: {{"messages":[{{"content":"{TOO_LONG}'),
    "json with spaces, cut": error(f'Bad tool schema. Request: {{ "messages" : [ {{ "content" : "{TOO_LONG} and'),
    "a value": error(f"messages.3.content: invalid value '{TOO_LONG}', expected list"),
    "arguments": error(f'Invalid JSON in tool arguments: "{TOO_LONG}"'),
    "a template's message": error(f"Template error at message '{TOO_LONG}'"),
    "a parser's rest": error(f"Unexpected token p in JSON at position 1: {TOO_LONG}"),
    "a tool's output": error(f"tool_result for 'bash' reported: {TOO_LONG} - content must be a list"),
    "the user": error(f"Could not route. User message: {TOO_LONG}"),
    "typographic quotes": error(f"Cannot parse input “{TOO_LONG}” as JSON"),
    "an old completion": json.dumps({"choices": [{"text": TOO_LONG, "finish_reason": "stop"}], "error": {}}),
    "60 KB after it": inside(messages=[{"content": TOO_LONG + " x" * 30_000}], error={"message": "bad tool schema"}),
    "60 KB before it": inside(messages=[{"content": "x " * 30_000 + TOO_LONG}], error={"message": "bad tool schema"}),
    "a megabyte of lists around it": '{"messages":[{"content":"' + TOO_LONG + '"},' + "[]," * 400_000 + "[]],",
    "at the end of two megabytes": '{"messages":["' + "x " * 1_000_000 + TOO_LONG + '"],"error":{"message":"bad"}}',
}  # fmt: skip


@pytest.mark.parametrize("name", ECHOES)
def test_an_echo_is_no_refusal(name: str) -> None:
    verdict = judge(ECHOES[name])
    assert verdict.action != "compact", verdict.evidence
    assert (verdict.input_tokens, verdict.window) == (None, None)


REFUSALS = {
    "after 60 KB of echo": inside(messages=[{"content": "x" * 60_000}], error={"message": TOO_LONG}),
    "before 60 KB of echo": inside(error={"message": TOO_LONG}, messages=[{"content": "x" * 60_000}]),
    "after a quotation": error(f"invalid input 'a small and harmless text', and {TOO_LONG}"),
    "before a quotation": error(f"{TOO_LONG}. Received: 'a small and harmless text'"),
    "as a gateway's quotation": error(f'upstream said "{TOO_LONG}"'),
    "as an error message": error(f"Provider returned error message '{TOO_LONG}'"),
    "in a repr of an error": error(f"BadRequestError: {{'error': {{'message': '{TOO_LONG}'}}}}"),
    "with short names in quotes": error(f"'messages' of 'input': {TOO_LONG}"),
    "at an index": error(f"input[1302].content: {TOO_LONG}"),
    "at an index like a status": error(f"messages[429].content[401]: {TOO_LONG}"),
    "in a page": f"<html><body><p>{TOO_LONG.replace('>', '&gt;')}</p></body></html>",
    "at the end of two megabytes": '{"echoed":"' + "x " * 1_000_000 + '","error":{"message":"' + TOO_LONG + '"}}',
    "before a megabyte of lists": '{"error":{"message":"' + TOO_LONG + '"},"a":[' + "[]," * 400_000 + "[]]}",
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_stands_beside_an_echo_is_read(name: str) -> None:
    verdict = judge(REFUSALS[name])
    assert (verdict.action, verdict.input_tokens, verdict.window) == ("compact", 213_462, 200_000), verdict.evidence


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("content: 'what the user has said', expected a list", "content:  , expected a list"),
        ("the model's messages exceed the user's limits", "the model's messages exceed the user's limits"),
        ("input 'messages' is bad", "input 'messages' is bad"),
        ("message: 'what an upstream has said'", "message: 'what an upstream has said'"),
    ],
)
def test_only_quotations_of_the_client_are_cut(text: str, kept: str) -> None:
    assert without_echo(text) == kept
