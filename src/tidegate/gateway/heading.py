"""What becomes of a request's head on its way upstream: address, headers, whose it is.

Remembers it for the next request of the same connection, whose head seldom changes but for its length. Knows headers
and targets; no body. Called for every conversation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import ClassVar

from tidegate.gateway.arrival import Arrival
from tidegate.gateway.credentials import identity, with_key
from tidegate.gateway.messages import forwarded, readable
from tidegate.gateway.routes import Route
from tidegate.gateway.targets import Targets
from tidegate.providers import Provider
from tidegate.upstream.http import Headers, header_lines
from tidegate.wire.conversation import DialectName
from tidegate.wire.discreet import Discreet

KEPT = 1024
"""Heads remembered: of about as many clients, some KB each."""


class Heading(Discreet, frozen=True):
    """Where a request goes, under which headers, in whose name."""

    hidden: ClassVar[frozenset[str]] = frozenset({"url", "headers", "lines", "secret"})

    url: str
    root: str
    headers: Headers
    """As they go upstream, credential included."""
    lines: bytes
    """The same, written."""
    secret: bytes
    """All that tells its caller from others; empty for nothing."""


class Headings:
    """Makes headings. One instance a process; used by its event loop only."""

    def __init__(self, targets: Targets, environ: Mapping[str, str], *, kept: int = KEPT) -> None:
        self._targets, self._environ, self._kept = targets, environ, kept
        self._known: OrderedDict[tuple[object, ...], Heading] = OrderedDict()

    def of(self, arrival: Arrival, where: Route, provider: Provider, dialect: DialectName, *, watched: bool) -> Heading:
        """The heading of a request to that provider; `watched`: its answer is to be read as it passes.

        Raises `NoProvider` where the provider has no address, `UpstreamError` where a header can't be written.
        """
        key = (arrival.alike, provider.name, watched)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._make(arrival, where, provider, dialect, watched=watched)
            if len(self._known) > self._kept:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return known

    def _make(
        self, arrival: Arrival, where: Route, provider: Provider, dialect: DialectName, *, watched: bool
    ) -> Heading:
        headers = forwarded(arrival.headers)
        headers = with_key(readable(headers) if watched else headers, provider, self._environ)
        return Heading(
            self._targets.url(where, provider, arrival.query),
            self._targets.root(provider, dialect),
            headers,
            header_lines(headers),
            identity(headers, arrival.query, provider),
        )
