"""A chat completions request as a Responses request: what has its like there, and all that has not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidegate.simulator.minting import Mint
from tidegate.simulator.profiles import PROFILES
from tidegate.simulator.responses import read as simulated
from tidegate.simulator.settings import SimulatorSettings
from tidegate.simulator.world import Desk, World
from tidegate.wire import chat
from tidegate.wire.bridge import Unmapped, responses_body

HELLO = {"role": "user", "content": "Hello"}
FUNCTION = {"name": "read", "parameters": {"type": "object", "properties": {}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"a":1}'}}
GRAMMAR = {"type": "grammar", "definition": "x", "syntax": "lark"}
CUSTOM = {"id": "call_2", "type": "custom", "custom": {"name": "shell", "input": "ls"}}


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [*parts]}


def assistant(content: str | None = "x", **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


def mapped(**fields: Any) -> dict[str, Any]:
    body = {"model": "gpt-5.1", "messages": [HELLO], **fields}
    made: dict[str, Any] = json.loads(responses_body(chat.read(json.dumps(body).encode())))
    return made


def why(**fields: Any) -> str:
    with pytest.raises(Unmapped) as error:
        mapped(**fields)
    return error.value.what


def text(words: str, kind: str = "input_text") -> dict[str, Any]:
    return {"type": kind, "text": words}


def message(role: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [*parts]}


BASE = {"model": "gpt-5.1", "input": [message("user", text("Hello"))], "store": False}
SCHEMA = {"name": "answer", "schema": {"type": "object"}, "strict": True, "description": "d"}

FIELDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "an output limit": ({"max_completion_tokens": 100}, {"max_output_tokens": 100}),
    "the older one": ({"max_tokens": 16}, {"max_output_tokens": 16}),
    "effort": ({"reasoning_effort": "low"}, {"reasoning": {"effort": "low"}}),
    "verbosity and format": (
        {"verbosity": "high", "response_format": {"type": "json_object"}},
        {"text": {"verbosity": "high", "format": {"type": "json_object"}}},
    ),
    "words": ({"response_format": {"type": "text"}}, {"text": {"format": {"type": "text"}}}),
    "a schema": (
        {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
        {"text": {"format": {"type": "json_schema", **SCHEMA}}},
    ),
    "a schema that is not strict": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}},
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": {}, "strict": False}}},
    ),
    "a function": (
        {"tools": [{"type": "function", "function": {**FUNCTION, "description": "d"}}]},
        {"tools": [{"type": "function", **FUNCTION, "description": "d", "strict": False}]},
    ),
    "a strict function": (
        {"tools": [{"type": "function", "function": {**FUNCTION, "strict": True}}]},
        {"tools": [{"type": "function", **FUNCTION, "strict": True}]},
    ),
    "a function without parameters": (
        {"tools": [{"type": "function", "function": {"name": "now"}}]},
        {"tools": [{"type": "function", "name": "now", "parameters": FUNCTION["parameters"], "strict": False}]},
    ),
    "a custom tool": (
        {
            "tools": [
                {
                    "type": "custom",
                    "custom": {
                        "name": "shell",
                        "format": {"type": "grammar", "grammar": {"definition": "x", "syntax": "lark"}},
                    },
                }
            ]
        },
        {"tools": [{"type": "custom", "name": "shell", "format": GRAMMAR}]},
    ),
    "a choice": ({"tool_choice": "required"}, {"tool_choice": "required"}),
    "a function chosen": (
        {"tool_choice": {"type": "function", "function": {"name": "read"}}},
        {"tool_choice": {"type": "function", "name": "read"}},
    ),
    "a custom tool chosen": (
        {"tool_choice": {"type": "custom", "custom": {"name": "shell"}}},
        {"tool_choice": {"type": "custom", "name": "shell"}},
    ),
    "allowed tools": (
        {
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "read"}}]},
            }
        },
        {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "read"}]}},
    ),
    "one call at a time": ({"parallel_tool_calls": False}, {"parallel_tool_calls": False}),
    "labels": (
        {"metadata": {"a": "b"}, "user": "u", "safety_identifier": "s", "service_tier": "flex"},
        {"metadata": {"a": "b"}, "user": "u", "safety_identifier": "s", "service_tier": "flex"},
    ),
    "the cache": (
        {"prompt_cache_key": "k", "prompt_cache_retention": "24h", "prompt_cache_options": {"mode": "explicit"}},
        {"prompt_cache_key": "k", "prompt_cache_retention": "24h", "prompt_cache_options": {"mode": "explicit"}},
    ),
    "heat": ({"temperature": 0.2, "top_p": 0.9}, {"temperature": 0.2, "top_p": 0.9}),
    "a stream": (
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
        {"stream": True, "stream_options": {"include_obfuscation": False}},
    ),
    "a stream with usage": ({"stream": True, "stream_options": {"include_usage": True}}, {"stream": True}),
    "what says nothing": (
        {
            "n": 1, "logprobs": False, "logit_bias": {}, "seed": None, "audio": None, "frequency_penalty": 0,
            "presence_penalty": 0.0, "store": False, "modalities": ["text"], "top_logprobs": None, "stop": [],
        },
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(FIELDS))
def test_fields(name: str) -> None:
    given, made = FIELDS[name]
    assert mapped(**given) == {**BASE, **made}


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
FILE = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}}

MESSAGES: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "instructions": (
        [{"role": "system", "content": "Be brief."}, {"role": "developer", "content": [text("Or not.", "text")]}],
        [message("system", text("Be brief.")), message("developer", text("Or not."))],
    ),
    "an image and a file": (
        [{"role": "user", "content": [text("See", "text"), IMAGE, FILE]}],
        [
            message(
                "user",
                text("See"),
                {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"},
                {"type": "input_file", **FILE["file"]},  # type: ignore[dict-item]
            )
        ],
    ),
    "how closely an image is looked at": (
        [user({"type": "image_url", "image_url": {"url": "https://a/b.png", "detail": "low"}})],
        [message("user", {"type": "input_image", "image_url": "https://a/b.png", "detail": "low"})],
    ),
    "where the cache may end": (
        [{"role": "user", "content": [{**text("a", "text"), "prompt_cache_breakpoint": {"mode": "explicit"}}]}],
        [message("user", {**text("a"), "prompt_cache_breakpoint": {"mode": "explicit"}})],
    ),
    "a tool round": (
        [
            HELLO,
            {"role": "assistant", "content": None, "tool_calls": [CALL, CUSTOM]},
            {"role": "tool", "tool_call_id": "call_1", "content": "one"},
            {"role": "tool", "tool_call_id": "call_2", "content": [text("two", "text")]},
            {"role": "assistant", "content": "done"},
        ],
        [
            message("user", text("Hello")),
            {"type": "function_call", "call_id": "call_1", "name": "read", "arguments": '{"a":1}'},
            {"type": "custom_tool_call", "call_id": "call_2", "name": "shell", "input": "ls"},
            {"type": "function_call_output", "call_id": "call_1", "output": "one"},
            {"type": "custom_tool_call_output", "call_id": "call_2", "output": [text("two")]},
            message("assistant", text("done", "output_text")),
        ],
    ),
    "words before a call": (
        [
            HELLO,
            assistant("Let me see.", tool_calls=[CALL]),
            {"role": "tool", "tool_call_id": "call_1", "content": ""},
        ],
        [
            message("user", text("Hello")),
            message("assistant", text("Let me see.", "output_text")),
            {"type": "function_call", "call_id": "call_1", "name": "read", "arguments": '{"a":1}'},
            {"type": "function_call_output", "call_id": "call_1", "output": ""},
        ],
    ),
    "a refusal": (
        [HELLO, {"role": "assistant", "content": None, "refusal": "No."}],
        [message("user", text("Hello")), message("assistant", {"type": "refusal", "refusal": "No."})],
    ),
    "as SDKs send an answer back": (
        [HELLO, assistant("Hi", refusal=None, annotations=[], audio=None, function_call=None, tool_calls=None)],
        [message("user", text("Hello")), message("assistant", text("Hi", "output_text"))],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(MESSAGES))
def test_messages(name: str) -> None:
    given, made = MESSAGES[name]
    assert mapped(messages=given)["input"] == made


@pytest.mark.parametrize("name", [*FIELDS, *MESSAGES])
def test_what_is_made_breaks_no_rule(name: str) -> None:
    made = mapped(**FIELDS[name][0]) if name in FIELDS else mapped(messages=MESSAGES[name][0])
    simulated(made, Desk(World(SimulatorSettings(profile="openai"), Mint(7)), PROFILES["openai"]))


@pytest.mark.parametrize("name", list(MESSAGES))
def test_equal_messages_become_equal_items_whatever_comes_after(name: str) -> None:
    given, made = MESSAGES[name]
    longer = mapped(messages=[*given, {"role": "user", "content": "more"}], temperature=0.1)["input"]
    assert longer == [*made, message("user", text("more"))]


NOT_MAPPED: dict[str, tuple[dict[str, Any], str]] = {
    "a seed": ({"seed": 1}, "seed"),
    "a bias": ({"logit_bias": {"50256": -100}}, "logit_bias"),
    "several answers": ({"n": 2}, "n"),
    "not even one": ({"n": True}, "n"),
    "probabilities": ({"logprobs": True}, "logprobs"),
    "of how many": ({"top_logprobs": 3}, "top_logprobs"),
    "stop words": ({"stop": "END"}, "stop"),
    "penalties": ({"frequency_penalty": 0.5}, "frequency_penalty"),
    "other penalties": ({"presence_penalty": -1}, "presence_penalty"),
    "kept at OpenAI": ({"store": True}, "store"),
    "speech": ({"modalities": ["text", "audio"], "audio": {"voice": "ash", "format": "wav"}}, "modalities"),
    "a voice": ({"audio": {"voice": "ash", "format": "wav"}}, "audio"),
    "what is to be said": ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
    "a search": ({"web_search_options": {}}, "web_search_options"),
    "moderation": ({"moderation": {"model": "m"}}, "moderation"),
    "functions of old": ({"functions": [FUNCTION]}, "functions"),
    "a function of old": ({"function_call": "auto"}, "function_call"),
    "a tier that is not there": ({"service_tier": "scale"}, "service_tier"),
    "too short an answer": ({"max_tokens": 5}, "max_completion_tokens"),
    "two limits": ({"max_tokens": 50, "max_completion_tokens": 60}, "max_output_tokens"),
    "a field that nobody knows": ({"my_secret_field": 1}, "an unknown field"),
    "another stream option": ({"stream": True, "stream_options": {"other": 1}}, "stream_options"),
    "another format": ({"response_format": {"type": "grammar"}}, "response_format"),
    "another kind of tool": ({"tools": [{"type": "web_search"}]}, "tools"),
    "more about a tool": ({"tools": [{"type": "function", "function": {**FUNCTION, "x": 1}}]}, "tools"),
    "another choice": ({"tool_choice": {"type": "mcp"}}, "tool_choice"),
    "a name": ({"messages": [{**HELLO, "name": "ann"}]}, "messages[0].name"),
    "a voice message": (
        {"messages": [user({"type": "input_audio", "input_audio": {"data": "A", "format": "wav"}})]},
        "messages[0].content[0]",
    ),
    "another part": ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages[0].content[0]"),
    "more about an image": (
        {"messages": [{"role": "user", "content": [{**IMAGE, "x": 1}]}]}, "messages[0].content[0]",
    ),
    "a cache mark of another's": (
        {"messages": [{"role": "user", "content": [{**text("a", "text"), "cache_control": {"type": "ephemeral"}}]}]},
        "messages[0].content[0]",
    ),
    "a spoken answer": ({"messages": [HELLO, {"role": "assistant", "audio": {"id": "a"}}]}, "messages[1].audio"),
    "a call of old": (
        {"messages": [HELLO, {"role": "assistant", "content": "x", "function_call": {"name": "f", "arguments": ""}}]},
        "messages[1].function_call",
    ),
    "thoughts": ({"messages": [HELLO, {"role": "assistant", "content": "x", "reasoning_content": "y"}]}, "messages[1]"),
    "another role": ({"messages": [HELLO, {"role": "function", "name": "f", "content": "x"}]}, "messages[1].role"),
    "a result without its call": (
        {"messages": [HELLO, {"role": "tool", "tool_call_id": "call_9", "content": "x"}]}, "messages[1].tool_call_id",
    ),
    "a call id used twice": (
        {
            "messages": [
                HELLO,
                assistant(None, tool_calls=[CALL]),
                {"role": "tool", "tool_call_id": "call_1", "content": "x"},
                assistant(None, tool_calls=[CALL]),
            ]
        },
        "messages[3].tool_calls",
    ),
    "an answer of nothing": ({"messages": [HELLO, {"role": "assistant", "content": ""}]}, "messages[1].content"),
    "a message of nothing": ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    "citations": ({"messages": [HELLO, assistant(annotations=[{"type": "url_citation"}])]}, "messages[1].annotations"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(NOT_MAPPED))
def test_what_has_no_like(name: str) -> None:
    given, what = NOT_MAPPED[name]
    assert why(**given) == what
