"""What becomes of a request's head on its way upstream: address, headers, whose it is.

Remembers it for the next request of the same connection, whose head seldom changes but for its length. Knows headers
and targets; no body. Called for every conversation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from tidegate.gateway.arrival import Arrival
from tidegate.gateway.credentials import identity, with_key
from tidegate.gateway.messages import forwarded, readable
from tidegate.gateway.routes import Route
from tidegate.gateway.targets import Targets
from tidegate.providers import Provider
from tidegate.upstream.http import Headers, header_lines
from tidegate.wire.conversation import DialectName

KEPT = 1024
"""Heads remembered: of about as many clients, some KB each."""


class Heading:
    """Where a request goes, under which headers, in whose name. Nothing of it changes."""

    __slots__ = ("headers", "lines", "root", "secret", "url")

    def __init__(self, url: str, root: str, headers: Headers, lines: bytes, secret: bytes) -> None:
        self.url, self.root = url, root
        self.headers = headers
        """As they go upstream, credential included."""
        self.lines = lines
        """The same, written."""
        self.secret = secret
        """All that tells its caller from others; empty for nothing."""


class Headings:
    """Makes headings. One instance a process; used by its event loop only."""

    def __init__(self, targets: Targets, environ: Mapping[str, str], *, kept: int = KEPT) -> None:
        self._targets, self._environ, self._kept = targets, environ, kept
        self._known: OrderedDict[tuple[object, ...], Heading] = OrderedDict()

    def of(
        self,
        arrival: Arrival,
        where: Route,
        provider: Provider,
        dialect: DialectName,
        *,
        watched: bool,
        own: tuple[str, str] = ("", ""),
    ) -> Heading:
        """The heading of a request to that provider; `watched`: its answer is to be read as it passes. `own`: name and
        value of the key that is used, where the provider has several and the client none.

        Raises `NoProvider` where the provider has no address, `UpstreamError` where a header can't be written.
        """
        key = (arrival.alike, provider.name, watched, dialect, own[0])
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._make(arrival, where, provider, dialect, own[1], watched=watched)
            if len(self._known) > self._kept:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return known

    def _make(
        self, arrival: Arrival, where: Route, provider: Provider, dialect: DialectName, key: str, *, watched: bool
    ) -> Heading:
        own = forwarded(arrival.headers)
        headers = with_key(readable(own) if watched else own, provider, self._environ, key)
        whose = identity(headers, arrival.query, provider)
        if key:
            # Whichever of the keys is used, the caller is the same. No secret begins like that.
            whose = b"\0".join((b"", b"several keys", provider.name.encode(), identity(own, arrival.query, provider)))
        return Heading(
            self._targets.url(where, provider, arrival.query),
            self._targets.root(provider, dialect),
            headers,
            header_lines(headers),
            whose,
        )
