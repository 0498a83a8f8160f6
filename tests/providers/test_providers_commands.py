"""`tidegate providers` and `tidegate classify` as a person meets them."""

from __future__ import annotations

import json
from pathlib import Path

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
    ways = ["openai", "openai-trigger", "openai-inband", "summary"]
    assert listed["openai"]["strategies"] == {"responses": ways, "chat": ["summary"]}
    assert listed["bedrock"]["base_url"] is None
    assert listed["generic"]["base_url"] is None


def test_a_catalogue_given_by_the_root_is_used() -> None:
    _, text = run(providers, "--json", obj=load(overrides={"mine": {"base_url": "http://m"}}))
    assert "http://m/v1" in text


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's configuration folder, and a working directory with nothing in it."""
    folder = tmp_path / "config" / "tidegate"
    (folder / "providers").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("platformdirs.user_config_path", lambda *_, **__: folder)
    return folder


WORK = '[providers.work]\nbase_url = "https://llm.example.com"\n'


def test_providers_of_the_users_settings_and_folder_are_known(own: Path) -> None:
    (own / "tidegate.toml").write_text(WORK)
    (own / "providers" / "home.toml").write_text('base_url = "http://127.0.0.1:5000"\n')
    _, text = run(providers)
    assert "https://llm.example.com/v1" in text
    assert "http://127.0.0.1:5000/v1" in text
    assert run(classify, "--provider", "work", "prompt is too long")[0] == 0
    assert run(classify, "--provider", "home", "prompt is too long")[0] == 0


def test_a_settings_file_may_be_named(own: Path) -> None:
    file = own / "other.toml"
    file.write_text(WORK)
    assert "work" in run(providers, "--config", str(file))[1]
    assert run(classify, "--config", str(file), "--provider", "work", "x")[0] == 0
    assert run(classify, "--provider", "work", "x")[0] == 2


@pytest.mark.parametrize("command", [(providers,), (classify, "x")])
def test_wrong_settings_end_a_command_with_2(own: Path, command: tuple[object, str]) -> None:
    (own / "tidegate.toml").write_text('[providers.work]\nbase_url = "llm.example.com"\n')
    code, text = run(*command)
    assert code == 2
    assert "base_url" in text


def test_a_provider_that_is_nowhere_is_told_with_its_file(own: Path) -> None:
    file = own / "providers" / "half.toml"
    file.write_text('auth.env = "KEY"\n')
    code, text = run(providers)
    assert code == 2
    assert text.strip() == f"Error: base_url is missing: provider half is not built in (given in {file})"


def test_the_table_cuts_nothing_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    lines = run(providers)[1].splitlines()
    assert len(lines) == 1 + len(load().names)
    for provider, line in zip(load(), lines[1:], strict=True):
        place = provider.api_root or ("(by litellm)" if provider.through else "(yours)")
        assert line.split()[0] == provider.name
        assert line.endswith(place)
        assert line.index(place) <= 66


def test_a_refusal_is_explained() -> None:
    code, text = run(classify, "prompt is too long: 213462 tokens > 200000 maximum")
    assert code == 0
    for shown in ("overflow", "compact", "anthropic-prompt-too-long in anthropic.toml", "213,462", "200,000"):
        assert shown in text


def test_what_turns_a_rule_off_is_explained() -> None:
    text = run(classify, "--status", "429", "prompt is too long: 213462 tokens > 200000 maximum")[1]
    assert text.startswith("rate_limit")
    off = [line for line in text.splitlines() if line.endswith("off: status 429")]
    assert any("anthropic-prompt-too-long (overflow)" in line for line in off)
    quoted = run(classify, "--json", "rejected by our safety system: prompt is too long: 9000 tokens > 8000 maximum")[1]
    verdict = json.loads(quoted)
    against = {rule["evidence"]["rule"]: rule["against"] for rule in verdict["considered"]}
    assert (verdict["kind"], verdict["done"]) == ("filter", "pass it on as it is")
    assert against["anthropic-prompt-too-long"] == "safety system"
    assert against["filter-words"] == ""


def test_a_model_tells_the_provider_and_the_window() -> None:
    own = run(classify, "--model", "claude-sonnet-4-5", "--json", "prompt is too long: 213462 tokens > 200000 maximum")
    assert json.loads(own[1])["evidence"]["source"] == "anthropic.toml"
    near = run(classify, "--model", "claude-sonnet-4-5", "--sent-tokens", "201000", "--json", "")
    assert json.loads(near[1])["kind"] == "overflow"


def test_bytes_that_were_sent_may_be_told() -> None:
    near = run(classify, "--status", "400", "--sent-bytes", "40000000", "--json", "")
    assert json.loads(near[1])["kind"] == "payload_bytes"


@pytest.mark.parametrize("body", ["all fine", "", '{"id": "x"}'])
def test_a_success_is_no_refusal(body: str) -> None:
    code, text = run(classify, "--status", "200", body)
    assert (code, text.startswith("no refusal: status 200")) == (0, True)
    assert json.loads(run(classify, "--status", "200", "--json", body)[1])["kind"] is None


@pytest.mark.parametrize(
    ("body", "kind"), [('{"error": "boom"}', "server"), ('{"error": {"message": "prompt is too long"}}', "overflow")]
)
def test_a_success_with_an_error_in_it_is_one(body: str, kind: str) -> None:
    assert run(classify, "--status", "200", body)[1].startswith(kind)


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


def test_headers_tell_of_waits_and_types() -> None:
    headers = ("--header", "Retry-After: 7", "--header", "x-amzn-errortype:ThrottlingException")
    code, text = run(classify, "--json", *headers, '{"message":"Too many tokens, please wait"}')
    told = json.loads(text)
    assert (code, told["kind"], told["retry_after"]) == (0, "rate_limit", 7.0)
    assert run(classify, "--header", "retry-after", "x")[0] == 2
