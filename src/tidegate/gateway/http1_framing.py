"""What the head of an HTTP/1.1 request says, where it must be refused, and how the head of an answer is written.

Knows RFC 9110 and RFC 9112 beyond what the parser checks; no sockets. Called by the other
`http1` modules.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Final

from tidegate.gateway.arrival import Arrival
from tidegate.upstream.http import Headers
from tidegate.wire import ANSWERS
from tidegate.wire.conversation import DialectName

HEAD_LIMIT: Final = 64 * 1024
"""Bytes of a request's head; trailers, and the sizes of chunks between two pieces of a body, count alike."""

TARGET_LIMIT: Final = 16 * 1024
"""Bytes of a request's target."""

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"

_NOT_HTTP: Final = frozenset(
    {
        "ANNOUNCE", "DESCRIBE", "FLUSH", "GET_PARAMETER", "PAUSE", "PLAY", "PRI", "RECORD", "REDIRECT", "SETUP",
        "SET_PARAMETER", "SOURCE", "TEARDOWN",
    }
)  # fmt: skip
"""Methods of RTSP and ICE, which the parser knows too."""
_HOST: Final = re.compile(rb"(?:\[[0-9A-Za-z:.%]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]*)(?::[0-9]*)?")
_ABSOLUTE: Final = re.compile(rb"[hH][tT][tT][pP][sS]?://([^/?#]+)(.*)", re.DOTALL)
_OWN_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding", b"connection", b"keep-alive"})
_STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_BREAKS: Final = b"\r\n\0"
_NAMES: Final[dict[bytes, bytes]] = {}
"""Names of headers, as they were written, in lower case."""
_NAMES_KEPT: Final = 1024
_METHODS: Final = {
    name.encode(): name for name in ("POST", "GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT")
}


class Refused(Exception):
    """A request that the server itself must answer, with this status and reason."""

    def __init__(self, status: int, text: str, *, reason: str) -> None:
        super().__init__(text)
        self.status, self.reason = status, reason


def bad(status: int, text: str) -> Refused:
    """The refusal of a request that is no valid HTTP, or asks of HTTP what is not served."""
    return Refused(status, text, reason="bad_request")


def lowered(fields: Headers) -> Headers:
    """Headers with their names in lower case, and without white space after their values."""
    try:
        return [(_NAMES[name], value.rstrip(b" \t")) for name, value in fields]
    except KeyError:
        return [(_lower(name), value.rstrip(b" \t")) for name, value in fields]


def _lower(name: bytes) -> bytes:
    known = _NAMES.get(name)
    if known is None:
        known = name.lower()
        if len(_NAMES) < _NAMES_KEPT:
            _NAMES[name] = known
    return known


def read_head(method: bytes, target: bytes, version: str, headers: Headers) -> Arrival:
    """The request that a head speaks of. Raises `Refused`.

    The parser has checked the grammar of the request line and of each header, and that there is one length at most;
    what it lets pass and may not be acted on is refused here.
    """
    if version not in ("1.1", "1.0"):
        raise bad(505, "Only HTTP/1.1 and HTTP/1.0 are spoken here.")
    name = _METHODS.get(method) or method.decode("latin-1")
    if name in _NOT_HTTP:
        raise bad(501, "There is no such method in HTTP.")
    if name == "CONNECT":
        raise bad(405, "This is no proxy: CONNECT is not served.")
    if target[:1] != b"/":
        target = _origin_form(name, target, headers)
    if target.find(b"#") >= 0:
        raise bad(400, "The request's target holds a fragment.")
    path, _, query = target.partition(b"?")
    arrival = Arrival(name, path.decode("latin-1"), query, headers)
    _check_host(arrival, version)
    coding = arrival.header(b"transfer-encoding")
    if coding is not None:
        if version == "1.0" or arrival.header(b"content-length") is not None:
            raise bad(400, "Transfer-Encoding does not belong in this request.")
        if coding.lower() != b"chunked" or sum(name == b"transfer-encoding" for name, _ in headers) > 1:
            raise bad(501 if coding else 400, "The only transfer coding understood is chunked.")
    return arrival


def _origin_form(method: str, target: bytes, headers: Headers) -> bytes:
    """Path and query of a target in another form; the authority it names takes Host's place (RFC 9112 section
    3.2.2)."""
    if target == b"*" and method == "OPTIONS":
        return target
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None:
        raise bad(400, "The request's target is neither a path nor an http URL.")
    authority, rest = absolute.groups()
    if b"@" in authority:
        raise bad(400, "The request's target holds a user.")
    for place, (name, _) in enumerate(headers):
        if name == b"host":
            headers[place] = (name, authority)
    return rest if rest[:1] == b"/" else b"/" + rest


def _check_host(arrival: Arrival, version: str) -> None:
    host = arrival.header(b"host")
    if host is None:
        if version == "1.1":
            raise bad(400, "There is no Host header.")
    elif _HOST.fullmatch(host) is None:
        raise bad(400, "The Host header is no host.")
    elif arrival.repeats and sum(1 for name, _ in arrival.headers if name == b"host") > 1:
        raise bad(400, "There is more than one Host header.")


def expects(arrival: Arrival, version: str) -> bool:
    """Whether the client waits to be told to go on (RFC 9110 section 10.1.1). Raises `Refused` for other wishes."""
    expected = arrival.header(b"expect")
    if expected is None or version == "1.0":
        return False
    if expected.lower() != b"100-continue":
        raise bad(417, "The only expectation understood is 100-continue.")
    return True


def write_head(
    status: int, headers: Headers, *, eleven: bool, bare: bool, keep: bool
) -> tuple[bytes, int | None, bool]:
    """(the head of an answer, the length of its body, whether the connection can be kept).

    A Content-Length in `headers` is kept; else the body is chunked, or ends with the connection for a client of
    HTTP/1.0 (not `eleven`), unless there is none (`bare`). Raises `ValueError` for a length that can't be right, and
    where a line break or a null byte hides in a header: it would begin another answer.
    """
    parts = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
    own_framing = _OWN_FRAMING
    lines = 2
    length: int | None = None
    for name, value in headers:
        if name not in own_framing:
            lines += 1
            parts.append(name)
            parts.append(b": ")
            parts.append(value)
            parts.append(b"\r\n")
        elif name == b"content-length":
            if not value.isdigit() or length not in (None, int(value)):
                raise ValueError("an answer's Content-Length can't be right")
            length = int(value)
    if length is not None and status != 204:
        lines += 1
        parts.append(b"content-length: %d\r\n" % length)
    elif not bare:
        if eleven:
            lines += 1
            parts.append(b"transfer-encoding: chunked\r\n")
        else:
            keep = False
    if not keep:
        lines += 1
        parts.append(b"connection: close\r\n")
    elif not eleven:
        lines += 1
        parts.append(b"connection: keep-alive\r\n")
    parts.append(b"\r\n")
    head = b"".join(parts)
    if len(head) - len(head.translate(None, _BREAKS)) != 2 * lines:
        raise ValueError("an answer's header holds a line break or a null byte")
    return head, length, keep


def error_answer(asked: Headers, refused: Refused, request_id: str) -> tuple[Headers, bytes]:
    """(headers, body) of an error of the server's own, in the shape the client expects."""
    names = {name for name, _ in asked}
    dialect: DialectName = "messages" if b"anthropic-version" in names or b"x-api-key" in names else "chat"
    body = ANSWERS[dialect].error_body(refused.status, str(refused), code=refused.reason, request_id=request_id)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-tidegate-request-id", request_id.encode()),
        (b"x-tidegate-reason", refused.reason.encode()),
    ]
    return headers, body
