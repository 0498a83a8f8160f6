"""`tidegate compact`: without a gateway, with the key that is in the environment; stored as by one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rawclient import history, post

from tidegate import config
from tidegate.cli import main
from tidegate.gateway.server import serving
from tidegate.simulator import Simulator, SimulatorSettings, Step, serve

KEY = "OUR_PROVIDERS_KEY"


@dataclass
class Here:
    """A machine with a provider, settings and a store."""

    folder: Path
    provider: Simulator

    def run(self, body: Any, *arguments: str) -> Result:
        file = self.folder / "request.json"
        file.write_text(json.dumps(body))
        return CliRunner().invoke(main, ["compact", str(file), "--config", str(self.config), *arguments])

    def of(self, kind: str) -> list[Any]:
        return [record for record in self.provider.state.records if record.kind == kind]

    @property
    def config(self) -> Path:
        return self.folder / "t.toml"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    monkeypatch.setenv(KEY, "sk-1")
    with serve(SimulatorSettings(window=100_000)) as provider:
        (tmp_path / "t.toml").write_text(
            f'[store]\npath = "{tmp_path}/store.db"\nkey_file = "{tmp_path}/key"\n'
            f'[providers.ours]\nbase_url = "{provider.url}"\ndialects = ["chat", "responses", "messages"]\n'
            f'auth = {{env = "{KEY}"}}\n'
            '[routing]\ndefault_chat = "ours"\ndefault_responses = "ours"\ndefault_messages = "ours"\n'
            "[models.m]\nwindow = 100000\n"
        )
        yield Here(tmp_path, provider)


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
def test_the_provider_is_asked_with_its_own_key_and_the_smaller_body_printed(here: Here, dialect: str) -> None:
    run = here.run(history(dialect, 20), "--api", dialect)
    assert run.exit_code == 0, run.output
    whole = history(dialect, 20)
    key = "input" if dialect == "responses" else "messages"
    assert len(json.loads(run.stdout)[key]) < len(whole[key])
    assert "tokens by summary, 1 call; checkpoint " in run.stderr
    (asked,) = here.of("summary")
    assert "authorization" in asked.headers
    assert here.of("main") == []


def test_a_gateway_with_the_same_store_replays_what_was_made(here: Here) -> None:
    told = json.loads(here.run(history("chat", 20), "--json").stdout)
    assert told["unchanged"] is False
    with serving(config.load(here.config, {"port": 0, "server.log_level": "error"}, os.environ)) as (base, _):
        later = post(base, "/ours/v1/chat/completions", history("chat", 20))
        assert later.one("x-tidegate-action") == "replayed"
        assert later.one("x-tidegate-checkpoint") == told["checkpoint"]["id"]
    assert json.loads(here.of("main")[0].body) == told["body"]


@pytest.mark.parametrize("policy", ["default", "rho", "rho-elixir", "rubypi", "planck"])
def test_it_is_done_by_the_policy_that_is_named(here: Here, policy: str) -> None:
    kept = {"rubypi": 4}
    told = json.loads(here.run(history("chat", 20), "--policy", policy, "--json").stdout)
    assert told["checkpoint"]["strategy"] == "summary"
    assert told["checkpoint"]["tokens_after"] <= told["checkpoint"]["tokens_before"] // 2 + 60
    if policy in kept:  # its last messages, and the summary in the words of the first of them or before it
        assert len(told["body"]["messages"]) <= kept[policy] + 1
    default = json.loads(here.run(history("chat", 20), "--json").stdout)
    assert default["checkpoint"]["id"]


def test_policies_count_each_in_its_own_way(here: Here) -> None:
    sizes = {
        policy: json.loads(here.run(history("chat", 20), "--policy", policy, "--json").stdout)["checkpoint"]
        for policy in ("planck", "rubypi")
    }
    assert len({made["tokens_before"] for made in sizes.values()}) == 2


def test_a_focus_and_a_target_are_taken(here: Here) -> None:
    run = here.run(history("chat", 20), "--focus", "the prices", "--target-tokens", "900", "--json")
    assert json.loads(run.stdout)["checkpoint"]["tokens_after"] < 1_000
    assert b"Additional focus: the prices" in here.of("summary")[0].body


def test_a_server_without_a_name_is_asked_by_its_url(here: Here) -> None:
    run = here.run({**history("chat", 20), "model": "local"}, "--upstream", here.provider.url, "--key-env", KEY)
    assert run.exit_code == 0, run.output
    assert len(here.of("summary")) == 1


def test_a_key_that_is_refused_is_told_with_what_to_do(here: Here) -> None:
    here.provider.script(Step(do="error", status=401, times=4))
    run = here.run(history("chat", 20))
    assert run.exit_code == 1
    assert "unchanged: summary_http_401" in run.stderr
    assert "--key-env" in run.stderr
    assert run.stdout == ""


@pytest.mark.parametrize(
    ("body", "arguments", "status", "words"),
    [
        ({"model": "m", "messages": [{"role": "user", "content": "hi"}]}, (), 1, "unchanged: nothing_to_compact"),
        ({"model": "m"}, (), 1, "request.json: neither `messages` nor `input` is in it; --api"),
        ([{"role": "user", "content": "hi"}], (), 1, "request.json: no request body, which is a JSON object"),
        ({"model": "m", "messages": []}, ("--policy", "nobody"), 2, "'nobody' is not one of 'default'"),
        ({"model": "m", "messages": []}, ("--provider", "nobody"), 1, "404: There is no provider named 'nobody'"),
        ({"model": "m", "messages": []}, ("--key-env", "NOT_SET_AT_ALL"), 1, "NOT_SET_AT_ALL is not set"),
        ({"model": "m", "messages": []}, ("--gateway", "http://127.0.0.1:9"), 2, "a gateway has its own"),
        ({"model": "m", "messages": []}, ("--upstream", "nowhere"), 2, "nowhere"),
    ],
)
def test_what_is_wrong_is_told(here: Here, body: Any, arguments: tuple[str, ...], status: int, words: str) -> None:
    run = here.run(body, *arguments)
    assert run.exit_code == status, run.output
    assert words in run.output


@pytest.mark.parametrize("text", [b"", b"not json", b'{"messages": [', b"\xff\xfe{", b"[" * 100_000])
def test_what_is_no_json_is_told_before_anybody_is_asked(here: Here, text: bytes) -> None:
    file = here.folder / "broken.json"
    file.write_bytes(text)
    run = CliRunner().invoke(main, ["compact", str(file), "--config", str(here.config)])
    assert (run.exit_code, run.output) == (1, f"Error: {file}: no JSON\n")
    assert not here.provider.state.records
