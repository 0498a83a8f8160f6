"""Refuses foreign pages that reach a loopback gateway through a person's browser (DNS rebinding, cross-site calls)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Whether a bind address or host name stays on this machine."""
    if host in ("localhost", ""):
        return host == "localhost"
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.endswith(".localhost")


class Guard:
    """For a gateway bound to loopback: `Host` and `Origin` may name only this machine, or what configuration allows."""

    def __init__(self, bind_host: str, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self.active = is_loopback(bind_host)
        self.hosts = {_host_name(host) for host in hosts}
        self.origins = {origin.lower().rstrip("/") for origin in origins}
        self.refusal = lru_cache(maxsize=1024)(self._refusal)
        """Why a request with this `Host` and `Origin` must be refused, empty where it may pass; names the setting that
        would allow it."""

    def _refusal(self, host: str, origin: str) -> str:
        if not self.active:
            return ""
        name = _host_name(host)
        if host and not is_loopback(name) and name not in self.hosts:
            return (
                "This gateway serves only this machine, and the Host header names another. "
                "Add it to server.allowed_hosts to allow it."
            )
        if origin and origin.lower().rstrip("/") not in self.origins and not is_loopback(_host_name_of_origin(origin)):
            return (
                "Requests from web pages of other sites are refused. "
                "Add the Origin to server.allowed_origins to allow it."
            )
        return ""


def _host_name(host: str) -> str:
    host = host.lower()
    if host.startswith("["):
        return host.partition("]")[0].strip("[")
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _host_name_of_origin(origin: str) -> str:
    try:
        return urlsplit(origin).hostname or "null"
    except ValueError:
        return "null"
