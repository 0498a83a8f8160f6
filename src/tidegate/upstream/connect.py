"""Knows how a connection comes to be: address, TLS, a proxy's tunnel.

`pool.py` calls `open`; `sync.py` shares the pieces.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import cached_property

from tidegate.upstream import faults
from tidegate.upstream.connection import Connection
from tidegate.upstream.proxy import Proxy
from tidegate.upstream.url import Address

_KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 30), ("TCP_KEEPCNT", 4))
"""A model may think for minutes without a byte, and networks forget connections that are silent."""

_WITHIN_THE_WHOLE = 86400.0  # seconds: the tunnel's own timeout gives way to that of the whole


class Connector:
    """Opens connections. Raises `ValueError` at once where `ca_file` can't be used."""

    def __init__(self, ca_file: str | None) -> None:
        self._ca_file = ca_file
        if ca_file is not None:
            _ = self.tls

    @cached_property
    def tls(self) -> ssl.SSLContext:
        """The system's authorities (or SSL_CERT_FILE's), `ca_file` added. Made on first use: it takes tens of ms."""
        return tls_context(self._ca_file)

    async def open(
        self, address: Address, proxy: Proxy | None, create: Callable[[str], Connection], seconds: float
    ) -> Connection:
        """A connection ready for a request to `address`, within `seconds`. Raises `UpstreamError`."""
        peer = peer_name(address, proxy)
        try:
            async with asyncio.timeout(seconds):
                return await self._open(address, proxy, lambda: create(peer))
        except TimeoutError:
            raise faults.connect_timed_out(peer, seconds) from None
        except (OSError, ValueError) as error:
            raise faults.connect_failed(peer, error) from error

    async def _open(self, address: Address, proxy: Proxy | None, create: Callable[[], Connection]) -> Connection:
        loop = asyncio.get_running_loop()
        tls = self.tls if address.scheme == "https" else None
        host, port = (address.host, address.port) if proxy is None else (proxy.host, proxy.port)
        direct_tls = tls if proxy is None else None
        transport, connection = await loop.create_connection(
            create, host, port, ssl=direct_tls, server_hostname=address.host if direct_tls else None
        )
        tune(transport.get_extra_info("socket"))
        if tls is not None and proxy is not None:
            await _tunnel(connection, address, proxy)
            started = await loop.start_tls(transport, connection, tls, server_hostname=address.host)
            if started is None:
                raise ConnectionResetError("closed while TLS began")
            connection.replace_transport(started)
        return connection


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Verifies certificates and host names; offers HTTP/1.1 only. Raises `ValueError` where `ca_file` can't be used."""
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


def peer_name(address: Address, proxy: Proxy | None) -> str:
    """Who is talked to, for messages."""
    return address.name if proxy is None else f"{address.name} (through the proxy {proxy.name})"


def tunnel_request(address: Address, proxy: Proxy) -> bytes:
    """The CONNECT that asks a proxy for a way to `address` (RFC 9110 section 9.3.6)."""
    name = address.name.encode("ascii")
    authorization = b"Proxy-Authorization: %b\r\n" % proxy.authorization if proxy.authorization else b""
    return b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (name, name, authorization)


async def _tunnel(connection: Connection, address: Address, proxy: Proxy) -> None:
    response = connection.begin("CONNECT", _WITHIN_THE_WHOLE)
    connection.write(tunnel_request(address, proxy))
    await response.head(_WITHIN_THE_WHOLE)
    if not 200 <= response.status < 300:
        raise faults.tunnel_refused(proxy.name, address.name, response.status)
    if connection.closed:
        raise ConnectionResetError("the proxy closed the tunnel")
