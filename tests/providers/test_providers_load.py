"""The provider files: those that ship are sound, a user's lie over them, and a wrong value is named."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tidegate import providers
from tidegate.overflow import Refusal, classify
from tidegate.providers import Catalogue, ProviderError, load

BUILT_IN = (
    "anthropic", "azure", "bedrock", "cerebras", "chatgpt", "cohere", "dashscope", "deepseek", "fireworks", "foundry",
    "generic", "github-copilot", "groq", "huggingface", "litellm", "litellm-proxy", "llamacpp", "lmstudio", "minimax",
    "mistral", "moonshot", "nvidia", "ollama", "openai", "openrouter", "perplexity", "sglang", "together", "vercel",
    "vertex-anthropic", "vllm", "xai", "zai",
)  # fmt: skip

NOWHERE = ("azure", "bedrock", "foundry", "generic", "litellm", "vertex-anthropic")
"""Those whose base URL the user gives, or that need none."""


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return load()


def test_every_built_in_file_loads_and_every_sample_is_recognised(catalogue: Catalogue) -> None:
    assert catalogue.names == BUILT_IN
    catalogue.check()


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_file_says_where_and_how(catalogue: Catalogue, name: str) -> None:
    provider = catalogue.get(name)
    assert provider.title
    assert bool(provider.api_root) == (name not in NOWHERE)
    assert bool(provider.base_url_form) == (name in NOWHERE and name not in ("generic", "litellm"))
    assert set(provider.strategies) == set(provider.dialects)
    assert all(chain[-1] == "summary" for chain in provider.strategies.values())
    assert all(model.window or model.input_limit for model in provider.models)


def test_loading_is_quick(catalogue: Catalogue) -> None:
    providers._builtin.cache_clear()
    began = time.thread_time()
    load()
    assert time.thread_time() - began < 0.200  # a fifth of what a start may take, on a busy machine


# ── models ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("provider", "model", "window", "input_limit", "max_output"),
    [
        ("openai", "gpt-5", 400_000, 272_000, 128_000),
        ("openai", "gpt-5-2025-08-07", 400_000, 272_000, 128_000),
        ("openai", "gpt-5.6-sol", 1_050_000, 922_000, 128_000),
        ("openai", "gpt-4o-mini-2024-07-18", 128_000, None, 16_384),
        ("openai", "gpt-4o-2024-05-13", 128_000, None, 4_096),
        ("openai", "o3", 200_000, None, 100_000),
        ("openai", "something-else", None, None, None),
        ("anthropic", "claude-sonnet-4-5-20250929", 200_000, None, 64_000),
        ("anthropic", "claude-sonnet-4-5@20250929", 200_000, None, 64_000),
        ("anthropic", "claude-opus-5-5", 1_000_000, None, 128_000),
        ("xai", "grok-4.6", 500_000, None, None),
        ("mistral", "mistral-large-latest", 262_144, None, None),
        ("groq", "openai/gpt-oss-120b", 131_072, None, 65_536),
        ("deepseek", "deepseek-v4-pro", 1_048_576, None, 393_216),
        ("openrouter", "x-ai/grok-4.5:free", 500_000, None, None),
        ("ollama", "llama3.3:70b", None, None, None),
    ],
)
def test_a_models_facts(
    catalogue: Catalogue, provider: str, model: str, window: int | None, input_limit: int | None, max_output: int | None
) -> None:
    facts = catalogue.get(provider).model(model)
    assert (facts.window, facts.input_limit, facts.max_output) == (window, input_limit, max_output)


@pytest.mark.parametrize(
    ("model", "binds"),
    [
        ("claude-fable-5-1", True),
        ("claude-fable-5-1-20260901", True),
        ("claude-fable-5-2", True),
        ("claude-mythos-5-1", True),
        ("claude-opus-5-5", True),
        ("claude-sonnet-5-5", True),
        ("claude-haiku-5-5", True),
        ("claude-fable-5", False),
        ("claude-fable-5-20260609", False),
        ("claude-opus-5", False),
        ("claude-opus-4-8", False),
    ],
)
def test_which_models_bind_their_thinking(catalogue: Catalogue, model: str, binds: bool) -> None:
    assert catalogue.get("anthropic").model(model).binds_thinking is binds


@pytest.mark.parametrize(
    ("model", "provider"),
    [
        ("gpt-5", "openai"),
        ("gpt-6.1-sol", "openai"),
        ("claude-opus-5-5", "anthropic"),
        ("claude-haiku-4-5-20251001", "anthropic"),
        ("grok-4.5", "xai"),
        ("llama-3.3-70b-versatile", "groq"),
        ("devstral-medium-latest", "mistral"),
        ("anthropic/claude-opus-5.5", "openrouter"),
        ("nobody-knows-it", None),
    ],
)
def test_who_serves_a_model(catalogue: Catalogue, model: str, provider: str | None) -> None:
    found = catalogue.serving(model)
    assert (found.name if found else None) == provider


def test_a_model_that_two_serve_is_served_by_none() -> None:
    tables = {name: {"models": [{"match": "shared-model", "window": 1}]} for name in ("groq", "mistral")}
    assert load(overrides=tables).serving("shared-model") is None


def test_a_models_own_name_wins_over_anothers_glob() -> None:
    tables = {
        "groq": {"models": [{"match": "m-*", "window": 1}]},
        "mistral": {"models": [{"match": "m-1", "window": 2}]},
    }
    served = load(overrides=tables).serving("m-1")
    assert served is not None
    assert served.name == "mistral"


# ── roots and keys ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("base_url", "api_root", "host_root"),
    [
        ("https://x", "https://x/v1", "https://x"),
        ("https://x/", "https://x/v1", "https://x"),
        ("https://x/v1", "https://x/v1", "https://x"),
        ("https://x/v1/", "https://x/v1", "https://x"),
        ("https://openrouter.ai/api", "https://openrouter.ai/api/v1", "https://openrouter.ai/api"),
        ("https://api.z.ai/api/paas/v4", "https://api.z.ai/api/paas/v4", "https://api.z.ai/api/paas"),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/v1", "http://127.0.0.1:8000"),
    ],
)
def test_a_base_url_with_or_without_its_version(base_url: str, api_root: str, host_root: str) -> None:
    provider = load(overrides={"mine": {"base_url": base_url}}).get("mine")
    assert (provider.api_root, provider.host_root) == (api_root, host_root)


def test_a_base_url_that_has_no_version(catalogue: Catalogue) -> None:
    assert catalogue.get("chatgpt").api_root == "https://chatgpt.com/backend-api/codex"


def test_a_dialect_served_elsewhere(catalogue: Catalogue) -> None:
    deepseek = catalogue.get("deepseek")
    assert deepseek.root_for("chat") == "https://api.deepseek.com/v1"
    assert deepseek.root_for("messages") == "https://api.deepseek.com/anthropic/v1"


@pytest.mark.parametrize(
    ("auth", "headers"),
    [
        ({}, {"authorization": "Bearer k"}),
        ({"scheme": "x-api-key"}, {"x-api-key": "k"}),
        ({"scheme": "header", "header": "API-Key"}, {"api-key": "k"}),
    ],
)
def test_how_a_key_travels(auth: dict[str, str], headers: dict[str, str]) -> None:
    assert load(overrides={"mine": {"auth": auth}}).get("mine").auth.headers("k") == headers


def test_fields_of_tidegates_own_calls(catalogue: Catalogue) -> None:
    assert catalogue.get("chatgpt").summary_fields("responses") == {
        "store": False,
        "stream": True,
        "max_output_tokens": None,
    }
    assert catalogue.get("vllm").summary_fields("chat") == {}


# ── a user's own ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_override_lies_over_field_by_field() -> None:
    changed = load(overrides={"openai": {"base_url": "https://proxy/v1", "auth": {"env": "MY_KEY"}}}).get("openai")
    assert changed.api_root == "https://proxy/v1"
    assert (changed.auth.scheme, changed.auth.env) == ("bearer", "MY_KEY")
    assert changed.dialects == ("responses", "chat")
    assert changed.model("gpt-5").window == 400_000


def test_a_users_models_come_first() -> None:
    changed = load(overrides={"openai": {"models": [{"match": "gpt-5", "window": 9_000}]}}).get("openai")
    assert changed.model("gpt-5").window == 9_000
    assert changed.model("gpt-5-mini").window == 400_000


def test_a_new_name_lies_over_the_generic_provider() -> None:
    mine = load(overrides={"mine": {"base_url": "http://10.0.0.1"}}).get("mine")
    assert mine.title == "mine"
    assert mine.dialects == ("chat", "responses", "messages")
    assert mine.quirks.merge_user


def test_files_of_a_folder_then_config(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('base_url = "https://a"\ndialects = ["chat"]\n')
    (tmp_path / "openai.toml").write_text('title = "Ours"\n')
    both = load(tmp_path, {"mine": {"base_url": "https://b"}})
    assert both.get("mine").api_root == "https://b/v1"
    assert both.get("mine").dialects == ("chat",)
    assert both.get("openai").title == "Ours"


def test_a_users_rule_decides_before_the_built_in_ones() -> None:
    rule = {"id": "odd", "kind": "overflow", "pattern": "brain full", "sample": "Brain full", "source": "seen"}
    rules = load(overrides={"generic": {"refusals": [rule]}}).rules("generic")
    verdict = classify(Refusal(400, '{"error":"Brain full"}'), rules)
    assert (verdict.kind, verdict.evidence.rule) == ("overflow", "odd")


def test_the_built_in_files_are_not_changed_by_an_override(catalogue: Catalogue) -> None:
    load(overrides={"openai": {"auth": {"env": "X"}, "models": [{"match": "gpt-5", "window": 1}]}})
    assert load().get("openai") == catalogue.get("openai")


def test_rules_of_a_file_are_checked_under_those_of_the_config(tmp_path: Path) -> None:
    (tmp_path / "groq.toml").write_text(
        '[[refusals]]\nid = "f"\nkind = "overflow"\npattern = "a+"\nsample = "a"\nsource = "s"\n'
    )
    good = {"id": "g", "kind": "overflow", "pattern": "brim full", "sample": "brim full", "source": "s"}
    with pytest.raises(ProviderError, match=r"refusals\.f: pattern"):
        load(tmp_path, {"groq": {"refusals": [good]}})


# ── what is wrong is named ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("table", "key", "allowed"),
    [
        ({"modles": []}, "modles", "models"),
        ({"auth": {"scheme": "basic"}}, "auth.scheme", "'bearer', 'x-api-key' or 'header'"),
        ({"auth": {"scheme": "header"}}, "auth", "header is given if"),
        ({"models": [{"match": "x", "windw": 1}]}, "models.0.windw", "window"),
        ({"models": [{"match": "x", "window": 0}]}, "models.0.window", "greater than 0"),
        ({"dialects": ["gemini"]}, "dialects.0", "'chat', 'responses' or 'messages'"),
        ({"base_url": "ftp://x"}, "base_url", "http:// or https://"),
        ({"elsewhere": {"eu": "x"}}, "elsewhere.eu", "http:// or https://"),
        ({"strategies": {"chat": ["xai"]}}, "strategies", "xai belongs to the responses dialect"),
        ({"strategies": {"responses": ["anthropic"]}}, "strategies", "belongs to the messages dialect"),
        ({"strategies": {"chat": ["summary", "summary"]}}, "strategies", "given twice"),
        (
            {"models": [{"match": "x", "compaction": ["sometimes"]}]},
            "models.0.compaction.0",
            "'on-demand' or 'threshold'",
        ),
        ({"betas": {"on_deman": "x"}}, "betas.on_deman", "on_demand"),
        ({"minimum_trigger": {"anthropic": 0}}, "minimum_trigger.anthropic", "greater than 0"),
        ({"native_timeout": 0}, "native_timeout", "greater than 0"),
        ({"through": "boto3"}, "through", "'litellm'"),
        ({"quirks": {"merge_users": True}}, "quirks.merge_users", "merge_user"),
        (
            {"refusals": [{"id": "a", "kind": "overflow", "pattern": "a.*b", "sample": "ab", "source": "s"}]},
            "refusals.a: pattern",
            "upper bound",
        ),
        (
            {"refusals": [{"id": "a", "kind": "overflow", "pattern": "abc", "sample": "xyz", "source": "s"}]},
            "refusals.a: sample",
            "not matched",
        ),
        ({"refusals": [{"id": "a", "kind": "overfull"}]}, "refusals.0.kind", "overflow"),
    ],
)
def test_a_wrong_value_names_file_key_and_what_is_allowed(
    tmp_path: Path, table: dict[str, object], key: str, allowed: str
) -> None:
    with pytest.raises(ProviderError) as refused:
        load(overrides={"openai": table})
    text = str(refused.value)
    assert "config: providers.openai" in text
    assert key in text
    assert allowed in text


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("name = [")
    with pytest.raises(ProviderError, match=r"bad\.toml"):
        load(tmp_path)


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProviderError, match="not a folder"):
        load(tmp_path / "nowhere")


def test_an_unknown_provider_names_the_known_ones(catalogue: Catalogue) -> None:
    with pytest.raises(ProviderError, match="anthropic, azure"):
        catalogue.get("opnai")
