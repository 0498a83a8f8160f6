"""What the gateway is built with follows the provider files."""

from __future__ import annotations

import pytest
from running import settings

from tidegate.engine.request import Target
from tidegate.gateway.server import make_kit
from tidegate.providers import load
from tidegate.store import Keys


@pytest.mark.parametrize(
    ("provider", "dialect", "key"),
    [
        ("openai", "chat", "max_completion_tokens"),
        ("openai", "responses", "max_output_tokens"),
        ("llamacpp", "chat", "max_tokens"),
        ("chatgpt", "responses", ""),
    ],
)
def test_summary_calls_name_their_output_limit_as_the_provider_does(provider, dialect, key):
    options = make_kit(settings(), load(), Keys.random()).options(Target(provider, "http://up/v1", "m"), dialect)
    assert options.limit_key == key
