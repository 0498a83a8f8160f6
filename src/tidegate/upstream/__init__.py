"""Upstream: the HTTP/1.1 relay client. Knows sockets, TLS, proxies, framing; nothing of conversations.

Called by the gateway; clients in process bring transports of their own.
"""

from __future__ import annotations

from tidegate.upstream.http import Headers, Request, Timeouts, stopped
from tidegate.upstream.pool import Counters, Pool
from tidegate.upstream.response import Response

__all__ = ["Counters", "Headers", "Pool", "Request", "Response", "Timeouts", "stopped"]
