"""What servers' and providers' own APIs tell of windows. The answers are re-typed, with the fields that matter."""

from __future__ import annotations

import json
import time
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.overflow.told import ANY, Api, ModelFacts, windows_from

SHOW_INFO = {"general.architecture": "qwen3", "qwen3.block_count": 28, "qwen3.context_length": 40_960}

YES, NO = {"supported": True}, {"supported": False}
CLEARS = {"context_management": {"supported": True, "compact_20260112": YES, "clear_tool_uses_20250919": YES}}

TOLD: list[tuple[str, Api, Any, dict[str, ModelFacts]]] = [
    (
        "vLLM",
        "models",
        {"object": "list", "data": [{"id": "Qwen/Qwen3-8B", "object": "model", "root": "x", "max_model_len": 32_768}]},
        {"Qwen/Qwen3-8B": ModelFacts(32_768)},
    ),
    (
        "OpenRouter: the largest of its providers' windows",
        "models",
        {
            "data": [
                {
                    "id": "openai/gpt-5",
                    "context_length": 400_000,
                    "architecture": {"modality": "text->text"},
                    "top_provider": {"context_length": 272_000, "max_completion_tokens": 128_000},
                    "per_request_limits": None,
                },
                {"id": "tiny/one", "context_length": None, "top_provider": {"context_length": 8_192}},
            ]
        },
        {"openai/gpt-5": ModelFacts(400_000, max_output=128_000), "tiny/one": ModelFacts(8_192)},
    ),
    (
        "llama.cpp: what is served, not what was trained",
        "models",
        {
            "models": [{"name": "q.gguf", "model": "q.gguf", "capabilities": ["completion"]}],
            "data": [{"id": "q.gguf", "meta": {"n_ctx_train": 40_960, "n_ctx": 8_192, "n_params": 596_049_920}}],
        },
        {"q.gguf": ModelFacts(8_192)},
    ),
    (
        "older llama.cpp",
        "models",
        {"data": [{"id": "q.gguf", "meta": {"n_ctx_train": 40_960}}]},
        {"q.gguf": ModelFacts(40_960)},
    ),
    (
        "Groq",
        "models",
        {"data": [{"id": "llama-3.3-70b", "context_window": 131_072, "max_completion_tokens": 32_768}]},
        {"llama-3.3-70b": ModelFacts(131_072, max_output=32_768)},
    ),
    (
        "Mistral",
        "models",
        {"data": [{"id": "mistral-small", "max_context_length": 131_072, "capabilities": {"vision": True}}]},
        {"mistral-small": ModelFacts(131_072)},
    ),
    (
        "Gemini",
        "models",
        {"models": [{"name": "models/gemini-2.5-pro", "inputTokenLimit": 1_048_576, "outputTokenLimit": 65_536}]},
        {"gemini-2.5-pro": ModelFacts(None, 1_048_576, 65_536)},
    ),
    (
        "Copilot",
        "models",
        {
            "data": [
                {
                    "id": "gpt-4.1",
                    "capabilities": {
                        "type": "chat",
                        "limits": {
                            "max_context_window_tokens": 128_000,
                            "max_prompt_tokens": 64_000,
                            "max_output_tokens": 16_384,
                        },
                    },
                }
            ]
        },
        {"gpt-4.1": ModelFacts(128_000, 64_000, 16_384)},
    ),
    (
        "LM Studio: what is loaded",
        "models",
        {"data": [{"id": "qwen", "max_context_length": 262_144, "loaded_context_length": 4_096}]},
        {"qwen": ModelFacts(4_096)},
    ),
    ("Together: a bare list", "models", [{"id": "a/b", "context_length": 8_193}], {"a/b": ModelFacts(8_193)}),
    ("one model", "models", {"id": "gpt-x", "context_length": 9_000}, {"gpt-x": ModelFacts(9_000)}),
    ("OpenAI tells nothing", "models", {"data": [{"id": "gpt-5", "object": "model", "owned_by": "system"}]}, {}),
    (
        "Anthropic: the input it means is the window",
        "anthropic",
        {
            "data": [
                {"type": "model", "id": "claude-x-5", "max_input_tokens": 1_000_000, "max_tokens": 128_000},
                {"type": "model", "id": "claude-old", "max_input_tokens": None, "max_tokens": None},
            ],
            "has_more": False,
        },
        {"claude-x-5": ModelFacts(1_000_000, None, 128_000)},
    ),
    (
        "Anthropic: what a model can do",
        "anthropic",
        {
            "data": [
                {"id": "both", "capabilities": {**CLEARS, "compaction": {"supported": True, "summarize": YES}}},
                {
                    "id": "neither",
                    "capabilities": {
                        "context_management": {"compact_20260112": NO},
                        "compaction": {"supported": False, "summarize": NO},
                    },
                },
                {"id": "not-told", "max_input_tokens": 200_000, "capabilities": CLEARS},
                {"id": "nonsense", "capabilities": {"compaction": {"summarize": {"supported": "yes"}}}},
            ]
        },
        {
            "both": ModelFacts(on_demand=True, threshold=True, clears=True),
            "neither": ModelFacts(on_demand=False, threshold=False),
            "not-told": ModelFacts(200_000, threshold=True, clears=True),
        },
    ),
    (
        "llama.cpp's properties: of one slot",
        "props",
        {"default_generation_settings": {"n_ctx": 65_536, "params": {"n_predict": -1}}, "total_slots": 2},
        {ANY: ModelFacts(65_536)},
    ),
    ("a llama.cpp router, without a model", "props", {"default_generation_settings": {"n_ctx": 0}}, {}),
    (
        "Ollama: the model's own window",
        "show",
        {"parameters": 'stop "<|im_end|>"\nnum_ctx                        8192', "model_info": SHOW_INFO},
        {ANY: ModelFacts(8_192)},
    ),
    ("Ollama: what was trained", "show", {"model_info": SHOW_INFO, "parameters": ""}, {ANY: ModelFacts(40_960)}),
    (
        "Ollama: what is loaded",
        "ps",
        {"models": [{"name": "qwen3:8b", "model": "qwen3:8b", "size": 5_618_579_456, "context_length": 4_096}]},
        {"qwen3:8b": ModelFacts(4_096)},
    ),
    (
        "litellm's table",
        "litellm",
        {
            "sample_spec": {"max_input_tokens": "max input tokens, if the provider specifies it"},
            "gpt-5": {"max_input_tokens": 272_000, "max_output_tokens": 128_000, "mode": "chat"},
            "dall-e": {"mode": "image_generation"},
        },
        {"gpt-5": ModelFacts(None, 272_000, 128_000)},
    ),
]


@pytest.mark.parametrize(("api", "answer", "facts"), [case[1:] for case in TOLD], ids=[case[0] for case in TOLD])
def test_told_windows_are_read(api: Api, answer: Any, facts: dict[str, ModelFacts]) -> None:
    assert windows_from(api, json.dumps(answer)) == facts
    assert windows_from(api, json.dumps(answer).encode()) == facts


def test_of_a_name_that_stands_twice_the_larger_sizes_count() -> None:
    listed = [{"id": "m", "max_model_len": 300}, {"id": "m", "max_model_len": 32_768, "max_output_tokens": 4_096}]
    for entries in (listed, listed[::-1]):
        told = windows_from("models", json.dumps({"data": entries}))
        assert told == {"m": ModelFacts(window=32_768, max_output=4_096)}


@pytest.mark.parametrize(
    "body", [b"[" + b"[]," * 2_700_000 + b"[]]", '{"data":[' + "{}," * 300_000 + "{}]}", b" " * 17_000_000]
)
def test_an_answer_that_is_no_list_of_models_costs_little(body: bytes | str) -> None:
    began = time.thread_time()
    assert windows_from("models", body) == {}
    assert time.thread_time() - began < 0.1


@pytest.mark.parametrize("size", [0, -1, 12, True, "32768", None, 10**12, [], 1e400])
def test_sizes_no_window_has_are_not_believed(size: Any) -> None:
    body = json.dumps({"data": [{"id": "m", "max_model_len": size, "context_length": 8_192}]})
    assert windows_from("models", body) == {"m": ModelFacts(8_192)}


KEYS = (
    "data", "models", "id", "name", "meta", "n_ctx", "context_length", "parameters", "model_info", "x.context_length",
    "default_generation_settings", "top_provider",
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(get_args(Api)), JSON | st.binary(max_size=30))
def test_nonsense_tells_nothing_and_raises_nothing(api: Api, answer: Any) -> None:
    told = windows_from(api, answer if isinstance(answer, bytes) else json.dumps(answer))
    assert all(facts != ModelFacts() for facts in told.values())


@pytest.mark.parametrize("body", [b"", b"<html>", b"[" * 100_000, b"\xff\xfe", b"null", b"3"])
def test_what_is_no_answer_tells_nothing(body: bytes) -> None:
    assert [windows_from(api, body) for api in get_args(Api)] == [{}] * len(get_args(Api))
