"""Knows how a connection comes to be (address, TLS, a proxy's tunnel) and what to say where it does not.

`pool.py` calls it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import cached_property

from tidegate.engine.effects import UpstreamError
from tidegate.upstream.connection import Connection
from tidegate.upstream.proxy import Proxy
from tidegate.upstream.url import Address

_KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 30), ("TCP_KEEPCNT", 4))
"""A model may think for minutes without a byte, and networks forget connections that are silent."""


class Connector:
    """Opens connections. Raises `ValueError` at once where `ca_file` can't be used."""

    def __init__(self, ca_file: str | None) -> None:
        self._ca_file = ca_file
        if ca_file is not None:
            _ = self.tls

    @cached_property
    def tls(self) -> ssl.SSLContext:
        """The system's authorities (or SSL_CERT_FILE's), `ca_file` added. Made on first use: it takes tens of
        ms."""
        return tls_context(self._ca_file)

    async def open(
        self, address: Address, proxy: Proxy | None, create: Callable[[str], Connection], seconds: float
    ) -> Connection:
        """A connection ready for a request to `address`, within `seconds`. Raises `UpstreamError`."""
        where = address.name if proxy is None else f"{address.name} (through the proxy {proxy.name})"
        try:
            async with asyncio.timeout(seconds):
                return await self._open(address, proxy, create, where)
        except TimeoutError:
            raise UpstreamError(
                f"Could not connect to {where} within {seconds:g} seconds. "
                "Check the address, the network and whether a proxy or firewall is in the way.",
                status=504,
            ) from None
        except (OSError, ValueError) as error:
            raise UpstreamError(connect_failure(where, error)) from error

    async def _open(
        self, address: Address, proxy: Proxy | None, create: Callable[[str], Connection], where: str
    ) -> Connection:
        loop = asyncio.get_running_loop()
        tls = self.tls if address.scheme == "https" else None
        host, port = (address.host, address.port) if proxy is None else (proxy.host, proxy.port)
        direct_tls = tls if proxy is None else None
        transport, connection = await loop.create_connection(
            lambda: create(where),
            host,
            port,
            ssl=direct_tls,
            server_hostname=address.host if direct_tls else None,
        )
        tune(transport.get_extra_info("socket"))
        if tls is not None and proxy is not None:
            await _tunnel(connection, address, proxy, where)
            started = await loop.start_tls(transport, connection, tls, server_hostname=address.host)
            if started is None:
                raise ConnectionResetError("closed while TLS began")
            connection.replace_transport(started)
        return connection


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Verifies certificates and host names; offers HTTP/1.1 only. Raises `ValueError` where `ca_file` can't
    be used."""
    context = ssl.create_default_context()
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:  # ssl.SSLError is one
            raise ValueError(f"ca_file {ca_file} can't be used: {error.strerror or error}") from error
    context.set_alpn_protocols(["http/1.1"])
    return context


def tune(sock: socket.socket | None) -> None:
    """No delay for small writes; probes on silent connections."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def tunnel_request(address: Address, proxy: Proxy) -> bytes:
    """The CONNECT that asks a proxy for a way to `address` (RFC 9110 section 9.3.6)."""
    name = address.name.encode("ascii")
    authorization = b"Proxy-Authorization: %b\r\n" % proxy.authorization if proxy.authorization else b""
    return b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (name, name, authorization)


def tunnel_refusal(proxy: Proxy, address: Address, status: int) -> UpstreamError:
    """What to say of a CONNECT that was not answered with 2xx."""
    hint = "the proxy's user name and password" if status == 407 else "the proxy's rules, or NO_PROXY"
    return UpstreamError(f"The proxy {proxy.name} refused the way to {address.name} (status {status}). Check {hint}.")


async def _tunnel(connection: Connection, address: Address, proxy: Proxy, where: str) -> None:
    # The connection's own timeout gives way to that of the whole: a day, here.
    response = connection.begin("CONNECT", 86400)
    connection.write(tunnel_request(address, proxy))
    await response.head(86400)
    if not 200 <= response.status < 300:
        raise tunnel_refusal(proxy, address, response.status)
    if connection.closed:
        raise ConnectionResetError(f"{where} closed the tunnel")


def connect_failure(where: str, error: BaseException) -> str:
    """A message for a person: what failed, and what to check."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"The TLS certificate of {where} was not accepted: {error.verify_message}. "
            "If it comes from a private authority, name that one in ca_file or SSL_CERT_FILE."
        )
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or "handshake failed").replace("_", " ").lower()
        return f"TLS with {where} failed ({reason}). Check whether that port speaks https."
    if isinstance(error, socket.gaierror | UnicodeError):
        return f"The host name of {where} could not be found. Check the upstream's URL and this machine's DNS."
    if isinstance(error, ConnectionRefusedError):
        return f"{where} refused the connection. Check that the upstream is running and that its URL is right."
    if isinstance(error, ConnectionError):
        return f"{where} closed the connection before it was ready. Check whether the port and scheme are right."
    detail = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"Could not connect to {where}: {detail}. Check the address and the network."
