"""Asks compactors of the user's own: a process over HTTP, or an object of this one. They are shown no credential.

Knows how each kind is called; nothing of what it is asked for. Called by whoever makes a compaction's calls.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import queue
import threading
import time
import urllib.error
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from tidegate.compactors.strategy import Call, Reply
from tidegate.wire.jsontext import dumps, loads

log = logging.getLogger("tidegate")

GROUP: Final = "tidegate.compactors"
"""Entry point group."""

REPLY_LIMIT: Final = 16 << 20
"""Bytes of a compactor's answer."""

WARN_SECONDS: Final = 60.0
"""How often one compactor's failures are told."""


class NoCompactor(ValueError):
    """A compactor can't be had as it is named; the text says what is wrong."""


class Answers(Protocol):
    """One compactor, whatever it is."""

    def answer(self, path: str, body: bytes, timeout: float) -> bytes:
        """Blocks until it has answered. Raises whatever it likes."""
        ...


@dataclass(frozen=True, slots=True)
class Sidecar:
    """A process that answers over HTTP."""

    url: str

    def answer(self, path: str, body: bytes, timeout: float) -> bytes:
        """Posts to it. Raises `OSError` for no answer, and for any but a 200."""
        import urllib.request  # not before it is needed: it takes a MB

        class NoRedirect(urllib.request.HTTPRedirectHandler):
            """A redirect is no answer: what is posted goes where the settings say, and nowhere else."""

            def redirect_request(self, *args: Any, **kwargs: Any) -> None:
                """None."""
                return

        request = urllib.request.Request(  # noqa: S310 - `found` has looked at the scheme
            self.url.rstrip("/") + path, data=body, headers={"content-type": "application/json"}, method="POST"
        )
        ends = time.monotonic() + timeout
        # A neighbour on this machine or in this network: no proxy stands between.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), NoRedirect())
        with opener.open(request, timeout=timeout) as response:
            read = bytearray()
            while piece := response.read1(65_536):
                read += piece
                if time.monotonic() > ends:
                    raise TimeoutError
                if len(read) > REPLY_LIMIT:
                    raise OSError("too long")
            declared = response.headers.get("content-length")
            if declared is not None and declared.isdigit() and int(declared) != len(read):
                raise OSError("cut")
        return bytes(read)


@dataclass(frozen=True, slots=True)
class Here:
    """An object of this process: `wants(view)` (or `should_compact`) and `compact(view)`, either of them async or not.
    The first may be missing; the second gives a text, or None where it won't. In place of `compact`, `plan(view)` may
    give the one call to the model that is to be made, and `finish(reply)` the text that is made of its answer."""

    made: object

    def answer(self, path: str, body: bytes, timeout: float) -> bytes:
        """Calls it, in a thread of its own. Raises what it raises."""
        made: Any = self.made
        shown: Any = loads(body)
        if path == "/finish":
            return dumps({"summary": _result(made.finish({**shown["reply"], "keep": shown["keep"]}))})
        view = {**shown, "recent": shown["items"][shown["since"] :]}
        if path == "/wants":
            asks = getattr(made, "should_compact", None) or getattr(made, "wants", None)
            wants = True if asks is None else bool(_result(asks(view)))
            return dumps({"wants": wants, "plans": not _short(made)})
        if path == "/plan":
            return dumps({"call": _result(made.plan(view))})
        return dumps({"summary": _result(made.compact(view))})


def _short(made: object) -> bool:
    """Whether it writes the text itself."""
    return callable(getattr(made, "compact", None))


def _result(value: Any) -> Any:
    """What a function gave, or what its coroutine comes to."""
    return asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value


async def _awaited(value: Any) -> Any:
    return await value


def found(use: str) -> Answers:
    """The compactor that `use` names: a URL, `module:Class` (or `module:object`, or a module), or an entry point.

    Raises `NoCompactor`.
    """
    if use.startswith(("http://", "https://")):
        if not urlsplit(use).hostname:
            raise NoCompactor(f"{use} is no URL with a host")
        return Sidecar(use)
    named = next(iter(entry_points(group=GROUP, name=use)), None)
    try:
        made: object = named.load() if named is not None else _imported(use)
        if inspect.isclass(made):
            made = made()
    except (Exception, SystemExit) as error:  # a script without a guard ends itself when it is imported
        raise NoCompactor(f"{use} can't be loaded ({type(error).__name__}: {error})") from error
    if not _short(made) and not all(callable(getattr(made, name, None)) for name in ("plan", "finish")):
        raise NoCompactor(f"{use} has no function compact(view), and not both plan(view) and finish(reply)")
    return Here(made)


def _imported(use: str) -> object:
    module, _, name = use.partition(":")
    value: object = import_module(module)
    for part in name.split(".") if name else ():
        value = getattr(value, part)
    return value


@dataclass(slots=True)
class Compactors:
    """The user's compactors by name. Used from any thread."""

    known: Mapping[str, Answers] = field(default_factory=dict)
    _told: dict[str, float] = field(default_factory=dict)

    def ask(self, call: Call) -> Reply:
        """One call, blocking, within its time. Never raises."""
        done: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self._begin(call, done.put)
        try:
            return done.get(timeout=call.timeout)
        except queue.Empty:
            return self._late(call)

    async def ask_async(self, call: Call) -> Reply:
        """The same without blocking a loop, or a thread that the loop needs for something else."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Reply] = loop.create_future()

        def land(reply: Reply) -> None:
            if not done.done():
                done.set_result(reply)

        def told(reply: Reply) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(land, reply)

        self._begin(call, told)
        try:
            return await asyncio.wait_for(done, call.timeout)
        except TimeoutError:
            return self._late(call)

    def _begin(self, call: Call, told: Callable[[Reply], None]) -> None:
        """Has it asked in a thread of its own. Nothing waits for one that hangs: it ends with the process."""
        answers = self.known.get(call.via)
        if answers is None:
            told(Reply(0, error="there is no such compactor"))
            return
        name = f"tidegate-compactor-{call.via}"
        threading.Thread(target=lambda: told(self._answered(answers, call)), name=name, daemon=True).start()

    def _late(self, call: Call) -> Reply:
        self._warn(call, "it took too long")
        return Reply(0, error=f"no answer within {call.timeout:g} seconds")

    def _answered(self, answers: Answers, call: Call) -> Reply:
        try:
            return Reply(200, answers.answer(call.path, call.body, call.timeout))
        except TimeoutError:
            return self._late(call)
        except BaseException as error:
            # The type alone: a message may quote what it was shown.
            status = error.code if isinstance(error, urllib.error.HTTPError) else 0
            self._warn(call, f"status {status}" if status else type(error).__name__)
            return Reply(status, error=type(error).__name__)

    def _warn(self, call: Call, what: str) -> None:
        now = time.monotonic()
        if now >= self._told.get(call.via, 0.0):
            self._told[call.via] = now + WARN_SECONDS
            log.warning("compactor %s failed (%s): the next way is tried", call.via, what)
