"""Which policy a model gets from the settings: its own, over its provider's, over that for all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidegate.config import ConfigError, load
from tidegate.context.policies import NAMED
from tidegate.gateway.targets import Choice, Targets
from tidegate.providers import ProviderError
from tidegate.providers import load as load_providers

FILE = """
[compaction]
threshold_percent = 80
on_overflow = false

[providers.groq.compaction]
threshold_percent = 70
preserve_last_n = 6

[models."qwen3*"]
policy = "rubypi"
max_tokens = 12000

[models."groq/llama"]
trigger = "off"
window = 9000

[models."claude-*"]
policy = "rho-elixir"
strategies = ["summary", "anthropic"]
on_overflow = true
"""


def targets(tmp_path: Path, text: str = FILE) -> Targets:
    path = tmp_path / "tidegate.toml"
    path.write_text(text)
    settings = load(path, {}, {})
    return Targets(settings, load_providers(overrides=settings.providers))


@pytest.mark.parametrize(
    ("provider", "model", "expected"),
    [
        ("openai", "gpt-5", {"threshold_percent": 80, "on_overflow": False, "keep_recent_percent": 10}),
        ("groq", "other", {"threshold_percent": 70, "preserve_last_n": 6, "on_overflow": False}),
        ("groq", "llama", {"threshold_percent": 70, "trigger": "off", "on_overflow": False, "automatic": False}),
        ("groq", "qwen3-32b", {"trigger": "tokens", "max_tokens": 12_000, "preserve_last_n": 4, "estimator": "rubypi"}),
        ("anthropic", "claude-x", {"trigger": "reserve", "on_overflow": True, "keep_recent_tokens": 20_000}),
    ],
)  # fmt: skip
def test_the_most_special_counts(tmp_path: Path, provider: str, model: str, expected: dict[str, Any]) -> None:
    found = targets(tmp_path)
    target = found.target(
        Choice(found.catalogue.get(provider), model), "chat" if provider != "anthropic" else "messages"
    )
    assert target.policy is not None
    assert {key: getattr(target.policy, key) for key in expected} == expected


def test_a_policy_brings_its_own_ways_and_what_a_summarizer_is_shown(tmp_path: Path) -> None:
    found = targets(tmp_path, '[models.m]\npolicy = "planck"\n[models.n]\npolicy = "rho-elixir"\n')
    openai = found.catalogue.get("openai")
    planck, elixir, own = (found.target(Choice(openai, name), "responses") for name in ("m", "n", "other"))
    assert planck.wanted.names == elixir.wanted.names == ("summary",)
    assert planck.wanted.by == "the policy planck"
    assert "openai" in own.wanted.names
    assert (planck.tool_result_chars, elixir.tool_result_chars, own.tool_result_chars) == (2**31 - 1, 2_000, None)


@pytest.mark.parametrize(
    ("toml", "names", "by"),
    [
        ('[compaction]\npolicy = "rho"\n', ("elide", "openai", "openai-trigger"), "the policy rho, the file of"),
        ('[compaction]\npolicy = "rho"\nstrategies = ["summary"]\n', ("summary",), "compaction.strategies"),
        ('[models.m]\npolicy = "rho"\nstrategies = ["openai"]\n', ("openai",), "the model's strategies"),
        (
            '[providers.openai]\nstrategies.responses = ["openai"]\n[compaction]\npolicy = "rho"\n',
            ("openai",),
            "providers.openai.strategies",
        ),
    ],
)
def test_rho_leaves_results_out_first_unless_somebody_names_the_ways(
    tmp_path: Path, toml: str, names: tuple[str, ...], by: str
) -> None:
    found = targets(tmp_path, toml)
    wanted = found.target(Choice(found.catalogue.get("openai"), "m"), "responses").wanted
    assert wanted.names[: len(names)] == names
    assert wanted.by.startswith(by)


def test_a_target_may_be_taken_under_another_policy(tmp_path: Path) -> None:
    found = targets(tmp_path, '[models.m]\npolicy = "planck"\n')
    for name, ways in (("rho", ("elide", "summary")), ("rubypi", ("summary",)), ("default", ("summary",))):
        target = found.under(found.target(Choice(found.catalogue.get("groq"), "m"), "chat"), "chat", name)
        assert (target.wanted.names, target.policy) == (ways, NAMED[name].policy)


def test_equal_policies_are_one(tmp_path: Path) -> None:
    found = targets(tmp_path)
    openai = found.catalogue.get("openai")
    one, other = (found.target(Choice(openai, name), "chat").policy for name in ("a", "b"))
    assert one is other


def test_what_can_not_be_meant_is_told_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "tidegate.toml"
    path.write_text(
        "[compaction]\nmax_tokens = 5\n[models.m]\ntarget_percent = 95\n"
        "[providers.groq.compaction]\nreserve_tokens = 7\n"
    )
    assert load(path, {}, {}).warnings == (
        "compaction.max_tokens has no effect: the trigger is percent",
        "models.m.target_percent 95 is not below threshold_percent 85; 84 is used, one below it",
        "providers.groq.compaction.reserve_tokens has no effect: the trigger is percent",
    )


@pytest.mark.parametrize(
    ("text", "error", "named"),
    [
        ("[compaction]\npolicy = 'pi'\n", ConfigError, "compaction.policy"),
        ("[models.m]\ntrigger = 'always'\n", ConfigError, "models.m.trigger"),
        ("[models.m]\npreserve_last_n = 0\n", ConfigError, "models.m.preserve_last_n"),
        ("[providers.groq.compaction]\ntrigger = 'always'\n", ProviderError, "providers.groq: compaction.trigger"),
        ("[providers.groq.compaction]\npolicies = 'rho'\n", ProviderError, "unknown key; allowed: enabled, estimator"),
    ],
)  # fmt: skip
def test_a_wrong_one_ends_the_start(tmp_path: Path, text: str, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        targets(tmp_path, text)


def test_a_policy_by_variable() -> None:
    settings = load(None, {}, {"TIDEGATE_COMPACTION__POLICY": "rho", "TIDEGATE_COMPACTION__ENABLED": "true"})
    made = settings.chosen({}, {})
    assert (made.name, made.policy.automatic, made.policy.on_overflow) == ("rho", True, True)
