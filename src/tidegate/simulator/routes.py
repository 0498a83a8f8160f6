"""Which paths there are, and under which prefix each profile has them.

Knows paths only. Called by the app.
"""

from __future__ import annotations

from typing import NamedTuple

from tidegate.simulator.profiles import PROFILES
from tidegate.simulator.turn import DialectName


class Route(NamedTuple):
    """Which API a path speaks, whether it only counts, whether it only compacts."""

    dialect: DialectName
    counts: bool = False
    compacts: bool = False

    @property
    def name(self) -> str:
        """What scripted steps call it."""
        return "count" if self.counts else "compact" if self.compacts else self.dialect


ROUTES = {
    "/chat/completions": Route("chat"),
    "/responses": Route("responses"),
    "/messages": Route("messages"),
    "/responses/compact": Route("responses", compacts=True),
    "/responses/input_tokens": Route("responses", counts=True),
    "/messages/count_tokens": Route("messages", counts=True),
}
_TOLD_BY_PATH = {"/backend-api/codex": "codex", "/openai/v1": "azure"}


def locate(path: str, profile: str) -> tuple[str, str]:
    """The path without its prefix, and the profile's name; `auto` gives way to whom the prefix belongs to.

    The path is empty where the profile has nothing under such a prefix.
    """
    if profile == "auto":
        for prefix, name in _TOLD_BY_PATH.items():
            if path.startswith(prefix + "/"):
                return path.removeprefix(prefix).rstrip("/"), name
    prefixes = PROFILES[profile].prefixes if profile in PROFILES else ("/v1", "")
    for prefix in prefixes:
        if path.startswith(prefix + "/"):
            return path.removeprefix(prefix).rstrip("/"), profile
    return "", profile


def route_of(path: str, profile: str) -> Route | None:
    """The route of a path without its prefix, None where the profile has none there."""
    served = PROFILES[profile].serves if profile in PROFILES else None
    return ROUTES.get(path) if served is None or path in served else None
