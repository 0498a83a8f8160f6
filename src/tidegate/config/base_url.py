"""What is wrong with a base URL, in words for whoever wrote it.

Knows URLs; not whose. Called where the configuration is checked.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

_ENDPOINTS: Final = (
    "/chat/completions",
    "/completions",
    "/responses",
    "/responses/compact",
    "/messages",
    "/messages/count_tokens",
    "/embeddings",
)


def problem(url: str) -> str:
    """Why a text can't be a base URL, without quoting it; empty where it can."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError where it is no port
    except ValueError:
        return "it is no URL"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "it does not begin with http:// or https:// and a host"
    if parts.username is not None or parts.password is not None:
        return "it holds a user name or a password; clients send their key, or auth.env names the variable that has it"
    if parts.query or parts.fragment:
        return "it has a query or a fragment"
    path = parts.path.rstrip("/")
    endpoint = max((known for known in _ENDPOINTS if path.endswith(known)), key=len, default="")
    return f"it is the address of one endpoint; leave {endpoint} out" if endpoint else ""
