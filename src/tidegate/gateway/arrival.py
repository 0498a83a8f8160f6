"""The head of a request, as the own server has read it or as it comes over ASGI.

Knows ASGI's scope; nothing of what the request asks for. Called by the servers, the app and what answers for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from typing import Any, Final, TypeAlias

from tidegate.upstream.http import Headers

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]


ARRIVAL = "tidegate.arrival"
"""Key of a scope that holds the `Arrival`, where the server has made it."""


class ClientGone(Exception):
    """The client left before it had its answer."""


class Arrival:
    """One HTTP request: what is known before its body is read. Nothing of it changes."""

    __slots__ = ("_digits", "_headers", "_names", "alike", "began", "id", "length", "method", "path", "query")

    def __init__(
        self,
        method: str,
        path: str,
        query: bytes,
        headers: Headers,
        names: dict[bytes, bytes] | None = None,
        alike: object = None,
        digits: bytes | None = None,
    ) -> None:
        """`names` are the headers by name, where they have been told apart already; `digits` are the Content-Length
        that counts in place of theirs."""
        self.id = next_id()
        self.method = method
        self.path = path
        """As it stood in the request line, percent-encoded."""
        self.query = query
        self._headers = headers
        self._digits = digits
        self.began = time.time()
        """Seconds since the epoch."""
        self.alike = object() if alike is None else alike
        """The same object for requests that differ in nothing but the length of their body, as far as that was seen: a
        key for what was made of a head."""
        self._names = names = dict(headers) if names is None else names
        value = names.get(b"content-length") if digits is None else digits
        self.length = int(value) if value is not None and value.isdigit() else None
        """Bytes of the body where it is announced."""

    def again(self, digits: bytes) -> Arrival:
        """Another request with the same head but for its Content-Length, which this one has too."""
        return Arrival(self.method, self.path, self.query, self._headers, self._names, self.alike, digits)

    @property
    def headers(self) -> Headers:
        """Names in lower case, in order."""
        digits = self._digits
        if digits is None:
            return self._headers
        return [pair if pair[0] != b"content-length" else (b"content-length", digits) for pair in self._headers]

    def header(self, name: bytes) -> bytes | None:
        """The value of a header by its name in lower case; of one that came twice, the last."""
        if self._digits is not None and name == b"content-length":
            return self._digits
        return self._names.get(name)

    @property
    def repeats(self) -> bool:
        """Some name came more than once."""
        return len(self._names) != len(self._headers)

    @property
    def plain(self) -> Mapping[str, str]:
        """The headers as text; of a name that came twice, the last value."""
        return _Plain(self._names, self._digits)

    @property
    def upgrades(self) -> bool:
        """Asks for a WebSocket. Any other `Upgrade` (Java's `h2c`) is an offer, to be ignored (RFC 9110, 7.8)."""
        asked = self.header(b"upgrade")
        return asked is not None and b"websocket" in asked.lower()


class _Plain(Mapping[str, str]):
    """Headers as text, each made when it is asked for."""

    __slots__ = ("_digits", "_names")

    def __init__(self, names: dict[bytes, bytes], digits: bytes | None) -> None:
        self._names, self._digits = names, digits

    def __getitem__(self, name: str) -> str:
        if self._digits is not None and name == "content-length":
            return self._digits.decode("latin-1")
        return self._names[name.encode("latin-1", "replace")].decode("latin-1")

    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name in self._names)

    def __len__(self) -> int:
        return len(self._names)


def arrived(scope: Scope) -> Arrival:
    """The head of a request: the one its server has read, or that of any ASGI server."""
    known: Arrival | None = scope.get(ARRIVAL)
    if known is not None:
        return known
    raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
    headers = [(name, value) for name, value in scope["headers"]]
    return Arrival(scope["method"], raw_path.decode("latin-1"), scope["query_string"], headers)


class _Ids:
    """Names of requests: a word of chance for this process, and a count. They only have to differ."""

    __slots__ = ("_begun", "count", "word")

    word: str
    count: int
    _begun: str

    def __init__(self) -> None:
        self.renew()

    def next(self) -> str:
        """The next one."""
        count = self.count
        self.count = count + 1
        low = count & 0xFF
        if not low or not self._begun:
            self._begun = f"{self.word}{count >> 8 & 0xFFFFFF:06x}"
        return self._begun + _LOW[low]

    def renew(self) -> None:
        """Another word: a process that was copied must not name its requests as the copy does."""
        self.word = os.urandom(4).hex()
        self.count = int.from_bytes(os.urandom(4), "big")
        self._begun = ""


_LOW: Final = [f"{low:02x}" for low in range(256)]
_ids = _Ids()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ids.renew)


def next_id() -> str:
    """The name of the next request: 16 hex digits."""
    return _ids.next()
