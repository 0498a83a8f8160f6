"""Knows which HTTP proxy a URL goes through, from the environment's variables. Does not connect.

Read once at start-up by the caller of a pool.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from tidegate.engine.effects import UpstreamError


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy. `authorization` is the value of Proxy-Authorization, empty for none."""

    host: str
    port: int
    authorization: bytes = field(default=b"", repr=False)

    @property
    def name(self) -> str:
        """Host and port, for messages."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Proxies:
    """What goes through a proxy: by scheme, but for the hosts of `direct`. Loopback never does."""

    by_scheme: Mapping[str, Proxy] = field(default_factory=dict)
    direct: tuple[str, ...] = ()
    """Entries of NO_PROXY: `*`, a host (with all below it), a network like 10.0.0.0/8, each with `:port` if
    wanted."""

    def choose(self, scheme: str, host: str, port: int) -> Proxy | None:
        """The proxy for a host (lower case, no brackets), None for a direct connection."""
        proxy = self.by_scheme.get(scheme)
        if proxy is None or is_loopback(host) or any(_matches(entry, host, port) for entry in self.direct):
            return None
        return proxy


NO_PROXIES = Proxies()


def from_environ(environ: Mapping[str, str]) -> Proxies:
    """Reads HTTPS_PROXY, HTTP_PROXY and NO_PROXY; the lower-case form wins, as in curl.

    Upper-case HTTP_PROXY is ignored under CGI (REQUEST_METHOD set), where a request's header makes it. Raises
    `UpstreamError` naming the variable, never its value, where it holds no http:// proxy.
    """
    by_scheme = {}
    for scheme in ("http", "https"):
        variable = f"{scheme}_proxy"
        value = environ.get(variable, "")
        if not value and not (scheme == "http" and "REQUEST_METHOD" in environ):
            variable = variable.upper()
            value = environ.get(variable, "")
        if value.strip():
            by_scheme[scheme] = _parse(variable, value.strip())
    listed = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    direct = tuple(entry.lower() for entry in listed.replace(",", " ").split())
    return Proxies(by_scheme, direct)


def is_loopback(host: str) -> bool:
    """Whether the host is this machine, by its name or address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    address = _address(host)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address is not None and address.is_loopback


def _parse(variable: str, value: str) -> Proxy:
    wanted = f"{variable} must be an http:// proxy, like http://proxy.example:3128."
    try:
        parts = urlsplit(value if "://" in value else f"http://{value}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise UpstreamError(f"{wanted} Check its host and port.") from None
    if parts.scheme != "http" or not host:
        raise UpstreamError(wanted)
    authorization = b""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = b"Basic " + base64.b64encode(pair.encode())
    return Proxy(host, 80 if port is None else port, authorization)


def _matches(entry: str, host: str, port: int) -> bool:
    if entry == "*":
        return True
    name, entry_port = _split_port(entry)
    if entry_port is not None and entry_port != port:
        return False
    address = _address(host)
    if address is not None:
        try:
            network = ipaddress.ip_network(name, strict=False)
        except ValueError:
            return False
        return address.version == network.version and address in network
    name = name.removeprefix("*").strip(".")
    return bool(name) and (host == name or host.endswith(f".{name}"))


def _split_port(entry: str) -> tuple[str, int | None]:
    if entry.startswith("["):
        name, _, rest = entry[1:].partition("]")
        port = rest.removeprefix(":")
    elif entry.count(":") == 1:
        name, _, port = entry.partition(":")
    else:
        return entry, None
    return name, int(port) if port.isdigit() else None


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
