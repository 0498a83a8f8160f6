"""Knows the words for what can go wrong with an upstream: what happened, which host, what to check.

All of this room calls it. No headers, bodies or credentials get in.
"""

from __future__ import annotations

import socket
import ssl

from tidegate.engine.effects import UpstreamError


class ClosedEarly(UpstreamError):
    """The upstream closed the connection before any byte of its answer."""


def closed_early(peer: str) -> ClosedEarly:
    """See the class."""
    return ClosedEarly(f"{peer} closed the connection without an answer. Check whether it is running.")


def cut(peer: str, *, headed: bool) -> UpstreamError:
    """The connection ended within an answer, after its headers or before."""
    where = "in the middle of its answer" if headed else "within the headers of its answer"
    return UpstreamError(f"{peer} closed the connection {where}. Check whether it was restarted or overloaded.")


def broken(peer: str, fault: object) -> UpstreamError:
    """The answer is no good HTTP; `fault` completes "<peer> …"."""
    return UpstreamError(f"{peer} {fault}. Check that the URL is that of the API.")


def timed_out(peer: str, failure: str, seconds: float) -> UpstreamError:
    """Nothing came, or nothing was taken, for too long; `failure` completes "<peer> …"."""
    return UpstreamError(
        f"{peer} {failure} within {seconds:g} seconds. Check whether it is overloaded, or raise the timeout.",
        status=504,
    )


BEGAN_NOT = "did not begin its answer"
SENT_NOTHING = "sent nothing more of its answer"
TOOK_NOTHING = "took nothing more of the request"


def too_long(limit: int) -> UpstreamError:
    """An answer is over `limit` bytes."""
    return UpstreamError(f"The upstream's answer is longer than {limit} bytes.")


def abandoned(peer: str) -> UpstreamError:
    """A response was closed and is read nevertheless."""
    return UpstreamError(f"The request to {peer} was abandoned.")


def shutting_down() -> UpstreamError:
    """The pool is closed."""
    return UpstreamError("The gateway is shutting down and sends no more requests.")


def body_length(*, longer: bool) -> UpstreamError:
    """A streamed body does not keep to the length that was announced for it."""
    return UpstreamError(f"The request's body {'is longer than' if longer else 'ended before'} its Content-Length.")


def connect_timed_out(peer: str, seconds: float) -> UpstreamError:
    """No connection in time."""
    return UpstreamError(
        f"Could not connect to {peer} within {seconds:g} seconds. "
        "Check the address, the network and whether a proxy or firewall is in the way.",
        status=504,
    )


def all_in_use(name: str, connections: int, seconds: float) -> UpstreamError:
    """No connection came free in time."""
    return UpstreamError(
        f"All {connections} connections to {name} were in use for {seconds:g} seconds. "
        "Raise the limit of connections per host, or send fewer requests at once.",
        status=504,
    )


def tunnel_refused(proxy: str, host: str, status: int) -> UpstreamError:
    """A proxy did not answer CONNECT with 2xx."""
    hint = "the proxy's user name and password" if status == 407 else "the proxy's rules, or NO_PROXY"
    return UpstreamError(f"The proxy {proxy} refused the way to {host} (status {status}). Check {hint}.")


def connect_failed(peer: str, error: BaseException) -> UpstreamError:
    """No connection, and why."""
    return UpstreamError(_why(peer, error))


def _why(peer: str, error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"The TLS certificate of {peer} was not accepted: {error.verify_message}. "
            "If it comes from a private authority, name that one in ca_file or SSL_CERT_FILE."
        )
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or "handshake failed").replace("_", " ").lower()
        return f"TLS with {peer} failed ({reason}). Check whether that port speaks https."
    if isinstance(error, socket.gaierror | UnicodeError):
        return f"The host name of {peer} could not be found. Check the upstream's URL and this machine's DNS."
    if isinstance(error, ConnectionRefusedError):
        return f"{peer} refused the connection. Check that the upstream is running and that its URL is right."
    if isinstance(error, ConnectionError):
        return f"{peer} closed the connection before it was ready. Check whether the port and scheme are right."
    detail = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"Could not connect to {peer}: {detail}. Check the address and the network."
