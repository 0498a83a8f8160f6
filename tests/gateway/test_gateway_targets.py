"""Which provider a model's name chooses, and that a key meant for a reseller goes to nobody else."""

from __future__ import annotations

import pytest
from running import settings

from tidegate.gateway.catalogue import catalogue
from tidegate.gateway.routes import Route
from tidegate.gateway.targets import Targets

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
