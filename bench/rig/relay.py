"""The least that a relay in Python can do: bytes from one socket to another, neither read nor understood.

Run by the benches as a base to compare with: `python relay.py PORT UPSTREAM_PORT`.
"""

from __future__ import annotations

import asyncio
import sys


class Pipe(asyncio.Protocol):
    """One side of a relayed connection; what arrives is written to the other side."""

    def __init__(self, upstream_port: int | None) -> None:
        self.upstream_port = upstream_port
        self.transport: asyncio.Transport
        self.other: Pipe | None = None
        self.early: list[bytes] = []
        self.dialing: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self.upstream_port is not None:
            self.dialing = asyncio.get_running_loop().create_task(self.dial(self.upstream_port))

    async def dial(self, port: int) -> None:
        _, other = await asyncio.get_running_loop().create_connection(lambda: Pipe(None), "127.0.0.1", port)
        self.other, other.other = other, self
        other.transport.writelines(self.early)
        self.early.clear()

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self.early.append(data)
        else:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None:
            self.other.transport.close()


async def main(port: int, upstream_port: int) -> None:
    server = await asyncio.get_running_loop().create_server(
        lambda: Pipe(upstream_port), "127.0.0.1", port, backlog=2048
    )
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
