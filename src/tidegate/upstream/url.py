"""Knows how a URL is written and how an API root and a path make one. Does not resolve or connect.

The pools and the gateway call it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, urlsplit

from tidegate.engine.effects import UpstreamError

DEFAULT_PORTS = {"http": 80, "https": 443}

_VERSION = re.compile(r"v\d+[a-z0-9]*")
_PATH_SAFE = "/%:@!$&'()*+,;=-._~"
_QUERY_SAFE = _PATH_SAFE + '?[]{}|^`"<>\\'
_CONTROLS = re.compile(r"[\x00-\x20\x7f]")


@dataclass(frozen=True, slots=True)
class Address:
    """A URL taken apart, ready for a request line. `host` is lower case and without brackets."""

    scheme: str
    host: str
    port: int
    authority: bytes
    """Value of the Host header: the port only where it is not the scheme's own."""
    path: bytes
    """Path and query, percent-encoded."""

    @property
    def name(self) -> str:
        """Host and port, for messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def join(api_root: str, path: str, query: bytes = b"") -> str:
    """The URL of `path` under an API root.

    `path` is as it stood in the request line (percent-encoded). People give a root with or without its
    version, and clients put `/v1` in front or do not: where the root ends in a version, one at the beginning
    of `path` is dropped. A query of the root (an `api-version`) is kept in front of the request's own.
    """
    root, _, root_query = api_root.partition("?")
    root = root.rstrip("/")
    segments = path.lstrip("/")
    first, _, rest = segments.partition("/")
    last = urlsplit(root).path.rpartition("/")[2]
    if _VERSION.fullmatch(first) and _VERSION.fullmatch(last):
        segments = rest
    url = f"{root}/{quote(segments, safe=_PATH_SAFE)}" if segments else root
    queries = [part for part in (root_query, query.decode("latin-1")) if part]
    return f"{url}?{'&'.join(queries)}" if queries else url


@lru_cache(maxsize=256)
def parse(url: str) -> Address:
    """Takes an absolute http or https URL apart.

    Raises `UpstreamError` for anything else, and for a credential inside the URL, which would reach logs. The
    message names the host at most: a query may hold a key.
    """
    if _CONTROLS.search(url):
        raise UpstreamError("The upstream's URL holds a space or a control character. Check how it is written.")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise UpstreamError("The upstream's URL can't be read. Check its host and port.") from None
    if parts.scheme not in DEFAULT_PORTS or not host:
        raise UpstreamError(
            "The upstream's URL must begin with http:// or https:// and a host. Check how it is written."
        )
    if parts.username is not None:
        raise UpstreamError(f"The upstream's URL for {host} holds a credential. Send it in a header instead.")
    host = _ascii_host(host)
    default = DEFAULT_PORTS[parts.scheme]
    bracketed = f"[{host}]" if ":" in host else host
    authority = bracketed if port in (None, default) else f"{bracketed}:{port}"
    path = quote(parts.path, safe=_PATH_SAFE) or "/"
    if parts.query:
        path += "?" + quote(parts.query, safe=_QUERY_SAFE)
    return Address(
        parts.scheme, host, default if port is None else port, authority.encode("ascii"), path.encode("ascii")
    )


def _ascii_host(host: str) -> str:
    if host.isascii():
        return host
    try:
        return host.encode("idna").decode("ascii")
    except UnicodeError:
        raise UpstreamError("The upstream's host name can't be written in ASCII. Check how it is written.") from None
