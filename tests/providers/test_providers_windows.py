"""Whom to ask for a model's window, and what litellm's table says of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate import providers
from tidegate.overflow.told import ModelFacts
from tidegate.providers import load, told_of

LITELLM = {
    "gpt-5": {"max_input_tokens": 272_000, "max_output_tokens": 128_000},
    "groq/Llama-X": {"max_input_tokens": 131_072},
}


@pytest.mark.parametrize(
    ("provider", "questions"),
    [
        ("vllm", [("models", "GET", "http://127.0.0.1:8000/v1/models")]),
        ("anthropic", [("anthropic", "GET", "https://api.anthropic.com/v1/models?limit=1000")]),
        ("openrouter", [("models", "GET", "https://openrouter.ai/api/v1/models")]),
        ("llamacpp", [("props", "GET", "http://127.0.0.1:8080/props?model=a%2Fb%3A1")]),
        ("ollama", [("ps", "GET", "http://127.0.0.1:11434/api/ps"), ("show", "POST", "http://127.0.0.1:11434/api/show")]),
        ("openai", []),
    ],
)  # fmt: skip
def test_each_provider_is_asked_its_own_way(provider: str, questions: list[tuple[str, str, str]]) -> None:
    asked = load().get(provider).questions("a/b:1")
    assert [(one.api, one.method, one.url) for one in asked] == questions


def test_ollama_is_asked_about_the_model() -> None:
    assert json.loads(load().get("ollama").questions("qwen3:8b")[1].body) == {"model": "qwen3:8b"}


def test_the_endpoint_in_use_is_asked() -> None:
    generic = load().get("generic")
    assert generic.questions("m") == ()
    asked = [one.url for one in generic.questions("m", "https://llm.example.com:9000")]
    assert asked == ["https://llm.example.com:9000/v1/models"]


@pytest.mark.parametrize(
    "base",
    [
        "http://box:9000", "http://127.0.0.1:11434/v1", "http://[::1]:8080", "http://192.168.1.7:8000/v1",
        "http://gpu.local:8000", "http://host.docker.internal:8000/v1",
    ],
)  # fmt: skip
def test_a_server_of_no_known_kind_on_a_private_network_is_asked_as_local_servers_are(base: str) -> None:
    root = base.removesuffix("/v1")
    assert [one.url for one in load().get("generic").questions("m", base)] == [
        f"{root}/v1/models", f"{root}/props?model=m", f"{root}/api/ps", f"{root}/api/show",
    ]  # fmt: skip


@pytest.mark.parametrize("base", ["https://8.8.8.8/v1", "https://local.example.com", "https://[", "https://x.locally"])
def test_a_public_one_is_asked_for_its_list_only(base: str) -> None:
    assert [one.api for one in load().get("generic").questions("m", base)] == ["models"]


def test_a_provider_file_may_name_one_api_or_several() -> None:
    made = load(overrides={"box": {"base_url": "http://box/v1", "windows_api": "props"}}).get("box")
    assert [one.api for one in made.questions("m")] == ["props"]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("qwen3:8b", 1),
        ("qwen3", 2),
        ("Qwen3:8B", 1),
        ("claude-x-20260101", 3),
        ("other", 9),
    ],
)
def test_an_answer_may_spell_a_name_otherwise(asked: str, found: int) -> None:
    told = {"qwen3:8b": 1, "qwen3:latest": 2, "Claude-X": 3, "*": 9}
    assert told_of({name: ModelFacts(size) for name, size in told.items()}, asked) == ModelFacts(found)


@pytest.fixture
def litellm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of litellm's name, with a table, that must not be imported."""
    folder = tmp_path / "litellm"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise AssertionError('imported')")
    (folder / providers._LITELLM_TABLE).write_text(json.dumps(LITELLM))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "litellm", raising=False)
    for cached in (providers.litellm_facts, providers._litellm_table):
        cached.cache_clear()
    return folder


@pytest.fixture(autouse=True)
def _fresh() -> object:
    yield
    for cached in (providers.litellm_facts, providers._litellm_table):
        cached.cache_clear()


@pytest.mark.usefixtures("litellm")
def test_litellms_table_is_read_and_litellm_not_imported() -> None:
    assert providers.litellm_facts("gpt-5-2026-01-01", "openai") == ModelFacts(None, 272_000, 128_000)
    assert providers.litellm_facts("llama-x", "groq") == ModelFacts(None, 131_072)
    assert providers.litellm_facts("llama-x") == ModelFacts()
    assert "litellm" not in sys.modules


@pytest.mark.parametrize("table", [None, "", "{", "[]", '{"gpt-5": 3}'])
def test_a_litellm_without_a_good_table_says_nothing(litellm: Path, table: str | None) -> None:
    where = litellm / providers._LITELLM_TABLE
    where.unlink() if table is None else where.write_text(table)
    assert providers.litellm_facts("gpt-5") == ModelFacts()


def test_without_litellm_nothing_is_said() -> None:
    code = "from tidegate.providers import litellm_facts; print(litellm_facts('gpt-5').input_limit)"
    script = f"import sys; sys.modules['litellm'] = None; {code}"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "None"
