"""`tidegate providers` and `tidegate classify` as a person meets them."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from tidegate.cli.classify_command import classify
from tidegate.cli.providers_command import providers
from tidegate.providers import load


def run(command: object, *args: str, stdin: str | None = None, obj: object = None) -> tuple[int, str]:
    result = CliRunner().invoke(command, args, input=stdin, obj=obj)  # type: ignore[arg-type]
    return result.exit_code, result.output


def test_the_table_names_each_provider_and_its_key() -> None:
    code, text = run(providers)
    assert code == 0
    for name in load().names:
        assert name in text
    assert "OPENAI_API_KEY" in text


def test_providers_as_json() -> None:
    code, text = run(providers, "--json")
    listed = {entry["name"]: entry for entry in json.loads(text)}
    assert code == 0
    assert listed["anthropic"]["base_url"] == "https://api.anthropic.com/v1"
    assert listed["anthropic"]["key_variable"] == "ANTHROPIC_API_KEY"
    assert listed["openai"]["strategies"] == {"responses": ["summary"], "chat": ["summary"]}
    assert listed["generic"]["base_url"] is None


def test_a_catalogue_given_by_the_root_is_used() -> None:
    _, text = run(providers, "--json", obj=load(overrides={"mine": {"base_url": "http://m"}}))
    assert "http://m/v1" in text


def test_a_refusal_is_explained() -> None:
    code, text = run(classify, "prompt is too long: 213462 tokens > 200000 maximum")
    assert code == 0
    for shown in ("overflow", "compact", "anthropic-prompt-too-long in anthropic.toml", "213,462", "200,000"):
        assert shown in text


def test_a_refusal_on_standard_input() -> None:
    code, text = run(classify, "--status", "429", "--json", stdin='{"error":{"message":"Rate limit reached"}}')
    verdict = json.loads(text)
    assert (code, verdict["kind"], verdict["action"]) == (0, "rate_limit", "wait")


def test_what_was_sent_may_be_told() -> None:
    _, text = run(classify, "--status", "400", "--sent-tokens", "8500", "--window", "8192", "--json", "")
    assert json.loads(text)["kind"] == "overflow"


def test_an_event_of_a_stream() -> None:
    body = '{"type":"error","error":{"code":"context_length_exceeded"}}'
    _, text = run(classify, "--in-stream", "--json", body)
    assert json.loads(text)["kind"] == "overflow"


def test_an_unknown_provider_is_named() -> None:
    code, text = run(classify, "--provider", "opnai", "x")
    assert code == 2
    assert "opnai" in text
    assert "anthropic" in text


@pytest.mark.parametrize("command", [providers, classify])
def test_help_has_examples(command: object) -> None:
    code, text = run(command, "--help")
    assert code == 0
    assert "Examples:" in text
