"""Which provider a model's name chooses, and that a key meant for a reseller goes to nobody else."""

from __future__ import annotations

from typing import Any

import pytest
from running import settings

from tidegate.gateway.catalogue import catalogue
from tidegate.gateway.routes import Route
from tidegate.gateway.targets import Choice, Targets
from tidegate.providers import ModelFacts

CHAT = Route("conversation", "/chat/completions", "api", "chat")

ORDINARY = {
    "groq/llama-4": ("groq", "llama-4"),
    "nobody/knows": ("openai", "nobody/knows"),
    "gpt-5": ("openai", "gpt-5"),
}

RESOLD = ["groq/llama-4", "perplexity/sonar", "openai/gpt-5", "anthropic/claude-opus-5", "deepseek-chat", "x"]


def chosen(default: str, model: str) -> tuple[str, str]:
    given = settings(f'[routing]\ndefault_chat = "{default}"\n')
    choice = Targets(given, catalogue(given)).choose(CHAT, "chat", model)
    return choice.provider.name, choice.model


@pytest.mark.parametrize(("model", "expected"), ORDINARY.items())
def test_a_prefix_or_a_table_chooses_before_the_default(model: str, expected: tuple[str, str]) -> None:
    assert chosen("openai", model) == expected


@pytest.mark.parametrize("model", RESOLD)
@pytest.mark.parametrize("default", ["openrouter", "vercel", "litellm-proxy", "huggingface"])
def test_a_reseller_that_is_the_default_gets_every_model_under_its_whole_name(default: str, model: str) -> None:
    given = settings(
        f'[routing]\ndefault_chat = "{default}"\n\n[providers.litellm-proxy]\nbase_url = "http://l:4000"\n'
    )
    choice = Targets(given, catalogue(given)).choose(CHAT, "chat", model)
    assert (choice.provider.name, choice.model) == (default, model)


def test_its_own_prefix_is_taken_off() -> None:
    assert chosen("openrouter", "openrouter/openai/gpt-5") == ("openrouter", "openai/gpt-5")


ANTHROPIC = "https://api.anthropic.com/v1"


@pytest.mark.parametrize(
    ("model", "told", "expected"),
    [
        ("claude-opus-5-5", {}, (1_000_000, 128_000, ("on-demand", "threshold"))),
        ("claude-opus-5-5", {"on_demand": False}, (1_000_000, 128_000, ("threshold",))),
        ("claude-opus-5-5", {"on_demand": False, "threshold": False}, (1_000_000, 128_000, ())),
        ("claude-opus-5-5", {"window": 200_000, "max_output": 64_000}, (200_000, 64_000, ("on-demand", "threshold"))),
        ("claude-opus-4-5", {"window": 1_000_000, "max_output": 128_000}, (200_000, 64_000, ())),
        ("claude-opus-4-5", {"threshold": True}, (200_000, 64_000, ("threshold",))),
        ("claude-tomorrow-9", {}, (None, None, None)),
        ("claude-tomorrow-9", {"window": 500_000}, (500_000, None, None)),
        (
            "claude-tomorrow-9",
            {"window": 500_000, "max_output": 9_000, "on_demand": True, "threshold": False},
            (500_000, 9_000, ("on-demand",)),
        ),
        ("claude-tomorrow-9", {"threshold": True}, (None, None, ("on-demand", "threshold"))),
    ],
)
def test_what_anthropics_own_api_tells_of_a_model(model: str, told: dict[str, Any], expected: Any) -> None:
    """Its abilities count for more than the file's, its sizes where they are smaller or the file has none."""
    given = settings()
    targets = Targets(given, catalogue(given))
    targets.tell(ANTHROPIC, model, ModelFacts(**told), 1_000.0)
    target = targets.target(Choice(targets.catalogue.get("anthropic"), model), "messages")
    assert (target.window, target.max_output, target.means.ways) == expected
