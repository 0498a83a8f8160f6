"""How each system counts: their vectors, through the engine's own reading of a request."""

from __future__ import annotations

import json
from typing import Any

import pytest
from policy_world import HASHER, TENANT, answer, body, call, measured, result, size, user, whole

from tidegate.context.estimators import ESTIMATORS, graphemes, inspected
from tidegate.context.ledger import Ledger
from tidegate.context.recall import Recall
from tidegate.engine.view import plain, read_history
from tidegate.wire import read

# -- RubyPi -----------------------------------------------------------------------------------------------------------

RUBYPI: list[tuple[str, list[dict[str, Any]], int]] = [
    ("Be helpful", [user("Hello world")], 16),
    ("", [{"role": "user", "content": None}], 10),
    ("", [user("msg")] * 5, 54),
    # Content alone: no arguments of calls, no thinking, no tools.
    ("", [call("read", {"path": "x" * 400}), result("")], 20),
    ("", [{**answer(""), "reasoning_content": "y" * 400}], 10),
    ("", [user("é" * 8)], 12),
    ("abc", [user("a"), answer("b")], 22),
]


@pytest.mark.parametrize(("system", "messages", "tokens"), RUBYPI)
def test_rubypi(system: str, messages: list[dict[str, Any]], tokens: int) -> None:
    lead = [{"role": "system", "content": system}] if system else []
    assert size("rubypi", body([*lead, *messages], tools=[{"type": "function", "function": {"name": "f"}}])) == tokens


def test_rubypi_counts_a_system_prompt_without_messages() -> None:
    conversation = read("messages", json.dumps({"model": "m", "system": "System", "messages": []}).encode())
    ruby = ESTIMATORS["rubypi"]
    assert ruby.tokens(ruby.beside(conversation)) == 2


@pytest.mark.parametrize("number", range(1, 9))
def test_rubypi_rounds_once_whatever_was_read_before(number: int) -> None:
    """A turn that adds to what is known is counted as one that is read whole."""
    recall, ledger, ruby = Recall(HASHER), Ledger(HASHER), ESTIMATORS["rubypi"]
    messages = [{"role": "system", "content": "s" * number}]
    for n in range(1, 7):
        messages.append(user("q" * n * number) if n % 2 else answer("a" * number))
        raw = body(messages)
        known = plain(read_history(recall.read("chat", raw), TENANT, HASHER, ledger, ruby)).tokens
        assert known == -(-(number + sum(40 + len(it["content"]) for it in messages[1:])) // 4)


# -- Rho (Elixir) -----------------------------------------------------------------------------------------------------


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


PIXEL = "data:image/png;base64,iVBORw0KGgo="
PDF = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}}

RHO_ELIXIR: list[tuple[list[dict[str, Any]], int]] = [
    ([user("Hello world")], 3),
    ([user("abcd")], 1),
    ([user("abcde")], 2),
    ([user("é")], 1),
    ([user("é" * 4)], 2),
    ([user("日本")], 2),
    ([user("x"), answer("y")], 2),
    ([{"role": "user", "content": [{"type": "text", "text": "abcd"}, image(PIXEL)]}], 1201),
    ([{"role": "user", "content": [PDF]}], 2000),
    ([call("read", {"a": 1}), result("abcd")], 4),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "tokens"), RHO_ELIXIR)
def test_rho_elixir(messages: list[dict[str, Any]], tokens: int) -> None:
    assert size("rho-elixir", body(messages)) == tokens


def test_rho_elixir_counts_system_prompt_tools_and_messages() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    messages = [{"role": "system", "content": "s" * 40}, user("u" * 40)]
    assert size("rho-elixir", body(messages, tools=[tool])) == 10 + 10 + -(
        -len(json.dumps(tool, separators=(",", ":"))) // 4
    )


# -- Rho (Rust) -------------------------------------------------------------------------------------------------------

RHO: list[tuple[list[dict[str, Any]], int]] = [
    ([user("")], 3 + 4),
    ([user("abcd")], 3 + 4 + 1 + 1),
    ([user("abcde")], 3 + 4 + 1 + 2),
    ([user("ééééé")], 3 + 4 + 1 + 2),
    ([{"role": "system", "content": "abcd"}, user("abcd")], 3 + 4 + 1 + 1 + 4 + 1 + 1),
    # {"arguments":{"a":1},"id":"c1","name":"read"} is 45 characters; {"content":"abcd","id":"c1","ok":true} 38.
    ([call("read", {"a": 1}), result("abcd")], 3 + (4 + 1 + 8 + 12) + (6 + 10)),
    ([{"role": "user", "content": [image("data:image/png;base64," + "A" * 8192)]}], 3 + 4 + 1 + 85 + 2),
    ([{**answer("abcd"), "reasoning_content": "y" * 40}], 3 + 4 + 2 + 10),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "tokens"), RHO)
def test_rho(messages: list[dict[str, Any]], tokens: int) -> None:
    assert size("rho", body(messages)) == tokens


def test_rho_counts_a_tool_as_its_name_description_and_schema() -> None:
    spec = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
    characters = len(json.dumps(spec, separators=(",", ":")))
    chat = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]
    expected = 3 + 12 + -(-characters // 4) + 4 + 1 + 1
    assert size("rho", body([user("abcd")], tools=chat)) == expected
    assert size("rho", body([user("abcd")], tools=[spec]), dialect="messages") == expected


# -- Planck -----------------------------------------------------------------------------------------------------------

PLANCK: list[tuple[list[dict[str, Any]], int]] = [
    ([user("abc")], 0),
    ([user("abcd")], 1),
    ([user("abcdefg")], 1),
    ([user("abc"), answer("abc")], 0),
    ([user("👩‍👩‍👧‍👦" * 4)], 1),
    ([{**answer("abcd"), "reasoning_content": "y" * 8}], 3),
    # read + %{"a" => 1} is 4 + 11 characters.
    ([call("read", {"a": 1}), result("abcdabcd")], 3 + 2),
    ([{"role": "user", "content": [image(PIXEL)]}], 0),
    ([{"role": "system", "content": "s" * 7}, user("u" * 9)], 1 + 2),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "tokens"), PLANCK)
def test_planck(messages: list[dict[str, Any]], tokens: int) -> None:
    assert size("planck", body(messages)) == tokens


def test_planck_counts_tools_as_one_text() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}] * 2
    assert size("planck", body([user("abcd")], tools=tools)) == 1 + len(json.dumps(tools, separators=(",", ":"))) // 4


@pytest.mark.parametrize(
    ("text", "count"),
    [("a\r\nb", 3), ("e\u0301", 1), ("👨‍👩‍👧", 1), ("🇩🇪🇫🇷", 2), ("👍🏽", 1), ("日本語", 3), ("", 0)],
)
def test_graphemes(text: str, count: int) -> None:
    assert graphemes(text) == count


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({}, "%{}"),
        ({"path": "a.txt", "n": [1, 2.5]}, '%{"path" => "a.txt", "n" => [1, 2.5]}'),
        ({"on": True, "off": None}, '%{"on" => true, "off" => nil}'),
        ('say "hi"', r'"say \"hi\""'),
    ],
)
def test_inspected(value: Any, text: str) -> None:
    assert inspected(value) == text


# -- which size counts ------------------------------------------------------------------------------------------------

LONG = body([user("ab " * 1330), answer("cd " * 1330), user("ef " * 1330)])


@pytest.mark.parametrize(
    ("name", "reported", "counts"),
    [
        ("default", 5000, "reported"), ("default", 1500, "estimate"),
        ("rho-elixir", 5000, "reported"), ("rho-elixir", 1500, "estimate"),
        # Rho (Rust) believes the provider, in either direction.
        ("rho", 5000, "reported"), ("rho", 1500, "reported"),
        ("rubypi", 5000, "estimate"), ("planck", 5000, "estimate"),
    ],
)  # fmt: skip
def test_which_size_counts(name: str, reported: int, counts: str) -> None:
    sizing = measured(name, LONG, 100_000, reports=(2, reported))
    sums, found = sizing.history.past.sums, sizing.measured(whole(sizing))
    assert found.tokens == (found.local if counts == "estimate" else reported + sums[3] - sums[2])


@pytest.mark.parametrize(
    ("model", "window", "own", "counted"),
    [
        ("claude-sonnet-4-5", None, False, 200_000),
        ("gpt-5", None, False, 128_000),
        ("anthropic/claude-opus", 1_000_000, False, 200_000),
        ("gpt-4.1", 1_047_576, False, 128_000),
        ("small", 32_000, False, 32_000),
        ("gpt-4.1", 1_047_576, True, 1_047_576),
    ],
)
def test_rho_elixirs_table_of_windows(model: str, window: int | None, own: bool, counted: int) -> None:
    sizing = measured("rho-elixir", LONG, window, model=model, own_window=own)
    assert sizing.limits().window == counted


# -- estimators are kept apart in what is remembered ------------------------------------------------------------------


def test_a_history_that_goes_by_turns_to_two_policies_is_counted_by_each() -> None:
    recall, ledger = Recall(HASHER), Ledger(HASHER)
    messages = [{"role": "system", "content": "s" * 6}]
    for n in range(8):
        messages += [user(f"step {n} " + "é" * 11), answer("done")]
        for name in ("tidegate", "rubypi", "planck", "rubypi", "rho", "tidegate"):
            conversation = recall.read("chat", body(messages))
            known = plain(read_history(conversation, TENANT, HASHER, ledger, ESTIMATORS[name])).tokens
            fresh = read("chat", body(messages))
            assert known == plain(read_history(fresh, TENANT, HASHER, Ledger(HASHER), ESTIMATORS[name])).tokens
