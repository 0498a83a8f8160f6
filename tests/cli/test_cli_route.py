"""What `tidegate route` says of a model's compaction."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tidegate import config
from tidegate.cli import main
from tidegate.cli.route_command import route_of
from tidegate.engine.capabilities import Capabilities
from tidegate.gateway.catalogue import catalogue


def run(*arguments: str, toml: str = "", folder: Path | None = None) -> Result:
    given = list(arguments)
    if folder is not None:
        (folder / "tidegate.toml").write_text(toml)
        given += ["--config", str(folder / "tidegate.toml")]
    return CliRunner().invoke(main, ["route", *given])


def test_numbered_lines_and_why_not_the_others() -> None:
    result = run("openai/gpt-6-sol", "--dialect", "responses")
    assert result.exit_code == 0
    tried, others = result.output.split("Not tried:")
    ways = ["openai", "openai-trigger", "openai-inband", "summary"]
    assert [line.split()[1] for line in tried.splitlines() if line] == ways
    assert "belongs to the messages API" in others


def test_the_same_as_json() -> None:
    told = json.loads(run("anthropic/claude-opus-5-5", "--dialect", "messages", "--json").output)
    assert [choice["name"] for choice in told["strategies"]] == ["anthropic", "summary"]
    assert {choice["name"] for choice in told["excluded"]} >= {"openai", "xai", "elide"}
    assert all(choice["reason"] for choice in (*told["strategies"], *told["excluded"]))


@pytest.mark.parametrize(
    ("toml", "names"),
    [
        ('[compaction]\nstrategies = ["summary"]\n', ["summary"]),
        ('[compaction]\nstrategies = ["summary", "openai"]\n', ["summary", "openai"]),
        ('[providers.openai]\nstrategies.responses = ["openai-trigger"]\n', ["openai-trigger"]),
        ('[models."gpt-6*"]\nstrategies = ["openai"]\n', ["openai"]),
        ('[models."openai/gpt-6-sol"]\nstrategies = "summary"\n', ["summary"]),
    ],
)
def test_settings_reorder_forbid_and_force(tmp_path: Path, toml: str, names: list[str]) -> None:
    result = run("openai/gpt-6-sol", "--dialect", "responses", "--json", toml=toml, folder=tmp_path)
    assert [choice["name"] for choice in json.loads(result.output)["strategies"]] == names


def test_a_way_can_be_forced_on_a_catalogue(tmp_path: Path) -> None:
    toml = '[models."openrouter/openai/*"]\nstrategies = ["openai", "summary"]\n'
    result = run("openrouter/openai/gpt-6", "--dialect", "responses", "--json", toml=toml, folder=tmp_path)
    assert [choice["name"] for choice in json.loads(result.output)["strategies"]] == ["openai", "summary"]


def test_where_nothing_is_tried_it_says_whose_list_leaves_nothing(tmp_path: Path) -> None:
    result = run("groq/llama", "--dialect", "chat", toml='[compaction]\nstrategies = ["openai"]\n', folder=tmp_path)
    assert result.output.startswith("Nothing is tried: compaction.strategies leaves nothing that can be tried here")


def test_a_provider_without_an_address_has_a_route_too() -> None:
    assert "openai-trigger" in run("azure/our-deployment", "--dialect", "responses").output


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("gpt-6", "--dialect", "chat"), 2, "PROVIDER/MODEL"),
        (("nobody/m", "--dialect", "chat"), 1, "unknown provider 'nobody'"),
        (("anthropic/claude-opus-5", "--dialect", "chat"), 1, "Provider anthropic serves messages, not chat."),
        (("openai/gpt-6",), 2, "--dialect"),
    ],
)
def test_what_is_said_of_a_wrong_question(arguments: tuple[str, ...], status: int, words: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, words in result.output) == (status, True)


def test_a_strategy_that_does_not_exist(tmp_path: Path) -> None:
    result = run("openai/m", "--dialect", "chat", toml='[compaction]\nstrategies = ["magic"]\n', folder=tmp_path)
    assert result.exit_code == 2
    assert "compaction.strategies" in result.output
    assert "openai-trigger" in result.output


def test_what_an_endpoint_has_shown_to_have_is_tried_there() -> None:
    known = Capabilities()
    endpoint = "http://127.0.0.1:9/v1"
    known.has(endpoint, "openai", now=time.time())
    settings = config.load(None, {"providers.generic.base_url": endpoint}, {})
    found = route_of("generic/m", "responses", settings, catalogue(settings), known)
    assert found.names == ("openai", "summary")
    assert found.strategies[0].reason.endswith("the endpoint has shown to have it")


def test_chat_over_the_bridge(tmp_path: Path) -> None:
    toml = '[compaction]\nbridge = "auto"\n'
    told = json.loads(run("openai/gpt-6-sol", "--dialect", "chat", "--json", toml=toml, folder=tmp_path).output)
    assert [choice["name"] for choice in told["strategies"]] == ["openai", "openai-trigger", "summary"]
    assert "over the bridge to the Responses API" in told["strategies"][0]["reason"]
    assert {"openai", "openai-trigger"}.isdisjoint(choice["name"] for choice in told["excluded"])
    plain = json.loads(run("groq/x", "--dialect", "chat", "--json", toml=toml, folder=tmp_path).output)
    assert [choice["name"] for choice in plain["strategies"]] == ["summary"]
