"""Bodies of any shape are judged, never a crash."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulator_calls import KEYS, PATHS, app_of, call

from tidegate.simulator.context_settings import KNOWN_BETAS
from tidegate.simulator.fields import MESSAGES_BLOCKS, RESPONSES_ITEMS
from tidegate.simulator.jsontext import encode
from tidegate.simulator.profiles import PROFILES

WORDS = st.sampled_from(["", "x", "FACT-01", "auto", "none", "<transcript>a</transcript>"])
TYPES = st.sampled_from(
    [
        *RESPONSES_ITEMS,
        *MESSAGES_BLOCKS,
        "image_url",
        "function",
        "input_text",
        "enabled",
        "custom",
        "compaction_trigger",
    ]
)
ROLES = st.sampled_from(["user", "assistant", "system", "tool", "developer", "function"])
LEAF = st.none() | st.booleans() | st.integers(-5, 3000) | WORDS | TYPES
# fmt: off
NAMES = st.sampled_from([
    "role", "content", "type", "text", "id", "call_id",
    "name", "arguments", "input", "output", "tool_calls", "tool_call_id",
    "function", "parameters", "properties", "tool_use_id", "thinking", "signature",
    "data", "summary", "encrypted_content", "cache_control", "budget_tokens", "enum",
    "items", "effort", "include_usage", "required", "input_schema",
])
# fmt: on
JSON = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=5), max_leaves=12
)
PIECE = st.fixed_dictionaries(
    {"type": TYPES},
    optional={"text": WORDS, "tool_use_id": WORDS, "id": WORDS, "name": WORDS, "input": JSON, "content": JSON},
)
MESSAGE = st.fixed_dictionaries(
    {"role": ROLES},
    optional={"content": WORDS | st.lists(PIECE, max_size=4) | JSON, "tool_calls": JSON, "tool_call_id": WORDS},
)
ITEM = PIECE | MESSAGE | JSON
MEASURE = st.fixed_dictionaries(
    {"type": st.sampled_from(["input_tokens", "tool_uses", "thinking_turns", "all"]), "value": st.integers(0, 90_000)}
)
EDIT = st.fixed_dictionaries(
    {"type": st.sampled_from(["compact_20260112", "clear_tool_uses_20250919", "clear_thinking_20251015"])},
    optional={"trigger": MEASURE | JSON, "keep": MEASURE | JSON, "exclude_tools": JSON, "clear_tool_inputs": JSON},
)
BODY = st.fixed_dictionaries(
    {"model": st.sampled_from(["m", "gpt-5", "claude-sonnet-5-5"])},
    optional={
        "messages": st.lists(ITEM, max_size=4) | JSON,
        "input": st.lists(ITEM, max_size=4) | JSON,
        "max_tokens": st.sampled_from([100, 2000]) | JSON,
        "max_output_tokens": JSON,
        "stream": st.booleans() | JSON,
        "stream_options": JSON,
        "system": JSON,
        "instructions": JSON,
        "tools": st.lists(PIECE, max_size=2) | JSON,
        "tool_choice": JSON,
        "thinking": JSON,
        "reasoning": JSON,
        "include": JSON,
        "context_management": JSON | st.fixed_dictionaries({"edits": st.lists(EDIT, max_size=3)}),
        "compaction": st.just({"type": "summarize"}) | JSON,
        "previous_response_id": JSON,
        "conversation": JSON,
        "items": st.lists(ITEM, max_size=3) | JSON,
        "metadata": JSON,
        "text": JSON,
    },
)
APPS = {name: app_of(profile=name, window=2000, strict_fields=False) for name in ("auto", *PROFILES)}


HEADERS = KEYS | {"anthropic-beta": ",".join(KNOWN_BETAS)}
OTHERS = (
    "/v1/messages/count_tokens",
    "/v1/responses/input_tokens",
    "/v1/responses/compact",
    "/openai/v1/responses/compact",
    "/backend-api/codex/responses",
    "/v1/conversations",
)


@pytest.mark.parametrize("path", [*PATHS.values(), *OTHERS])
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(body=BODY, profile=st.sampled_from(list(APPS)))
def test_any_body_gets_an_answer(path, body, profile):
    app = APPS[profile]
    answer = call(app, path, encode(body), HEADERS)
    assert answer.status in (200, 400, 404, 422, 500)
    if answer.status == 500:
        assert "conversation roles must alternate" in answer.error
    assert app.state.records[-1].outcome in ("answered", "refused", "overflow")
    if answer.status != 200:
        assert answer.error
    app.state.reset()
