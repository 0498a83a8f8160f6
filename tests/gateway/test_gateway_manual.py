"""A compaction that somebody asks the gateway for: any size, any API, stored as any other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner
from rawclient import history, post
from running import running

from tidegate.cli import main
from tidegate.simulator import SimulatorSettings, Step

PATH = "/tidegate/v1/compact"
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
KEY = ("authorization", "Bearer sk-1")
VERSION = ("anthropic-version", "2023-06-01")
DIALECTS = pytest.mark.parametrize("dialect", list(PATHS))


def headers(dialect: str) -> tuple[tuple[str, str], ...]:
    return (("x-api-key", "sk-1"), VERSION) if dialect == "messages" else (KEY,)


def gate(**flags: Any) -> Any:
    return running(SimulatorSettings(window=100_000), window=100_000, **flags)


@DIALECTS
@pytest.mark.parametrize("enabled", [True, False], ids=["automatic on", "automatic off"])
def test_a_history_far_below_the_threshold_is_halved_and_the_next_request_replays_it(dialect, enabled):
    long = history(dialect, 20)
    with gate(compaction__enabled=enabled) as served:
        got = post(served.base, PATH, long, *headers(dialect))
        told = json.loads(got.body)
        assert (got.status, told["unchanged"]) == (200, False)
        made = told["checkpoint"]
        assert made["tokens_after"] <= made["tokens_before"] // 2 + 60
        assert (made["strategy"], made["calls"]) == ("summary", 1)
        assert served.of("main") == []
        later = post(served.base, PATHS[dialect], long, *headers(dialect))
        assert later.one("x-tidegate-action") == "replayed"
        assert later.one("x-tidegate-checkpoint") == made["id"]
        assert json.loads(served.of("main")[0].body) == told["body"]
        assert served.violations == []


def test_a_focus_and_a_target_are_taken():
    with gate() as served:
        told = json.loads(
            post(served.base, f"{PATH}?focus=the+prices&target_tokens=900", history("chat", 20), KEY).body
        )
        assert told["checkpoint"]["tokens_after"] < 1000
        assert b"Additional focus: the prices" in served.of("summary")[0].body
        assert "focus" not in served.of("summary")[0].path


@pytest.mark.parametrize(
    ("body", "query", "reason"),
    [
        ({"model": "m", "messages": [{"role": "user", "content": "hi"}]}, "", "nothing_to_compact"),
        ({"model": "m", "input": "hi", "previous_response_id": "resp_1"}, "", "server_held"),
        ({"model": "m", "messages": []}, "?api=chat", "empty"),
    ],
)
def test_what_is_not_made_smaller_is_told_with_the_reason(body, query, reason):
    with gate() as served:
        got = post(served.base, PATH + query, body, KEY)
        assert (got.status, json.loads(got.body)) == (200, {"unchanged": True, "reason": reason})


def test_so_is_a_summarizer_that_fails():
    with gate() as served:
        served.simulator.script(Step(do="error", status=401, times=4))
        told = json.loads(post(served.base, PATH, history("chat", 20), KEY).body)
        assert told == {"unchanged": True, "reason": "summary_http_401"}


@pytest.mark.parametrize(
    ("body", "query", "words"),
    [
        ({"model": "m"}, "", "Say which API"),
        ({"model": "m", "messages": []}, "?api=completions", "Say which API"),
        ({"model": "m", "messages": "x"}, "?api=chat", "no request of the chat API"),
        ({"model": "m", "messages": []}, "?target_tokens=-3", "target_tokens must be"),
        ({"model": "m", "messages": []}, "?policy=off", "There is no such policy. Known: default, rho, rho-elixir"),
    ],
)
def test_what_is_asked_wrongly_is_told(body, query, words):
    with gate() as served:
        got = post(served.base, PATH + query, body, KEY)
        assert got.status == 400
        assert words in got.body.decode()


def test_the_command_prints_the_smaller_body(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-1")
    file = tmp_path / "request.json"
    file.write_text(json.dumps(history("chat", 20)))
    with gate() as served:
        run = CliRunner().invoke(main, ["compact", str(file), "--gateway", served.base, "--key-env", "MY_KEY"])
        assert run.exit_code == 0, run.output
        assert len(json.loads(run.stdout)["messages"]) < 41
        assert "tokens by summary" in run.stderr
        assert served.of("summary")[0].headers
        short = tmp_path / "short.json"
        short.write_text(json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}))
        run = CliRunner().invoke(main, ["compact", str(short), "--gateway", served.base, "--json"])
        assert (run.exit_code, json.loads(run.stdout)["unchanged"]) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gateway", "http://127.0.0.1:9"], "no gateway at http://127.0.0.1:9"),
        (["--gateway", "ftp://x"], "is no http:// or https:// URL"),
        (["--key-env", "NOT_SET_AT_ALL"], "NOT_SET_AT_ALL is not set"),
    ],
)
def test_the_command_says_what_is_wrong(tmp_path, arguments, words):
    file = tmp_path / "request.json"
    file.write_text('{"messages": []}')
    run = CliRunner().invoke(main, ["compact", str(file), *arguments])
    assert run.exit_code == 1
    assert words in run.output
