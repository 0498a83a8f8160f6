"""Tidegate keeps an LLM agent's conversation inside its model's context window.

The names below are imported when they are first used, so that `import tidegate` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.client.blocks import policy as policy
    from tidegate.client.clients import NotAClient as NotAClient
    from tidegate.client.clients import async_http_client as async_http_client
    from tidegate.client.clients import http_client as http_client
    from tidegate.client.clients import wrap as wrap
    from tidegate.client.compactor import Check as Check
    from tidegate.client.compactor import Compactor as Compactor
    from tidegate.client.events import Compacted as Compacted
    from tidegate.client.events import Compacting as Compacting
    from tidegate.client.events import on_compacted as on_compacted
    from tidegate.client.events import on_compacting as on_compacting
    from tidegate.client.lists import CompactedMessages as CompactedMessages
    from tidegate.client.plan import Plan as Plan
    from tidegate.client.retrying import retry_on_overflow as retry_on_overflow
    from tidegate.client.sdk import NoSuchApi as NoSuchApi
    from tidegate.compactors.strategy import CompactionFailed as CompactionFailed
    from tidegate.config.layers import ConfigError as ConfigError
    from tidegate.overflow.verdict import Refusal as Refusal
    from tidegate.overflow.verdict import Sent as Sent
    from tidegate.overflow.verdict import Verdict as Verdict
    from tidegate.providers import classify as classify

__version__ = "0.1.0"

_HOMES = {
    "Check": "tidegate.client.compactor",
    "Compacted": "tidegate.client.events",
    "CompactedMessages": "tidegate.client.lists",
    "Compacting": "tidegate.client.events",
    "CompactionFailed": "tidegate.compactors.strategy",
    "Compactor": "tidegate.client.compactor",
    "ConfigError": "tidegate.config.layers",
    "NoSuchApi": "tidegate.client.sdk",
    "NotAClient": "tidegate.client.clients",
    "Plan": "tidegate.client.plan",
    "Refusal": "tidegate.overflow.verdict",
    "Sent": "tidegate.overflow.verdict",
    "Verdict": "tidegate.overflow.verdict",
    "async_http_client": "tidegate.client.clients",
    "classify": "tidegate.providers",
    "http_client": "tidegate.client.clients",
    "on_compacted": "tidegate.client.events",
    "on_compacting": "tidegate.client.events",
    "policy": "tidegate.client.blocks",
    "retry_on_overflow": "tidegate.client.retrying",
    "wrap": "tidegate.client.clients",
}
"""Public names, and the modules they live in."""


def __getattr__(name: str) -> object:
    """A public name, from its home."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tidegate' has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, the ones not imported yet among them."""
    return sorted({*globals(), *_HOMES})
