"""What is known of an answer while it is undecided who gets it: its held pieces, its watch, the head they amount to.

Knows no I/O, so that both drivers share it: they read pieces and hand them in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidegate.engine.effects import Finish, Head, UpstreamError
from tidegate.upstream.decode import BodyTooLarge, BodyUnreadable, decode_body
from tidegate.wire.conversation import DialectName
from tidegate.wire.watch import Watch

_UNREAD: Mapping[str, str] = {}
"""Of an answer that is no refusal nobody asks for the headers."""

REFUSAL_LIMIT = 1 << 20
"""Bytes of a refusal that are read to judge it."""

JSON_HOLD = 1 << 18
"""Bytes of a plain answer that are held to see whether it is an error in disguise."""


class Held:
    """One answer. A driver holds pieces (`hold`) up to `limit` bytes or until `enough()`, and asks for the `judged()`
    head; then it passes everything on, showing each further piece to the watch (`show`)."""

    def __init__(
        self, number: int, status: int, headers: Sequence[tuple[bytes, bytes]], dialect: DialectName, hold_bytes: int
    ) -> None:
        self.number, self.status, self._headers = number, status, headers
        self.encoding = content_type = ""
        for name, value in headers:
            size = len(name)
            if size == 12 and name.lower() == b"content-type":
                content_type = value.decode("latin-1")
            elif size == 16 and name.lower() == b"content-encoding":
                self.encoding = value.decode("latin-1").strip().lower()
        self.streamed = content_type[:17].lower() == "text/event-stream"
        """Whether it is a stream of events."""
        self.watch = None if self.encoding not in ("", "identity") else Watch(dialect, content_type)
        self.limit = REFUSAL_LIMIT if status >= 400 else 0
        """Bytes to hold at most; 0 where nothing is to be learned from them."""
        if status == 200 and self.watch is not None:
            self.limit = hold_bytes if self.streamed else JSON_HOLD
        self.held: list[bytes] = []
        self.size = 0
        self.at_end = False
        self.broken: UpstreamError | None = None
        """A refusal whose body was cut: what came of it is delivered, and cut there."""
        self.opened = False
        """Some of it has been given away."""

    @property
    def plain(self) -> dict[str, str]:
        """The answer's headers as text, names in lower case; of a name that came twice, the last value."""
        return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in self._headers}

    def enough(self) -> bool:
        """Whether what is held tells an answer from a refusal."""
        if self.at_end or self.broken is not None or self.size >= self.limit:
            return True
        watch = self.watch
        if self.status >= 400 or not self.streamed:
            return False
        return watch is None or watch.begun or bool(watch.error) or watch.ended

    def hold(self, piece: bytes) -> None:
        """Keeps a piece back; an empty one is the end."""
        if not piece:
            self.at_end = True
            return
        self.size += len(piece)
        self.held.append(piece)
        self.show(piece)

    def cut(self, error: UpstreamError) -> None:
        """The body broke off. A refusal stays one: its status and headers say what matters. Raises the error of any
        other answer, which has shown the client nothing yet."""
        if self.status < 400:
            raise error
        self.broken = error

    def judged(self) -> Head:
        """The head that the held pieces amount to."""
        if self.status >= 400:
            return Head(self.number, self.status, self.plain, self._refusal())
        watch = self.watch
        if self.status == 200 and watch is not None:
            if self.streamed and watch.error_before_content:
                return Head(self.number, self.status, self.plain, watch.error, in_stream=True)
            if not self.streamed and self.at_end and self._ended() and watch.error:
                return Head(self.number, self.status, self.plain, b"".join(self.held))
        return Head(self.number, self.status, _UNREAD)

    def show(self, piece: bytes) -> None:
        """Shows a piece to the watch. A watch that fails is done without: what it watches goes on."""
        if self.watch is not None:
            try:
                self.watch.feed(piece)
            except Exception:
                self.watch = None

    def finish(self, *, complete: bool) -> Finish:
        """How it ended, as far as the watch could see."""
        if not self._ended() or self.watch is None:
            return Finish(complete=complete)
        ended = self.watch.ended or not self.streamed
        whole = complete and ended and not self.watch.error
        return Finish(self.watch.usage, self.watch.finish, whole, self.watch.compacts)

    def _refusal(self) -> bytes:
        """The body of a refusal as it can be read: some servers compress errors, whatever was asked for."""
        body = b"".join(self.held)[:REFUSAL_LIMIT]
        try:
            return decode_body(body, self.encoding, REFUSAL_LIMIT) if self.encoding else body
        except (BodyUnreadable, BodyTooLarge):
            return body

    def _ended(self) -> bool:
        """Ends the watch; False where there is none."""
        if self.watch is not None:
            try:
                self.watch.close()
            except Exception:
                self.watch = None
        return self.watch is not None


def to_fall_back_on(heads: Sequence[Head], originals: Sequence[int]) -> int | None:
    """Which answer to give where Tidegate itself has failed: the newest that is no refusal, else what the provider said
    to the client's own bytes; None where nothing has been heard yet."""
    good = [head.number for head in heads if head.refusal is None]
    heard = {head.number for head in heads}
    told = [number for number in originals if number in heard]
    return good[-1] if good else told[0] if told else None
