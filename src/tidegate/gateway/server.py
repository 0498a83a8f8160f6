"""Builds the gateway from its settings and serves it.

Knows which parts there are; called by the command line and by tests.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidegate.config import ConfigError, Settings
from tidegate.engine.checkpoint import Store, StoreError
from tidegate.engine.effects import UpstreamError
from tidegate.engine.request import Kit
from tidegate.gateway import memory
from tidegate.gateway.access import AccessLog
from tidegate.gateway.app import App
from tidegate.gateway.catalogue import catalogue as known_providers
from tidegate.gateway.guard import is_loopback
from tidegate.gateway.http1 import Limits
from tidegate.gateway.http1_line import AsgiApplication
from tidegate.gateway.kit import keys_of, make_kit, store_of
from tidegate.gateway.listening import BACKLOG, OwnServer, Server, UvicornServer
from tidegate.gateway.reloading import Reloading
from tidegate.gateway.supervisor import POSSIBLE, supervise
from tidegate.providers import Catalogue, ProviderError
from tidegate.store import Keys, SqliteStore
from tidegate.upstream.client import Client
from tidegate.upstream.http import Timeouts
from tidegate.upstream.pool import Pool
from tidegate.upstream.proxy import from_environ

if TYPE_CHECKING:
    from tidegate.upstream.library import AiohttpPool

log = logging.getLogger("tidegate")


class CannotServe(Exception):
    """The gateway can't start; the text says what to change."""


class CannotListen(CannotServe):
    """The address can't be had now, whatever the settings."""


def build(settings: Settings, environ: Mapping[str, str] | None = None) -> App:
    """The application with everything it needs. Raises `CannotServe` where a part can't be made as it was asked for."""
    environ = os.environ if environ is None else environ
    try:
        keys = keys_of(settings)
        catalogue, kit = _judging(settings, keys)
        return App(settings, catalogue, kit, store_of(settings, keys), _pool(settings, environ), environ, keys)
    except (ConfigError, ProviderError, StoreError, UpstreamError, ValueError, OSError) as error:
        raise CannotServe(str(error)) from error


def _judging(settings: Settings, keys: Keys) -> tuple[Catalogue, Kit]:
    """What requests go by. Raises `ConfigError` and `ProviderError`."""
    catalogue = known_providers(settings)
    _check_defaults(settings, catalogue)
    return catalogue, make_kit(settings, catalogue, keys)


def run(
    settings: Settings,
    announce: Callable[[str], None] | None = None,
    reread: Callable[[], Settings] | None = None,
) -> None:
    """Serves until told to stop; `announce` is told the base URL once the port is bound. At a SIGHUP it goes by what
    `reread` returns, which raises `ConfigError`. Raises `CannotServe`."""
    _logging(settings.server.log_level)
    for warning in settings.warnings:
        log.warning("%s", warning)
    workers = settings.server.workers
    _check_workers(settings)
    app = build(settings)
    app.access_log = AccessLog(sys.stderr)
    bound, address = _listen(settings, workers)
    if not is_loopback(settings.server.host):
        log.warning("bound to %s: anyone who reaches this address can use the gateway's keys", settings.server.host)
    _try_store(app.store)
    reloading = Reloading(app, reread, _judging) if reread is not None else None
    print(f"Tidegate listening on {address}", flush=True)
    if announce is not None:
        announce(address)
    if settings.server.http == "own":
        memory.keep()
    memory.settle()
    if workers == 1:
        server_of(settings, app).run(bound[0])
    else:
        # Each is a copy of this process: what was built here, keys of chance included, is the same in all of them.
        supervise(
            lambda: server_of(settings, app), bound, drain_seconds=settings.server.drain_seconds, reloading=reloading
        )


def _check_workers(settings: Settings) -> None:
    count = settings.server.workers
    if count == 1:
        return
    where = settings.origin("server.workers")
    if not POSSIBLE:
        raise CannotServe(f"server.workers = {count} ({where}): this platform can't copy processes; only 1 is possible")
    if settings.store.kind == "memory":
        log.warning(
            "server.workers = %d (%s) with store.kind = memory: each worker knows only what it has compacted itself",
            count,
            where,
        )


def check_address(settings: Settings) -> None:
    """Raises `CannotListen` where the address can't be had now."""
    _bind(settings.server.host, settings.server.port).close()


@contextmanager
def serving(settings: Settings) -> Iterator[tuple[str, App]]:
    """(base URL, application) of a gateway in a thread of this process, for demos and tests."""
    app = build(settings)
    (bound,), address = _listen(settings, 1)
    server = server_of(settings, app)
    thread = threading.Thread(target=server.run, args=(bound,), daemon=True)
    thread.start()
    try:
        while not server.started:
            if not thread.is_alive():
                raise CannotServe("The gateway ended before it was ready.")
            time.sleep(0.005)
        yield address, app
    finally:
        server.stop()
        thread.join(timeout=10)


def server_of(settings: Settings, app: AsgiApplication) -> Server:
    """What serves an application, as the settings say."""
    own = settings.server
    if own.http == "uvicorn":
        return UvicornServer(app, drain_seconds=own.drain_seconds)
    return OwnServer(app, Limits(body_bytes=own.body_limit_bytes), drain_seconds=own.drain_seconds)


def _listen(settings: Settings, workers: int) -> tuple[list[socket.socket], str]:
    """(a socket for each worker, the base URL they are reached at)."""
    bound = _bind_each(settings.server.host, settings.server.port, workers)
    host, port = bound[0].getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return bound, f"http://{shown}:{port}"


def _check_defaults(settings: Settings, catalogue: Catalogue) -> None:
    for key in ("default_chat", "default_responses", "default_messages"):
        name = getattr(settings.routing, key)
        if name not in catalogue.names:
            known = ", ".join(catalogue.names)
            where = settings.origin(f"routing.{key}")
            raise ConfigError(f"routing.{key} = {name!r} ({where}): there is no such provider. Known: {known}.")


def _try_store(store: Store) -> None:
    """Says so, once, where the store can't be used."""
    try:
        if isinstance(store, SqliteStore):
            store.check()
    except StoreError as error:
        log.warning("%s: summaries can't be stored; compacting goes on without memory", error)


def _pool(settings: Settings, environ: Mapping[str, str]) -> Client:
    upstream = settings.upstream
    return _client(settings)(
        timeouts=Timeouts(upstream.connect_timeout, upstream.read_timeout, upstream.read_timeout),
        max_per_host=upstream.max_connections,
        ca_file=str(upstream.ca_file) if upstream.ca_file else None,
        proxies=from_environ(environ),
    )


def _client(settings: Settings) -> type[Pool] | type[AiohttpPool]:
    if settings.upstream.http == "own":
        return Pool
    try:
        from tidegate.upstream.library import AiohttpPool
    except ImportError as error:
        where = settings.origin("upstream.http")
        raise CannotServe(
            f"upstream.http = aiohttp ({where}): it can't be imported ({error}). "
            "Install it with: pip install 'tidegate[aiohttp]'"
        ) from None
    return AiohttpPool


def _bind_each(host: str, port: int, count: int) -> list[socket.socket]:
    """Sockets for so many workers, at one address.

    On Linux one each, among which the system deals out new connections. From a single one, whoever wakes first takes
    all that wait (measured: four workers got 5, 6, 0 and 21 of 32 connections from it, and 10, 6, 6 and 10 otherwise).
    """
    first = _bind(host, port)
    if count == 1 or not sys.platform.startswith("linux"):
        return [first] * count
    port = first.getsockname()[1]
    # Only a socket that shares nothing is refused an address that is taken; another gateway's would be shared with it.
    first.close()
    return [_bind(host, port, shared=True) for _ in range(count)]


def _bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        # No such name, or no address of this machine: another port would not help.
        option = "--host" if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL else "--port"
        raise CannotListen(f"Can't listen on {host}:{port}: {error.strerror}. Choose another with {option}.") from error
    bound.listen(BACKLOG)
    bound.setblocking(False)
    return bound


def _logging(level: str) -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    log.setLevel(level.upper())
