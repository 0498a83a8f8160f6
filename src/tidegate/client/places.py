"""Where a request of an SDK goes: which API its URL is of, whose, and where that API's root is.

Knows URLs and providers; no bodies. Called by the transports for every request.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from tidegate.gateway.routes import ENDPOINTS, RouteKind
from tidegate.gateway.targets import GENERIC
from tidegate.providers import Catalogue, Provider
from tidegate.wire.conversation import DialectName


@dataclass(frozen=True, slots=True)
class Place:
    """An endpoint of an API that carries conversations."""

    kind: RouteKind
    dialect: DialectName
    root: str
    """API root: the URL before the endpoint's own path."""
    query: bytes


@lru_cache(maxsize=1024)
def place_of(method: str, url: str) -> Place | None:
    """Where a request goes; None where it carries no conversation."""
    if method != "POST":
        return None
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    tail = next((known for known in ENDPOINTS if path.endswith(known)), None)
    if tail is None:
        return None
    kind, dialect = ENDPOINTS[tail]
    root = f"{parts.scheme}://{parts.netloc}{path[: -len(tail)]}"
    return Place(kind, dialect, root, parts.query.encode("latin-1", "replace"))


def provider_at(catalogue: Catalogue, place: Place) -> Provider:
    """Whose API it is: that of the longest base URL it lies below, else of the host, else one of no known kind."""
    roots = [
        (root.rstrip("/"), provider)
        for provider in catalogue
        if place.dialect in provider.dialects and (root := provider.root_for(place.dialect))
    ]
    own = [(len(root), provider) for root, provider in roots if place.root == root or place.root.startswith(f"{root}/")]
    if own:
        return max(own, key=lambda it: it[0])[1]
    found = catalogue.at(place.root)
    if found is None or place.dialect not in found.dialects or _at_another_port(found, place.root):
        return catalogue.get(GENERIC)
    return found


def _at_another_port(provider: Provider, root: str) -> bool:
    """Whether a provider is at that host, but behind another port: on one machine that is another server."""
    here = urlsplit(root)
    urls = [urlsplit(url) for url in (provider.base_url, *provider.base_urls.values()) if url]
    there = [url for url in urls if url.hostname == here.hostname]
    return bool(there) and all(url.port != here.port for url in there)
