"""Tidegate for LiteLLM: `install()` for programs that call litellm, `TidegateHook` for the config of LiteLLM's proxy.

Knows what is public. Importing it imports litellm; nothing else of Tidegate does.
"""

from __future__ import annotations

from tidegate.litellm.installed import install, uninstall
from tidegate.litellm.proxied import TidegateHook

__all__ = ["TidegateHook", "hook", "install", "uninstall"]


def __getattr__(name: str) -> object:
    """`hook`, made when it is first named: LiteLLM's proxy does so where its config says `tidegate.litellm.hook`."""
    if name != "hook":
        raise AttributeError(f"module 'tidegate.litellm' has no attribute {name!r}")
    made = globals()["hook"] = TidegateHook()
    return made
