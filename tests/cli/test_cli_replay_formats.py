"""Which requests a recorded session held, by the format of its file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tidegate.cli.replay.recorded import Asked, Unreadable, with_words_before
from tidegate.cli.replay.sessions import dialect_of, read
from tidegate.wire import REQUESTS
from tidegate.wire.conversation import DialectName

SESSIONS = Path(__file__).parent / "sessions"
CAPTURES = Path(__file__).parents[1] / "captures"

Json = dict[str, Any]


def held(asked: Asked) -> list[str]:
    """Of each message or item: its role or type, and the types of its parts."""
    body = json.loads(asked.body)
    found = []
    for item in body[REQUESTS[asked.dialect].ITEMS_KEY]:
        content = item.get("content")
        parts = [part["type"] for part in content] if isinstance(content, list) else []
        found.append(" ".join([item.get("role") or item["type"], *parts]))
    return found


def asked_in(file: Path) -> list[Asked]:
    return [*read(str(file), file.read_bytes()).requests(b"")]


CALLED = ["user", "assistant thinking tool_use tool_use", "user tool_result tool_result"]
ANSWERED = [*CALLED, "assistant text"]


def test_claude_codes_answers_each_had_the_path_to_them() -> None:
    asked = asked_in(SESSIONS / "claude-code.jsonl")
    assert [(one.line, one.aside, held(one)) for one in asked] == [
        (5, False, ["user"]),
        # blocks of one answer are one message, and results of calls that were made at once are all there
        (11, False, CALLED),
        # an error that the agent wrote itself was never sent
        (15, False, [*ANSWERED, "user text text"]),
        (17, True, ["user"]),
        (19, False, [*ANSWERED, "user text text", "assistant tool_use", "user tool_result"]),
        # a rewind goes on from the answer before it
        (21, False, [*ANSWERED, "user"]),
        # its own compaction begins anew with the summary
        (25, False, ["user text text"]),
    ]
    assert {one.dialect for one in asked} == {"messages"}
    assert {json.loads(one.body)["model"] for one in asked} == {"claude-opus-5-5"}
    assert asked[1].at is not None
    assert asked[0].at is not None
    assert asked[1].at > asked[0].at


def test_what_claude_codes_compaction_keeps_comes_after_its_summary() -> None:
    asked = asked_in(SESSIONS / "claude-code-kept.jsonl")
    texts = [
        [part["text"] if isinstance(part, dict) else part for message in json.loads(one.body)["messages"]
         for part in (message["content"] if isinstance(message["content"], list) else [message["content"]])]
        for one in asked
    ]  # fmt: skip
    assert texts[1] == ["First.", "Done first.", "Second."]
    assert texts[2] == ["The summary.", "Second.", "Done second.", "Third."]


CONTEXT = ["developer input_text", "user input_text", "user input_text"]
PATCHED = [
    *CONTEXT,
    "reasoning",
    "function_call",
    "custom_tool_call",
    "function_call_output",
    "custom_tool_call_output",
]


def test_codexs_answers_each_had_the_history_before_them() -> None:
    asked = asked_in(SESSIONS / "codex.jsonl")
    said = "assistant output_text"
    assert [(one.line, held(one)) for one in asked] == [
        (8, CONTEXT),
        (15, PATCHED),  # a snapshot was never sent
        (17, [*PATCHED, said, "user input_text"]),
        (20, [*PATCHED, said, "user input_text"]),  # the turn before was taken back
        (24, ["developer input_text", *["user input_text"] * 3]),  # what its compaction left
        (26, ["user input_text"] * 5),  # the same where only the summary is noted: the user's own words stay
    ]
    bodies = [json.loads(one.body) for one in asked]
    assert [body["model"] for body in bodies] == ["gpt-5.4-codex"] * 4 + ["gpt-5.4-mini"] * 2
    assert {body["instructions"] for body in bodies} == {"You are a coding agent."}
    assert bodies[3]["input"][-1]["content"][0]["text"] == "Keep them."


def test_what_the_files_of_agents_tell_beside_it() -> None:
    claude = read("a.jsonl", (SESSIONS / "claude-code.jsonl").read_bytes())
    codex = read("b.jsonl", (SESSIONS / "codex.jsonl").read_bytes())
    assert (claude.format, claude.window, claude.reported) == ("a session of Claude Code", None, 904)
    assert (codex.format, codex.window, codex.reported) == ("a rollout of Codex", 272_000, 6_000)


CALL = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
CHAT: list[Json] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Read it."},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "It says no."},
    {"role": "assistant", "content": "No."},
    {"role": "user", "content": "Why?"},
]
MESSAGES: list[Json] = [
    {"role": "user", "content": "Read it."},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "read", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "It says no."}]},
    {"role": "assistant", "content": "No."},
]
RESPONSES: list[Json] = [
    {"role": "user", "content": "Read it."},
    {"type": "reasoning", "id": "rs_1", "summary": []},
    {"type": "function_call", "call_id": "c1", "name": "read", "arguments": "{}"},
    {"type": "function_call", "call_id": "c2", "name": "read", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "no"},
    {"type": "function_call_output", "call_id": "c2", "output": "no"},
    {"role": "assistant", "content": [{"type": "output_text", "text": "No."}]},
]


def lines(values: list[Json]) -> bytes:
    return "\n".join(json.dumps(value) for value in values).encode()


TRANSCRIPTS: Mapping[str, tuple[str, bytes, str, DialectName, list[int]]] = {
    "a chat body": ("a.json", json.dumps({"model": "m", "messages": CHAT}).encode(), "a transcript", "chat", [2, 4, 6]),
    "a list": ("a.json", json.dumps(CHAT).encode(), "a transcript", "chat", [2, 4, 6]),
    "a message a line": ("a.jsonl", lines(CHAT), "a transcript", "chat", [2, 4, 6]),
    "a body of Messages": (
        "a.json", json.dumps({"model": "m", "max_tokens": 9, "messages": MESSAGES}).encode(), "a transcript",
        "messages", [1, 3],
    ),
    "a list of Messages": ("a.json", json.dumps(MESSAGES).encode(), "a transcript", "messages", [1, 3]),
    "a body of Responses": (
        "a.json", json.dumps({"model": "m", "input": RESPONSES}).encode(), "a transcript", "responses", [1, 6]
    ),
    "an item a line": ("a.jsonl", lines(RESPONSES), "a transcript", "responses", [1, 6]),
    "one question": ("a.json", json.dumps({"model": "m", "input": "Why?"}).encode(), "a transcript", "responses", [1]),
    "requests": (
        "a.jsonl", lines([{"model": "m", "messages": CHAT[:count]} for count in (2, 4)]), "requests", "chat", [2, 4]
    ),
    "a list of requests": (
        "a.json", json.dumps([{"model": "m", "messages": CHAT[:count]} for count in (2, 4)]).encode(), "requests",
        "chat", [2, 4],
    ),
    "requests without the ending": (
        "-", lines([{"model": "m", "input": RESPONSES[:count]} for count in (1, 6)]), "requests", "responses", [1, 6]
    ),
    "recorded requests": (
        "a.jsonl",
        lines([{"path": "/v1/messages?beta=1", "body": {"model": "m", "messages": MESSAGES[:1]}}] * 2),
        "requests", "messages", [1, 1],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("file", "content", "kind", "dialect", "counts"), TRANSCRIPTS.values(), ids=[*TRANSCRIPTS])
def test_a_transcript_was_one_request_for_each_answer(
    file: str, content: bytes, kind: str, dialect: DialectName, counts: list[int]
) -> None:
    session = read(file, content)
    asked = [*session.requests(b"")]
    assert session.format == kind
    assert {one.dialect for one in asked} == {dialect}
    assert [len(held(one)) for one in asked] == counts


def test_other_fields_of_a_body_stay_with_each_of_its_requests() -> None:
    body = {"model": "m", "tools": [{"type": "function"}], "messages": CHAT, "temperature": 0}
    for one in read("a.json", json.dumps(body).encode()).requests(b""):
        assert {**json.loads(one.body), "messages": CHAT} == body


@pytest.mark.parametrize("name", ["claude-code", "codex", "opencode-chat", "pi-anthropic", "openai-agents-responses"])
def test_requests_of_real_agents_are_read_by_what_they_hold(name: str) -> None:
    recorded = [json.loads(path.read_text()) for path in sorted(CAPTURES.glob(f"{name}-[0-9].json"))]
    asked = [*read("a.jsonl", lines(recorded)).requests(b"")]
    assert len(asked) == len(recorded) > 1
    for one, capture in zip(asked, recorded, strict=True):
        assert json.loads(one.body) == capture["body"]
        assert dialect_of(capture["body"]) == one.dialect, "without its path"
        assert capture["path"].partition("?")[0].endswith(REQUESTS[one.dialect].PATH)


def test_a_file_that_is_still_written_may_end_in_the_middle_of_a_line() -> None:
    session = read("a.jsonl", (SESSIONS / "codex.jsonl").read_bytes() + b'{"timestamp":"2026-')
    assert session.notes == ("line 27, the last one, is cut and left out",)
    assert len([*session.requests(b"")]) == 6


def test_items_of_no_kind_at_all_are_items_all_the_same() -> None:
    odd = b'{"type":"response_item","payload":{"type":["x"],"role":"user","content":"x"}}\n'
    session = read("a.jsonl", (SESSIONS / "codex.jsonl").read_bytes().rstrip() + b"\n" + odd)
    assert len([*session.requests(b"")]) == 6


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("a.jsonl", b"", "a.jsonl: nothing is in it"),
        ("a.jsonl", b'{"model":"m","messages":[{"role":"user","content":"x"}]}\n{secret\n{}', "line 2: no JSON"),
        ("a.jsonl", b'{"model":"m","messages":[{"role":"user","content":"x"}]}\n[1]\n', "line 2: a JSON object"),
        ("a.jsonl", b'{"model":"m","messages":[{"role":"user","content":"x"}]}\n{"secret":1}\n', "line 2: no request"),
        ("a.jsonl", b'{"model":"m","messages":["secret"]}\n', "line 1: no request of the chat API"),
        ("a.jsonl", b'{"secret": 1}\n{"secret": 2}\n', "no line is of a format that is known"),
        ("a.json", b'{"secret": 1}', "without `messages` or `input`"),
        ("a.json", b'{"messages": []}', "no messages are in it"),
        ("a.json", b'[{"secret": 1}]', "neither messages nor requests"),
        ("a.json", b'[{"role": "user", "content": "x"}, 7]', "something else than JSON objects"),
        ("a.txt", b"secret words", "line 1: no JSON"),
        ("a.jsonl", b'{"type":["secret"],"payload":{}}\n', "no line is of a format that is known"),
    ],
)
def test_what_is_no_recorded_session_is_told_without_its_words(file: str, content: bytes, said: str) -> None:
    with pytest.raises(Unreadable) as raised:
        read(file, content)
    assert said in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("dialect", "fields", "after"),
    [
        ("messages", {}, {"system": "words"}),
        ("messages", {"system": "own"}, {"system": "words\n\nown"}),
        (
            "messages",
            {"system": [{"type": "text", "text": "own"}]},
            {"system": [{"type": "text", "text": "words"}, {"type": "text", "text": "own"}]},
        ),
        ("responses", {"instructions": "own"}, {"instructions": "words\n\nown"}),
    ],
)
def test_what_a_file_lacks_stands_before_the_system_prompt(dialect: DialectName, fields: Json, after: Json) -> None:
    assert with_words_before(dialect, fields, "words") == after
