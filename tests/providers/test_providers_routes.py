"""Which strategies a provider has for which dialect, which windows its models: written by hand from the providers' own
pages, never from the files.
"""

from __future__ import annotations

import json
import time

import pytest

from tidegate.cli.route_command import route_of
from tidegate.config import Settings
from tidegate.context.budget import Policy
from tidegate.context.fingerprint import Hasher
from tidegate.context.ledger import Ledger
from tidegate.engine.capabilities import Capabilities
from tidegate.engine.inband import threshold_of
from tidegate.engine.planning import plan
from tidegate.engine.request import Kit, Request, Target
from tidegate.engine.router import Means, Wanted
from tidegate.engine.sizing import Sizing
from tidegate.engine.view import plain, read_history
from tidegate.overflow.window import Windows
from tidegate.providers import Catalogue, load
from tidegate.wire import read

TEXT = "summary"
UNARY = "openai > openai-trigger > summary"
ALL = "openai > openai-trigger > openai-inband > summary"

ROUTES = {
    # the makers' own APIs
    ("openai", "responses"): ALL,
    ("openai", "chat"): TEXT,
    ("chatgpt", "responses"): "openai-trigger > summary",
    ("anthropic", "messages"): "anthropic > summary",
    ("xai", "responses"): "xai > summary",
    ("xai", "chat"): TEXT,
    ("deepseek", "chat"): TEXT,
    ("deepseek", "messages"): TEXT,
    ("deepseek", "responses"): TEXT,
    ("mistral", "chat"): TEXT,
    ("zai", "chat"): TEXT,
    ("zai", "messages"): TEXT,
    ("zai", "responses"): TEXT,
    ("moonshot", "chat"): TEXT,
    ("moonshot", "messages"): TEXT,
    ("moonshot", "responses"): TEXT,
    ("minimax", "chat"): TEXT,
    ("minimax", "messages"): TEXT,
    ("minimax", "responses"): TEXT,
    ("dashscope", "chat"): TEXT,
    ("dashscope", "responses"): TEXT,
    ("dashscope", "messages"): TEXT,
    ("cohere", "chat"): TEXT,
    ("perplexity", "responses"): TEXT,
    ("perplexity", "chat"): TEXT,
    # clouds
    ("azure", "responses"): ALL,
    ("azure", "chat"): TEXT,
    ("foundry", "messages"): "anthropic > summary",
    ("foundry", "responses"): ALL,
    ("foundry", "chat"): TEXT,
    ("vertex-anthropic", "messages"): "anthropic > summary",
    ("bedrock", "messages"): "anthropic > summary",
    ("bedrock", "responses"): TEXT,
    ("bedrock", "chat"): TEXT,
    # catalogues and gateways
    ("openrouter", "chat"): TEXT,
    ("openrouter", "responses"): TEXT,
    ("openrouter", "messages"): TEXT,
    ("vercel", "responses"): UNARY,
    ("vercel", "chat"): TEXT,
    ("vercel", "messages"): TEXT,
    ("github-copilot", "responses"): "openai-inband > summary",
    ("github-copilot", "chat"): TEXT,
    ("github-copilot", "messages"): TEXT,
    ("litellm", "chat"): TEXT,
    ("litellm", "responses"): TEXT,
    ("litellm", "messages"): TEXT,
    ("litellm-proxy", "chat"): TEXT,
    ("litellm-proxy", "responses"): TEXT,
    ("litellm-proxy", "messages"): TEXT,
    ("huggingface", "chat"): TEXT,
    ("huggingface", "responses"): TEXT,
    ("nvidia", "chat"): TEXT,
    ("together", "chat"): TEXT,
    ("fireworks", "chat"): TEXT,
    ("fireworks", "responses"): TEXT,
    ("fireworks", "messages"): TEXT,
    ("groq", "chat"): TEXT,
    ("groq", "responses"): TEXT,
    ("cerebras", "chat"): TEXT,
    # servers of your own
    ("ollama", "responses"): UNARY,
    ("ollama", "chat"): TEXT,
    ("ollama", "messages"): TEXT,
    ("vllm", "chat"): TEXT,
    ("vllm", "responses"): TEXT,
    ("vllm", "messages"): TEXT,
    ("sglang", "chat"): TEXT,
    ("sglang", "responses"): TEXT,
    ("sglang", "messages"): TEXT,
    ("llamacpp", "chat"): TEXT,
    ("llamacpp", "responses"): TEXT,
    ("llamacpp", "messages"): TEXT,
    ("lmstudio", "chat"): TEXT,
    ("lmstudio", "responses"): TEXT,
    ("lmstudio", "messages"): TEXT,
    ("generic", "chat"): TEXT,
    ("generic", "responses"): TEXT,
    ("generic", "messages"): TEXT,
}


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return load()


@pytest.mark.parametrize(("served", "expected"), ROUTES.items(), ids="-".join)
def test_the_strategies_of_a_provider(catalogue: Catalogue, served: tuple[str, str], expected: str) -> None:
    name, dialect = served
    assert " > ".join(catalogue.get(name).strategies_for(dialect)) == expected  # type: ignore[arg-type]


def test_the_table_has_every_provider_and_dialect(catalogue: Catalogue) -> None:
    assert set(ROUTES) == {(provider.name, dialect) for provider in catalogue for dialect in provider.dialects}


@pytest.mark.parametrize(("served", "expected"), ROUTES.items(), ids="-".join)
def test_the_route_of_a_provider_and_a_dialect(catalogue: Catalogue, served: tuple[str, str], expected: str) -> None:
    name, dialect = served
    found = route_of(f"{name}/any-model", dialect, Settings(), catalogue)  # type: ignore[arg-type]
    assert " > ".join(found.names) == expected


@pytest.mark.parametrize(
    ("model", "dialect", "expected"),
    [
        ("anthropic/claude-opus-5-5", "messages", "anthropic > summary"),
        ("anthropic/claude-sonnet-4-6-20260217", "messages", "anthropic > summary"),
        ("anthropic/claude-tomorrow-9", "messages", "anthropic > summary"),
        ("anthropic/claude-opus-4-5", "messages", TEXT),
        ("anthropic/claude-3-haiku-20240307", "messages", TEXT),
        ("vertex-anthropic/claude-sonnet-4-5@20250929", "messages", TEXT),
        ("vertex-anthropic/claude-fable-5-1@default", "messages", "anthropic > summary"),
        ("foundry/claude-opus-5", "messages", "anthropic > summary"),
        ("bedrock/eu.anthropic.claude-opus-5-5", "messages", "anthropic > summary"),
        ("bedrock/eu.anthropic.claude-opus-4-5", "messages", TEXT),
        ("openrouter/openai/gpt-6-sol", "responses", TEXT),
        ("vercel/openai/gpt-5.6-sol", "responses", UNARY),
        ("chatgpt/gpt-6.1-sol", "responses", "openai-trigger > summary"),
        ("xai/grok-4.7", "responses", "xai > summary"),
        ("xai/grok-4.7", "chat", TEXT),
    ],
)
def test_the_route_of_a_model(catalogue: Catalogue, model: str, dialect: str, expected: str) -> None:
    found = route_of(model, dialect, Settings(), catalogue)  # type: ignore[arg-type]
    assert " > ".join(found.names) == expected


# ── how far ───────────────────────────────────────────────────────────────────────────────────────────────────────────

BY_TARGET = {
    "summary": True,
    "openai": False,
    "openai-trigger": False,
    "xai": False,
    "anthropic": False,
    # within the client's own request: nothing is cut, only where it begins is told
    "openai-inband": False,
}
"""Whether the target percentage tells what is replaced: a provider's own compaction decides itself how much remains."""


def where_cut(dialect: str, strategy: str, percent: float) -> int | None:
    """How many items a strategy replaces of a long history, by the target percentage; in-band, from which size on."""
    key = "input" if dialect == "responses" else "messages"
    items = [{"role": ("user", "assistant")[n % 2], "content": f"{n} " + "word " * 200} for n in range(41)]
    conversation = read(dialect, json.dumps({"model": "m", "max_tokens": 100, key: items}).encode())  # type: ignore[arg-type]
    hasher = Hasher(b"k" * 32)
    kit = Kit(
        hasher=hasher,
        ledger=Ledger(hasher),
        windows=Windows(),
        classify=lambda *_: pytest.fail("nothing was refused"),
        policy=Policy(target_percent=percent, prepare_percent=None),
    )
    means = Means(on_demand="compact-2026-09-04", ways=("on-demand",))
    wanted = Wanted((strategy,), listed=(strategy,))
    target = Target(provider="p", endpoint="http://p/v1", model="m", window=10_000, wanted=wanted, means=means)
    sizing = Sizing(
        Request("r", conversation, b"tenant", target, 0.0), kit, read_history(conversation, b"t", hasher, kit.ledger)
    )
    if strategy == "openai-inband":
        return threshold_of(sizing.request, kit)
    aim = sizing.limits().target
    assert aim
    found = plan(sizing, plain(sizing.history), aim, "threshold")
    return found.first.at if found else None


@pytest.mark.parametrize(("served", "expected"), ROUTES.items(), ids="-".join)
def test_target_percent_only_on_the_text_path(served: tuple[str, str], expected: str) -> None:
    for strategy in expected.split(" > "):
        moved = where_cut(served[1], strategy, 20) != where_cut(served[1], strategy, 60)
        assert moved is BY_TARGET[strategy]


# ── by the model ──────────────────────────────────────────────────────────────────────────────────────────────────────

ON, AT = "on demand (compact-2026-09-04)", "at a threshold (compact-2026-01-12)"


@pytest.mark.parametrize(
    ("model", "lacks", "expected", "words"),
    [
        ("anthropic/claude-opus-5-5", [], "anthropic > summary", f"is known to compact {ON} or {AT}; "),
        ("anthropic/claude-opus-5-5", ["anthropic on demand"], "anthropic > summary", f"compact {AT}; "),
        ("anthropic/claude-opus-5-5", ["anthropic at a threshold"], "anthropic > summary", f"compact {ON}; "),
        ("anthropic/claude-opus-5-5", ["anthropic on demand", "anthropic at a threshold"], TEXT, "after a day"),
        ("anthropic/claude-opus-5-5", ["anthropic"], TEXT, "after a day"),
        ("anthropic/claude-tomorrow-9", [], "anthropic > summary", f"the model may compact {ON} or {AT}; "),
        ("anthropic/claude-opus-4-5", [], TEXT, "the model does not compact by itself"),
        ("bedrock/us.anthropic.claude-opus-5", [], "anthropic > summary", f"is known to compact {AT}; "),
        ("bedrock/us.anthropic.claude-opus-5", ["anthropic at a threshold"], TEXT, "after a day"),
        ("vertex-anthropic/claude-opus-5@default", [], "anthropic > summary", f"compact {ON} or {AT}; "),
        ("foundry/our-claude", [], "anthropic > summary", f"the model may compact {ON} or {AT}; "),
    ],
)
def test_how_claude_compacts_where(
    catalogue: Catalogue, model: str, lacks: list[str], expected: str, words: str
) -> None:
    known, prefix = Capabilities(), model.partition("/")[0]
    cloud = {"bedrock": "https://b/anthropic", "foundry": "https://f/anthropic", "vertex-anthropic": "https://v"}
    base = cloud.get(prefix)
    given = load(overrides={prefix: {"base_urls": {"messages": base}}}) if base else catalogue
    endpoint = f"{base}/v1" if base else "https://api.anthropic.com/v1"
    for what in lacks:
        known.lacks(endpoint, model.partition("/")[2], what, now=time.time())
    found = route_of(model, "messages", Settings(), given, known)
    assert " > ".join(found.names) == expected
    told = {choice.name: choice.reason for choice in (*found.strategies, *found.excluded)}
    assert words in told["anthropic"]


@pytest.mark.parametrize(
    ("provider", "model", "window", "input_limit", "max_output"),
    [
        ("azure", "gpt-6.1-sol", 1_050_000, 922_000, 128_000),
        ("azure", "gpt-5.1-2025-11-13", 400_000, 272_000, 128_000),
        ("azure", "our-deployment", None, None, None),
        ("vercel", "openai/gpt-5.6-sol", 1_050_000, 922_000, 128_000),
        ("vercel", "anthropic/claude-opus-5.5", 1_000_000, None, 128_000),
        ("github-copilot", "gpt-5.6-sol", None, 272_000, 128_000),
        ("github-copilot", "gpt-5.6-luna", None, 200_000, 128_000),
        ("github-copilot", "claude-haiku-5.5", None, 128_000, 16_000),
        ("bedrock", "us.anthropic.claude-opus-5-5", 1_000_000, None, 128_000),
        ("bedrock", "anthropic.claude-opus-4-6-v1", 1_000_000, None, 128_000),
        ("bedrock", "global.anthropic.claude-sonnet-4-5-20250929-v1:0", 200_000, None, 64_000),
        ("bedrock", "anthropic.claude-opus-4-20250514-v1:0", 200_000, None, 32_000),
        ("bedrock", "us.openai.gpt-6-sol", None, 922_000, 128_000),
        ("vertex-anthropic", "claude-opus-5-5@default", 1_000_000, None, 128_000),
        ("vertex-anthropic", "claude-sonnet-4-6@default", 1_000_000, None, 64_000),
        ("vertex-anthropic", "claude-haiku-4-5@20251001", 200_000, None, 64_000),
        ("foundry", "claude-sonnet-5-5", 1_000_000, None, 128_000),
        ("foundry", "gpt-5.4-mini", 400_000, 272_000, 128_000),
        ("foundry", "grok-4.6", 200_000, None, None),
        ("zai", "glm-5.3", 1_000_000, None, 128_000),
        ("zai", "glm-4.7", 200_000, None, 128_000),
        ("moonshot", "kimi-k3", 1_048_576, None, None),
        ("moonshot", "kimi-k2.6", 262_144, None, None),
        ("minimax", "MiniMax-M3", 1_000_000, None, 128_000),
        ("minimax", "MiniMax-M2.7", 204_800, None, None),
        ("dashscope", "qwen3.8-max-0902", None, 991_808, 131_072),
        ("dashscope", "qwen3-coder-plus-2025-07-22", None, 997_952, 65_536),
        ("together", "moonshotai/Kimi-K3", 1_048_576, None, None),
        ("together", "zai-org/GLM-5.3", 1_048_575, None, 128_000),
        ("fireworks", "accounts/fireworks/models/kimi-k3", 1_048_576, None, 131_072),
        ("fireworks", "glm-5p3", 1_048_576, None, 128_000),
        ("cerebras", "gpt-oss-120b", 131_072, None, 32_768),
        ("cohere", "command-a-03-2025", 256_000, None, 8_000),
        ("cohere", "command-a-plus-05-2026", 128_000, None, 64_000),
        ("perplexity", "sonar-pro", 200_000, None, 8_000),
        ("perplexity", "sonar", 128_000, None, None),
        ("nvidia", "openai/gpt-oss-120b", 131_072, None, None),
        ("huggingface", "openai/gpt-oss-120b:cerebras", None, None, None),
        ("lmstudio", "qwen3-8b", None, None, None),
        ("sglang", "zai-org/GLM-5.2-FP8", None, None, None),
        ("litellm-proxy", "gpt-5", None, None, None),
        ("openai", "gpt-6.2-astra", 1_050_000, 922_000, 128_000),
        ("anthropic", "claude-haiku-5-5", 1_000_000, None, 128_000),
        ("chatgpt", "gpt-6.1-sol", 500_000, 372_000, 128_000),
        ("xai", "grok-4.7", 500_000, None, None),
        ("groq", "qwen/qwen3.8-27b", 131_072, None, 16_384),
        ("mistral", "mistral-large-4", 1_048_576, None, None),
        ("deepseek", "deepseek-v4-flash", 1_048_576, None, 393_216),
        ("openrouter", "x-ai/grok-4.7", 500_000, None, None),
    ],
)  # fmt: skip
def test_the_window_of_a_model(
    catalogue: Catalogue, provider: str, model: str, window: int | None, input_limit: int | None, max_output: int | None
) -> None:
    facts = catalogue.get(provider).model(model)
    assert (facts.window, facts.input_limit, facts.max_output) == (window, input_limit, max_output)


@pytest.mark.parametrize(
    ("provider", "model", "ways"),
    [
        ("anthropic", "claude-opus-5-5", ("on-demand", "threshold")),
        ("anthropic", "claude-haiku-5-5-20261101", ("on-demand", "threshold")),
        ("anthropic", "claude-sonnet-4-6", ("on-demand", "threshold")),
        ("anthropic", "claude-mythos-preview", ("on-demand", "threshold")),
        ("anthropic", "claude-opus-4-5", ()),
        ("anthropic", "claude-3-haiku-20240307", ()),
        ("anthropic", "claude-tomorrow-9", None),
        ("vertex-anthropic", "claude-fable-5-1@default", ("on-demand", "threshold")),
        ("vertex-anthropic", "claude-sonnet-4-5@20250929", ()),
        ("foundry", "claude-opus-5", ("on-demand", "threshold")),
        ("foundry", "gpt-6-sol", None),
        ("bedrock", "eu.anthropic.claude-opus-5-5", ("threshold",)),
        ("bedrock", "anthropic.claude-sonnet-4-6", ("threshold",)),
        ("bedrock", "us.anthropic.claude-haiku-4-5-20251001-v1:0", ()),
        ("openai", "gpt-5", None),
    ],
)  # fmt: skip
def test_how_a_model_compacts_by_itself(
    catalogue: Catalogue, provider: str, model: str, ways: tuple[str, ...] | None
) -> None:
    assert catalogue.get(provider).compaction_of(model) == ways


@pytest.mark.parametrize(
    ("provider", "model", "binds"),
    [
        ("vertex-anthropic", "claude-opus-5-5@default", True),
        ("vertex-anthropic", "claude-opus-5@default", False),
        ("bedrock", "global.anthropic.claude-fable-5-1", True),
        ("bedrock", "global.anthropic.claude-fable-5", False),
        ("foundry", "claude-sonnet-5-5", True),
        ("github-copilot", "claude-opus-5.5", True),
        ("github-copilot", "claude-opus-5", False),
        ("vercel", "anthropic/claude-haiku-5.5", True),
    ],
)  # fmt: skip
def test_thinking_is_bound_on_every_platform(catalogue: Catalogue, provider: str, model: str, binds: bool) -> None:
    assert catalogue.get(provider).model(model).binds_thinking is binds


@pytest.mark.parametrize(
    ("provider", "on_demand", "threshold", "context_edit"),
    [
        ("anthropic", "compact-2026-09-04", "compact-2026-01-12", "context-management-2025-06-27"),
        ("vertex-anthropic", "compact-2026-09-04", "compact-2026-01-12", "context-management-2025-06-27"),
        ("foundry", "compact-2026-09-04", "compact-2026-01-12", "context-management-2025-06-27"),
        ("bedrock", None, "compact-2026-01-12", "context-management-2025-06-27"),
        ("openai", None, None, None),
    ],
)  # fmt: skip
def test_the_betas_of_each_platform(
    catalogue: Catalogue, provider: str, on_demand: str | None, threshold: str | None, context_edit: str | None
) -> None:
    betas = catalogue.get(provider).betas
    assert (betas.on_demand, betas.threshold, betas.context_edit) == (on_demand, threshold, context_edit)


def test_the_smallest_threshold_and_who_compacts_within_a_request(catalogue: Catalogue) -> None:
    smallest = {p.name: dict(p.minimum_trigger) for p in catalogue if p.minimum_trigger}
    assert smallest == {
        "anthropic": {"anthropic": 50_000},
        "vertex-anthropic": {"anthropic": 50_000},
        "bedrock": {"anthropic": 50_000},
        "foundry": {"anthropic": 50_000, "openai-inband": 1_000},
        "openai": {"openai-inband": 1_000},
        "azure": {"openai-inband": 1_000},
        "github-copilot": {"openai-inband": 1_000},
    }
    assert {p.name for p in catalogue if p.inband} == {"openai", "azure", "foundry", "github-copilot"}


# ── where ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("provider", "dialect", "root"),
    [
        ("vercel", "messages", "https://ai-gateway.vercel.sh/v1"),
        ("github-copilot", "chat", "https://api.githubcopilot.com"),
        ("github-copilot", "messages", "https://api.githubcopilot.com/v1"),
        ("zai", "chat", "https://api.z.ai/api/paas/v4"),
        ("zai", "messages", "https://api.z.ai/api/anthropic/v1"),
        ("zai", "responses", "https://api.z.ai/api/v1"),
        ("moonshot", "messages", "https://api.moonshot.ai/anthropic/v1"),
        ("minimax", "messages", "https://api.minimax.io/anthropic/v1"),
        ("dashscope", "chat", "https://dashscope-intl.aliyuncs.com/compatible-mode/v1"),
        ("dashscope", "messages", "https://dashscope-intl.aliyuncs.com/apps/anthropic/v1"),
        ("fireworks", "messages", "https://api.fireworks.ai/inference/v1"),
        ("perplexity", "chat", "https://api.perplexity.ai"),
        ("perplexity", "responses", "https://api.perplexity.ai/v1"),
        ("cohere", "chat", "https://api.cohere.ai/compatibility/v1"),
        ("lmstudio", "messages", "http://127.0.0.1:1234/v1"),
        ("sglang", "messages", "http://127.0.0.1:30000/v1"),
        ("litellm-proxy", "messages", "http://127.0.0.1:4000/v1"),
    ],
)  # fmt: skip
def test_where_a_dialect_is_served(catalogue: Catalogue, provider: str, dialect: str, root: str) -> None:
    assert catalogue.get(provider).root_for(dialect) == root  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "provider"),
    [
        ("https://ours.openai.azure.com/openai/v1/responses", "azure"),
        ("https://ours.services.ai.azure.com/anthropic/v1/messages", "foundry"),
        ("https://bedrock-runtime.eu-central-1.amazonaws.com/model/x/invoke", "bedrock"),
        ("https://europe-west1-aiplatform.googleapis.com/v1/projects/p", "vertex-anthropic"),
        ("https://api.enterprise.githubcopilot.com/responses", "github-copilot"),
        ("https://open.bigmodel.cn/api/paas/v4/chat/completions", "zai"),
        ("https://api.moonshot.cn/v1/chat/completions", "moonshot"),
        ("https://w-1.ap-southeast-1.maas.aliyuncs.com/compatible-mode/v1/responses", "dashscope"),
        ("https://api.together.xyz/v1/chat/completions", "together"),
        ("https://api.openai.com/v1/responses", "openai"),
        ("https://elsewhere.example.com/v1", None),
        ("https://openai.azure.com.example.com/v1", None),
        ("nonsense", None),
    ],
)  # fmt: skip
def test_whose_a_url_is(catalogue: Catalogue, url: str, provider: str | None) -> None:
    found = catalogue.at(url)
    assert (found.name if found else None) == provider


@pytest.mark.parametrize(
    ("provider", "words"),
    [
        ("azure", ("has no base URL", "https://RESOURCE.openai.azure.com/openai/v1", "providers.azure.base_url")),
        ("foundry", ("has no base URL", "providers.foundry.base_url")),
        ("generic", ("Provider generic has no base URL. Start with --upstream URL", "providers.generic.base_url.")),
    ],
)  # fmt: skip
def test_what_is_said_where_there_is_no_base_url(catalogue: Catalogue, provider: str, words: tuple[str, ...]) -> None:
    assert all(word in catalogue.get(provider).without_base_url for word in words)


def test_a_base_url_takes_bedrock_over_http() -> None:
    host = "https://bedrock-runtime.us-east-1.amazonaws.com"
    table = {"base_url": f"{host}/openai", "base_urls": {"messages": f"{host}/anthropic"}}
    bedrock = load(overrides={"bedrock": table}).get("bedrock")
    assert (bedrock.root_for("chat"), bedrock.root_for("messages")) == (f"{host}/openai/v1", f"{host}/anthropic/v1")


@pytest.mark.parametrize(
    ("model", "provider"),
    [
        ("glm-5.3", "zai"),
        ("kimi-k3", "moonshot"),
        ("MiniMax-M3", "minimax"),
        ("qwen3.8-max", "dashscope"),
        ("command-a-03-2025", "cohere"),
        ("sonar-pro", "perplexity"),
        # many serve these: their makers are meant
        ("gpt-6-sol", "openai"),
        ("claude-opus-5-5", "anthropic"),
        ("deepseek-v4-pro", "deepseek"),
        ("grok-4.7", "xai"),
        # no maker's API has these
        ("openai/gpt-oss-120b", "groq"),
        ("gpt-oss-120b", None),
    ],
)  # fmt: skip
def test_a_name_alone_means_the_makers_own_api(catalogue: Catalogue, model: str, provider: str | None) -> None:
    found = catalogue.serving(model)
    assert (found.name if found else None) == provider
