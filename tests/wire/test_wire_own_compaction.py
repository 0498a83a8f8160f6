"""An agent's own compaction is told from its turns."""

import pytest
from wire_captures import capture, names

from tidegate.wire import read
from tidegate.wire.jsontext import dumps
from tidegate.wire.own_compaction import own_compaction

OWN = {
    "anthropic-sdk-thread-1": "provider_compaction",
    "anthropic-sdk-thread-2": "provider_compaction",
    "claude-code-compact-2": "claude_code_compaction",
    "codex-3": "codex_compaction",
    "codex-local-compact-2": "codex_compaction",
    "codex-ws-5": "compaction_trigger",
    "opencode-chat-4": "agent_summary",
    "pi-chat-3": "agent_summary",
}


@pytest.mark.parametrize("name", names())
def test_the_compactions_among_the_captures_are_known_and_no_turn_is_taken_for_one(name):
    told = capture(name)
    assert own_compaction(told.read(), told.headers) == OWN.get(name)


@pytest.mark.parametrize("name", [name for name in OWN if name.startswith("codex")])
def test_codex_is_known_without_its_headers_too(name):
    assert own_compaction(capture(name).read(), {}) is not None


USER = {"role": "user", "content": "hello"}
ASKS = {"role": "user", "content": [{"type": "text", "text": "CRITICAL: Respond with TEXT ONLY."}]}

CASES = [
    ("responses", {"input": [USER, {"type": "compaction_trigger"}]}, "compaction_trigger"),
    ("responses", {"input": [{"type": "compaction_trigger"}, USER]}, None),
    ("responses", {"input": "x", "context_management": [{"type": "compaction"}]}, "provider_compaction"),
    ("responses", {"input": "x", "context_management": [{"type": "other"}]}, None),
    ("responses", {"input": "x", "context_management": "compaction"}, None),
    ("responses", {"input": [USER], "client_metadata": {"x-codex-turn-metadata": "not json"}}, None),
    (
        "responses",
        {"input": [USER], "client_metadata": {"x-codex-turn-metadata": '{"request_kind":"compaction"}'}},
        "codex_compaction",
    ),
    ("messages", {"messages": [USER], "compaction": {"type": "summarize"}}, "provider_compaction"),
    ("messages", {"messages": [USER], "compaction": None}, None),
    (
        "messages",
        {"messages": [USER], "context_management": {"edits": [{"type": "compact_20260112"}]}},
        "provider_compaction",
    ),
    (
        "messages",
        {"messages": [USER], "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}, 3]}},
        None,
    ),
    ("messages", {"messages": [ASKS]}, "claude_code_compaction"),
    ("messages", {"messages": [ASKS, USER]}, None),
    ("messages", {"messages": [USER], "system": "You are a context summarization agent."}, "agent_summary"),
    (
        "messages",
        {"messages": [USER], "system": "You are a context summarization agent.", "tools": [{"name": "t"}]},
        None,
    ),
    ("responses", {"input": "x", "instructions": "a context summarization assistant"}, "agent_summary"),
    ("chat", {"messages": [{"role": "system", "content": "context summarization agent"}, USER]}, "agent_summary"),
    ("chat", {"messages": [{"role": "user", "content": "context summarization agent"}]}, None),
]


@pytest.mark.parametrize(("dialect", "body", "reason"), CASES)
def test_marks(dialect, body, reason):
    assert own_compaction(read(dialect, dumps({"model": "m", **body})), {}) == reason


def test_header_names_are_matched_in_any_case():
    conversation = read("responses", dumps({"model": "m", "input": "x"}))
    headers = {"X-Codex-Turn-Metadata": '{"request_kind":"compaction"}'}
    assert own_compaction(conversation, headers) == "codex_compaction"
    assert own_compaction(conversation, {"X-Codex-Turn-Metadata": '{"request_kind":"turn"}'}) is None
