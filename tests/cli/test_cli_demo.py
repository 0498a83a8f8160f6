"""`tidegate demo`: the agent through the gateway, and what is said of it."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tidegate.cli import main
from tidegate.cli.demo import gateway_process
from tidegate.cli.demo.figures import DIALECTS

KEYS = [
    "turns",
    "answered",
    "overflows",
    "compactions",
    "summary_calls",
    "rule_violations",
    "facts_planted",
    "facts_alive",
    "tokens_sent",
    "tokens_without",
]
TURNS = 20


def demo(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["demo", "--turns", str(TURNS), *arguments])


@pytest.fixture(scope="module")
def figures() -> dict[str, dict[str, Any]]:
    result = demo("--json")
    assert result.exit_code == 0, result.output
    found: dict[str, dict[str, Any]] = json.loads(result.stdout)
    return found


def test_json_is_one_object_by_api_with_the_promised_keys(figures: dict[str, dict[str, Any]]) -> None:
    assert {api: list(run) for api, run in figures.items()} == dict.fromkeys(DIALECTS, KEYS)


@pytest.mark.parametrize("api", DIALECTS)
def test_every_turn_is_answered_by_no_broken_rule(figures: dict[str, dict[str, Any]], api: str) -> None:
    run = figures[api]
    assert (run["turns"], run["answered"], run["rule_violations"]) == (TURNS, TURNS, 0)


@pytest.mark.parametrize("api", DIALECTS)
def test_session_outgrew_the_window_and_was_compacted(figures: dict[str, dict[str, Any]], api: str) -> None:
    run = figures[api]
    assert run["overflows"] >= 1, "the window is not known before the first refusal"
    assert run["compactions"] >= 2
    assert run["summary_calls"] >= run["compactions"]
    assert 0 < run["tokens_sent"] < run["tokens_without"]


@pytest.mark.parametrize("api", DIALECTS)
def test_facts_are_still_known_at_the_end(figures: dict[str, dict[str, Any]], api: str) -> None:
    assert (figures[api]["facts_alive"], figures[api]["facts_planted"]) == (4, 4)


def test_forgetful_summarizer_shows_in_the_figures() -> None:
    forgotten = json.loads(demo("--json", "--forgetful").stdout)
    assert {api: run["answered"] for api, run in forgotten.items()} == dict.fromkeys(DIALECTS, TURNS)
    assert all(run["facts_alive"] < run["facts_planted"] for run in forgotten.values())


def test_one_human_message_and_then_only_tool_calls() -> None:
    result = demo("--json", "--shape", "single")
    assert result.exit_code == 0, result.output
    for run in json.loads(result.stdout).values():
        assert (run["answered"], run["rule_violations"]) == (TURNS, 0)
        assert run["facts_alive"] == run["facts_planted"]


def test_table_compares_with_and_without() -> None:
    result = demo()
    assert result.exit_code == 0, result.output
    rows = {line[:34].strip(): line[34:].split() for line in result.output.splitlines() if len(line) > 34}
    assert rows[""] == list(DIALECTS)
    assert rows["turns answered"] == [str(TURNS), "of", str(TURNS)] * 3
    assert all(int(count) < TURNS for count in rows["without Tidegate"][::3])
    assert rows["provider's rules broken"] == ["0", "0", "0"]
    assert all(0 < int(part) < 100 for part in rows["tokens saved"][::2])


@contextmanager
def no_gateway(upstream: str) -> Iterator[str]:
    yield upstream


def test_turn_without_an_answer_ends_with_1_and_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_process, "gateway", no_gateway)
    result = demo("--json")
    assert result.exit_code == 1
    assert all(run["answered"] < TURNS for run in json.loads(result.stdout).values())
    assert [line for api in DIALECTS if f"{api}: turn" not in result.stderr for line in [api]] == []


def test_gateway_that_does_not_start_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def down(upstream: str) -> Iterator[str]:
        raise gateway_process.GatewayDown(f"no gateway for {upstream}")
        yield ""

    monkeypatch.setattr(gateway_process, "gateway", down)
    result = demo()
    assert result.exit_code == 1
    assert "no gateway for http://127.0.0.1:" in result.output
    assert isinstance(result.exception, SystemExit)


def test_serve_leaves_a_gateway_running_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[object] = []
    monkeypatch.setattr("tidegate.cli.serve_command.run_gateway", served.append)
    assert demo("--serve", "--port", "0").exit_code == 0
    assert served == [{"port": 0}]


def test_serve_looks_at_its_port_before_the_sessions() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = demo("--serve", "--port", str(port))
    assert result.exit_code == 1
    assert result.output.strip() == f"Error: Can't listen on 127.0.0.1:{port}: Address already in use. " + (
        "Choose another with --port."
    )


def test_port_without_serve_is_a_mistake() -> None:
    result = demo("--port", "9000")
    assert result.exit_code == 2
    assert "--serve" in result.output
