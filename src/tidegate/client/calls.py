"""A request of an exchange as an HTTP library's own: another body, a compaction's call; and its faults as Tidegate's.

Knows shapes that httpx2 and httpx share; sends nothing. Called by the transports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn, Protocol

from tidegate.client.crossing import Crossing
from tidegate.compactors.strategy import Call, Reply
from tidegate.engine.effects import UpstreamError
from tidegate.gateway.calls import REPLY_LIMIT, with_added
from tidegate.gateway.messages import unbound
from tidegate.upstream.decode import BodyTooLarge, BodyUnreadable, decode_body
from tidegate.upstream.http import Headers
from tidegate.upstream.url import join

if TYPE_CHECKING:
    import httpx2

TOO_LONG = f"the reply is longer than {REPLY_LIMIT} bytes"


class Tells(Protocol):
    """A request on its way, to whoever hands its answer on."""

    @property
    def crossing(self) -> Crossing:
        """What is to become of it."""
        ...

    def tell(self, error: UpstreamError) -> NoReturn:
        """Raises what the caller is told."""
        ...


@dataclass(frozen=True, slots=True)
class Asking:
    """One request of an SDK, and the requests that are made in its place."""

    library: ModuleType
    """httpx2, or httpx, which has the same classes."""
    original: httpx2.Request
    crossing: Crossing

    def sending(self, body: bytes | None, add_headers: Mapping[str, str]) -> httpx2.Request:
        """The request, with another body where one is given."""
        headers = self.crossing.headers if body is None else with_added(unbound(self.crossing.headers), add_headers)
        content = self.crossing.body if body is None else body
        return self._request(str(self.original.url), headers, content, dict(self.original.extensions))

    def calling(self, call: Call) -> httpx2.Request:
        """A compaction's call, with the caller's credential."""
        place = self.crossing.place
        kept = [
            (name, value)
            for name, value in unbound(self.crossing.headers)
            if name.decode("latin-1") not in call.drop_headers
        ]
        headers = with_added(
            kept,
            {"content-type": "application/json", "accept": "text/event-stream, application/json", **call.add_headers},
        )
        extensions = dict(self.original.extensions)
        extensions["timeout"] = {**extensions.get("timeout", {}), "read": call.timeout}
        extensions.pop("target", None)  # the path of the SDK's own request
        return self._request(join(place.root, call.path, place.query), headers, call.body, extensions)

    def fault(self, error: Exception) -> UpstreamError:
        """What an error of the library's means to the exchange; it is told to the SDK as it was."""
        late = isinstance(error, self.library.TimeoutException)
        return UpstreamError(f"{type(error).__name__}: {error}", status=504 if late else 502)

    def tell(self, error: UpstreamError) -> NoReturn:
        """Raises what the SDK is told: the library's own error as it was, where there was one."""
        cause = error.__cause__
        if isinstance(cause, self.library.TransportError) and isinstance(cause, Exception):
            raise cause from cause.__cause__
        raise self.library.RemoteProtocolError(str(error), request=self.original) from error

    def _request(self, url: str, headers: Headers, body: bytes, extensions: dict[str, object]) -> httpx2.Request:
        # Where a client is told to name another host than it connects to, a server may know it by that name alone.
        host = [(name, value) for name, value in self.original.headers.raw if name.lower() == b"host"]
        request: httpx2.Request = self.library.Request(
            self.original.method, url, headers=[*host, *headers], content=body, extensions=extensions
        )
        return request


def reply(status: int, headers: Headers, body: bytes) -> Reply:
    """A whole answer to a call."""
    plain = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}
    try:
        return Reply(status, decode_body(body, plain.get("content-encoding", ""), REPLY_LIMIT), plain)
    except (BodyUnreadable, BodyTooLarge) as error:
        return Reply(0, error=str(error))
