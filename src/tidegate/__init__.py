"""Tidegate keeps an LLM agent's conversation inside its model's context window.

The names below are imported when they are first used, so that `import tidegate` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.client.clients import NotAClient as NotAClient
    from tidegate.client.clients import async_http_client as async_http_client
    from tidegate.client.clients import http_client as http_client
    from tidegate.client.clients import wrap as wrap
    from tidegate.overflow.verdict import Refusal as Refusal
    from tidegate.overflow.verdict import Sent as Sent
    from tidegate.overflow.verdict import Verdict as Verdict
    from tidegate.providers import classify as classify

__version__ = "0.1.0"

_HOMES = {
    "NotAClient": "tidegate.client.clients",
    "async_http_client": "tidegate.client.clients",
    "http_client": "tidegate.client.clients",
    "wrap": "tidegate.client.clients",
    "classify": "tidegate.providers",
    "Refusal": "tidegate.overflow.verdict",
    "Sent": "tidegate.overflow.verdict",
    "Verdict": "tidegate.overflow.verdict",
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
