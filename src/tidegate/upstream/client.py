"""What the gateway asks of an upstream client: to send a request, and to give its answer piece by piece.

Knows no implementation. `pool.py` is the gateway's own, `library.py` one on aiohttp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tidegate.upstream.http import Headers, Request, Timeouts
from tidegate.upstream.pool import Counters


class Answer(Protocol):
    """An answer whose head is there. One task at a time reads its body, undecoded, and closes it in the end."""

    @property
    def status(self) -> int:
        """HTTP status, 200 and above."""
        ...

    @property
    def headers(self) -> Headers:
        """As the upstream sent them, order and case kept."""
        ...

    async def read(self) -> bytes:
        """The next piece of the body: all that has come since the last one; `b""` at the end.

        Raises `UpstreamError` where the body was cut before its end or nothing came for `Timeouts.read` seconds; what
        came before is delivered first.
        """
        ...

    async def read_all(self, limit: int) -> bytes:
        """The rest of the body. Raises `UpstreamError` where it is cut, or longer than `limit` bytes."""
        ...

    async def close(self) -> None:
        """Done with it: an unfinished body closes the connection, which cancels the upstream."""
        ...

    def abandon(self) -> None:
        """`close` for places that can't await."""
        ...


class ListenedAnswer(Answer, Protocol):
    """An answer on its way, whose listener is called when there is more of it."""

    listener: Callable[[bool], None] | None
    """Called with True when there is news (a head, a piece, an end, a cut), with False when `expect`'s time is up."""

    def take(self) -> bytes | None:
        """`read` for listeners: None where there is nothing yet."""
        ...

    def expect(self, seconds: float) -> None:
        """Has the listener called when nothing has come for so long."""
        ...

    def late(self, seconds: float) -> None:
        """The upstream has taken too long: the answer ends with an error."""
        ...

    def pause(self) -> None:
        """The reader is slow: the upstream is read no further until `resume`."""
        ...

    def resume(self) -> None:
        """The reader has caught up."""
        ...


class Client(Protocol):
    """Kept-alive connections to upstreams, for one event loop."""

    @property
    def timeouts(self) -> Timeouts:
        """How long a request waits where it does not say."""
        ...

    @property
    def counters(self) -> Counters:
        """Connections opened, used again, and open now."""
        ...

    async def send(self, request: Request, timeouts: Timeouts | None = None, *, again: bool = False) -> Answer:
        """Sends a request and returns the answer as soon as its head is there. Any status is an answer; no redirect is
        followed, no header added but those of the hop.

        A request goes out once more only where `tidegate.upstream.http.may_repeat` allows it; `again` says that it has
        gone out by `send_now` before, so that this is that once more. Raises `UpstreamError`
        (status 504 for a timeout). Cancellation, at any point, closes the connection.
        """
        ...

    def send_now(
        self, request: Request, listener: Callable[[bool], None], timeouts: Timeouts | None = None
    ) -> ListenedAnswer | None:
        """Sends a request, whose body is bytes or None, without waiting; None where that can't be, and `send` is to be
        used. Raises `UpstreamError` for a request that can't be written."""
        ...

    def beside(self, *, max_per_host: int) -> Client:
        """A client with connections of its own that reaches hosts in the same way."""
        ...

    async def close(self) -> None:
        """Closes every connection; answers in progress end with `UpstreamError`, and nothing is sent any more."""
        ...
