"""ASGI on top of a line, for what is not answered with plain calls; and ASGI's lifespan.

Knows ASGI's messages; no sockets. Called by `http1` and by what serves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote

from tidegate.gateway.arrival import ARRIVAL, Message, Scope
from tidegate.gateway.http1_framing import Refused, error_answer
from tidegate.gateway.http1_line import AsgiApplication, Line

log = logging.getLogger("tidegate")


class Exchange:
    """One request, as an ASGI application sees it."""

    __slots__ = ("_asked", "_drained", "_more", "_whole", "line")

    def __init__(self, line: Line) -> None:
        self.line = line
        self._more = asyncio.Event()
        self._drained: asyncio.Event | None = None
        self._whole = False
        line.on_more = self._more.set
        line.on_gone = self._wake
        line.on_resume = self._resume

    async def run(self, app: AsgiApplication) -> None:
        """Calls the application; whatever it leaves undone is cut short."""
        try:
            await app(scope_of(self.line), self.receive, self.send)
        except Exception as error:
            fail(self.line, error)
        finally:
            if not self.line.over:
                fail(self.line)

    async def receive(self) -> Message:
        """ASGI: the body, then, once there is nobody to answer any more, `http.disconnect`."""
        line = self.line
        while not line.over:
            if not self._whole:
                piece, more = line.take()
                if piece or not more:
                    self._whole = not more
                    return {"type": "http.request", "body": piece, "more_body": more}
                line.want()
            self._more.clear()
            await self._more.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """ASGI. Returns once the client keeps up again."""
        line = self.line
        if message["type"] == "http.response.start":
            line.start(message["status"], list(message.get("headers", ())))
            return
        line.write(message.get("body", b""))
        if not message.get("more_body", False):
            line.end()
            self._wake()
        elif line.paused and not line.over:
            if self._drained is None:
                self._drained = asyncio.Event()
            self._drained.clear()
            await self._drained.wait()

    def _wake(self) -> None:
        self._more.set()
        self._resume()

    def _resume(self) -> None:
        if self._drained is not None:
            self._drained.set()


def fail(line: Line, error: Exception | None = None) -> None:
    """Ends a line that its application has left open: with an error if it has not begun, else cut short."""
    # The type alone: a message may quote what it failed on.
    what = "left a request without an answer" if error is None else f"failed: {type(error).__name__}"
    log.warning("%s the application %s", line.arrival.id, what)
    if line.begun or line.over:
        line.abort()
        return
    text = "Tidegate failed on this request, and could not relay it either."
    refused = Refused(500, text, reason="internal_error")
    headers, body = error_answer(line.arrival.headers, refused, line.arrival.id)
    line.start(500, headers)
    line.write(body)
    line.end()


def scope_of(line: Line) -> Scope:
    """ASGI's scope of a request."""
    arrival = line.arrival
    transport = line.transport
    server, client = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1" if line.eleven else "1.0",
        "method": arrival.method,
        "scheme": "http",
        "path": unquote(arrival.path),
        "raw_path": arrival.path.encode("latin-1"),
        "query_string": arrival.query,
        "root_path": "",
        "headers": arrival.headers,
        "server": tuple(server[:2]) if isinstance(server, tuple) else None,
        "client": tuple(client[:2]) if isinstance(client, tuple) else None,
        ARRIVAL: arrival,
    }


@asynccontextmanager
async def lifespan(app: AsgiApplication) -> AsyncIterator[None]:
    """Runs the application's startup, and its shutdown at the end. Raises what its startup raises."""
    told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    heard: asyncio.Queue[Message] = asyncio.Queue()
    scope: Scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}}

    async def run() -> None:
        try:
            await app(scope, told.get, heard.put)
        finally:
            heard.put_nowait({"type": "ended"})

    async def step(phase: str) -> None:
        told.put_nowait({"type": f"lifespan.{phase}"})
        answer = await heard.get()
        if answer["type"] == "ended":
            await task
        elif answer["type"] != f"lifespan.{phase}.complete":
            raise RuntimeError(f"the application failed at its {phase}")

    task = asyncio.create_task(run())
    await step("startup")
    try:
        yield
    finally:
        if not task.done():
            await step("shutdown")
        task.cancel()
