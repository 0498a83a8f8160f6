"""What real clients send again from turn to turn, and that reading and splicing leaves their bytes alone."""

import pytest
from wire_captures import capture, names

from tidegate.wire import REQUESTS
from tidegate.wire.conversation import UnreadableBody
from tidegate.wire.jsontext import dumps, loads

# How many of the earlier request's items, all of them where None, begin the later request.
SHARED = [
    ("codex-1", "codex-2", None),
    ("codex-2", "codex-3", None),
    ("codex-3", "codex-4", 1),  # after its own compaction only the base instructions are as before
    ("codex-local-compact-1", "codex-local-compact-2", None),
    ("codex-local-compact-2", "codex-local-compact-3", 1),
    ("codex-overflow-1", "codex-overflow-2", None),
    ("claude-code-1", "claude-code-2", None),
    ("claude-code-2", "claude-code-3", None),
    ("claude-code-3", "claude-code-continue-1", None),
    ("claude-code-compact-1", "claude-code-compact-2", 4),
    ("claude-code-compact-2", "claude-code-compact-3", 0),
    ("claude-code-instream-1", "claude-code-instream-2", None),
    ("opencode-chat-2", "opencode-chat-3", None),
    ("opencode-chat-3", "opencode-chat-4", 0),
    ("opencode-responses-1", "opencode-responses-2", None),
    ("opencode-anthropic-1", "opencode-anthropic-2", None),
    ("pi-chat-1", "pi-chat-2", None),
    ("pi-chat-2", "pi-chat-3", 0),
    ("pi-chat-2", "pi-chat-4", 1),
    ("pi-responses-1", "pi-responses-2", None),
    ("pi-anthropic-1", "pi-anthropic-2", None),
    ("aider-1", "aider-2", 3),  # its file listing moves, and its last system message stays last
    ("cline-chat-1", "cline-chat-2", None),
    ("cn-chat-1", "cn-chat-2", None),
    ("qwen-chat-1", "qwen-chat-2", None),
    ("omp-responses-1", "omp-responses-2", None),
    ("openai-agents-responses-1", "openai-agents-responses-2", None),
    ("openai-agents-responses-2", "openai-agents-responses-3", None),
    ("openai-agents-compact-1", "openai-agents-compact-2", None),
    ("openai-agents-compact-input-1", "openai-agents-compact-input-3", 1),
    ("langchain-responses-1", "langchain-responses-2", None),
    ("langchain-responses-2", "langchain-responses-3", None),
    ("langchain-summarization-1", "langchain-summarization-2", 0),
    ("langchain-summarization-1", "langchain-summarization-3", 1),
    ("pydantic-ai-chat-1", "pydantic-ai-chat-2", None),
    ("pydantic-ai-responses-1", "pydantic-ai-responses-2", None),
    ("pydantic-ai-anthropic-1", "pydantic-ai-anthropic-2", None),
]


@pytest.mark.parametrize(("earlier", "later", "shared"), SHARED)
def test_a_later_turn_begins_with_the_earlier_one(earlier, later, shared):
    before, after = capture(earlier).chain(), capture(later).chain()
    same = 0
    while same < min(len(before), len(after)) and before[same] == after[same]:
        same += 1
    assert same == (len(before) if shared is None else shared)


def test_a_cache_mark_that_moves_is_why_bytes_alone_do_not_match():
    before, after = capture("claude-code-2"), capture("claude-code-3")
    assert before.read().items[2].raw != after.read().items[2].raw
    assert before.chain()[2] == after.chain()[2]


def test_a_title_request_under_the_same_session_id_shares_nothing_with_the_conversation():
    title, turn = capture("opencode-chat-1"), capture("opencode-chat-2")
    assert title.headers["x-session-id"] == turn.headers["x-session-id"]
    assert not set(title.chain()) & set(turn.chain()[:1])
    assert title.chain()[title.read().lead] != turn.chain()[turn.read().lead]


def test_a_thread_and_response_ids_mean_a_history_the_server_holds():
    held = {name for name in names() if capture(name).dialect != "chat" and _held(name)}
    assert held == {
        "anthropic-sdk-thread-1",
        "anthropic-sdk-thread-2",
        "codex-ws-3",
        "codex-ws-4",
        "codex-ws-5",
        "langchain-responses-prev-2",
        "openai-agents-prev-2",
        "openai-agents-prev-3",
    }


def _held(name):
    return capture(name).read().server_held


@pytest.mark.parametrize("name", names())
def test_with_nothing_replaced_the_bytes_are_the_same(name):
    told = capture(name)
    conversation = told.read()
    assert conversation.replace_items([], keep_from=conversation.lead) == told.body
    assert conversation.replace_fields({}) == told.body
    same = {key: conversation.fields[key] for key in conversation.fields}
    assert conversation.replace_fields(same) == told.body


@pytest.mark.parametrize("name", names())
def test_every_item_of_a_real_client_is_understood(name):
    told = capture(name)
    dialect = REQUESTS[told.dialect]
    for item in told.read().items:
        value = loads(item.raw)
        facts = dialect.facts(value)
        assert facts.mentions == () or facts.reference
        unread = {part.text for part in dialect.parts(value) if part.kind == "json"}
        assert unread <= {'{"type":"compaction_trigger"}'}


@pytest.mark.parametrize("name", [name for name in names() if not _held(name)])
def test_calls_and_results_of_a_whole_history_pair_up(name):
    told = capture(name)
    facts = [REQUESTS[told.dialect].facts(loads(item.raw)) for item in told.read().items]
    called = [call for item in facts for call in item.calls]
    answered = [result for item in facts for result in item.results]
    assert called == answered


def test_a_compaction_call_without_items_is_no_conversation():
    with pytest.raises(UnreadableBody, match="`input` is missing"):
        REQUESTS["responses"].read(dumps({"model": "m", "previous_response_id": "resp_1"}))
