"""Several processes that serve one address: starts them, starts anew what has died, and ends them in good order.

Knows processes and signals; not what they serve. Called by `server`.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, NoReturn

from tidegate.gateway.listening import Server
from tidegate.gateway.reloading import HANGUP, Reloading

log = logging.getLogger("tidegate")

POSSIBLE: Final = hasattr(os, "fork")
"""Whether this platform can copy a process."""

_STOPPING: Final = (signal.SIGINT, signal.SIGTERM)
_SHORT_LIFE: Final = 5.0
"""Seconds: a worker that lived less may do so again, and the next is started later each time."""
_FIRST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 10.0
_GRACE: Final = 5.0
"""Seconds beyond the drain after which a worker that has not ended is killed."""


@dataclass(slots=True)
class _Worker:
    """One place in the row of workers, and who fills it."""

    number: int
    bound: socket.socket
    pid: int = 0
    began: float = 0.0
    failures: int = 0
    due: float = 0.0
    """When it is to be started, while `pid` is 0."""


def supervise(
    make: Callable[[], Server],
    sockets: Sequence[socket.socket],
    *,
    drain_seconds: float,
    reloading: Reloading | None = None,
) -> None:
    """Runs a process for each of these bound sockets, with a server of its own, until a signal to stop.

    The sockets stay open here, so that whoever connects while a worker is replaced waits for the next. They are closed
    at the end.

    They are copies of this process, which therefore must have no threads and no loop. A worker that ends is replaced.
    The signal is raised again at the end. One to read the settings anew is heard here, for those that start later, and
    passed on to those that run.
    """
    workers = [_Worker(number, bound) for number, bound in enumerate(sockets, 1)]
    # Whoever reads it is told by its end that this process is no more, however it ended.
    lifeline, held = os.pipe()
    caught: list[int] = []
    try:
        with _woken(caught) as wake:
            while not caught:
                if reloading is not None and reloading.pending:
                    reloading.reload()
                    _signal(workers, HANGUP)
                _start_due(workers, make, (lifeline, held))
                _wait(wake, min((worker.due for worker in workers if not worker.pid), default=None))
                if not caught:
                    _reap(workers)
            for bound in sockets:
                bound.close()  # or whoever connects would wait for a worker that takes nothing any more
            _stop(workers, caught, wake, drain_seconds + _GRACE)
    finally:
        os.close(held)
        os.close(lifeline)
    signal.raise_signal(caught[0])


def _start_due(workers: list[_Worker], make: Callable[[], Server], pipe: tuple[int, int]) -> None:
    now = time.monotonic()
    for worker in workers:
        if not worker.pid and worker.due <= now:
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if pid == 0:
                for other in workers:
                    if other.bound is not worker.bound:
                        other.bound.close()
                _serve(make, worker.bound, pipe)
            worker.pid, worker.began = pid, now


def _serve(make: Callable[[], Server], bound: socket.socket, pipe: tuple[int, int]) -> NoReturn:
    """What the copy does. It never returns into what the original was doing."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        lifeline, held = pipe
        os.close(held)
        server = make()

        def watch() -> None:
            os.read(lifeline, 1)
            server.stop()

        threading.Thread(target=watch, daemon=True).start()
        server.run(bound)
        status = 0
    except KeyboardInterrupt:
        status = 0
    except Exception as error:
        log.error("a worker can't serve: %s", type(error).__name__)  # noqa: TRY400 - its text may quote what it failed on
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _reap(workers: list[_Worker]) -> None:
    """Notes who has ended, and when the next is to take its place."""
    now = time.monotonic()
    for worker in workers:
        status = _ended(worker)
        if status is None:
            continue
        worker.failures = worker.failures + 1 if now - worker.began < _SHORT_LIFE else 0
        wait = min(_FIRST_WAIT * 2 ** (worker.failures - 1), _LONGEST_WAIT) if worker.failures else 0.0
        worker.due = now + wait
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        log.warning("worker %s ended %s: another takes its place in %.1f s", worker.number, how, wait)


def _ended(worker: _Worker) -> int | None:
    """The exit status of a worker that has ended since it was last asked; None for one that runs, or none."""
    if not worker.pid:
        return None
    try:
        pid, status = os.waitpid(worker.pid, os.WNOHANG)
    except ChildProcessError:
        pid, status = worker.pid, 0
    if not pid:
        return None
    worker.pid = 0
    return os.waitstatus_to_exitcode(status)


def _stop(workers: list[_Worker], caught: list[int], wake: socket.socket, seconds: float) -> None:
    """Lets the workers end, and kills those that don't in time. A second Ctrl-C is passed on: it means now."""
    deadline, told = time.monotonic() + seconds, len(caught)
    _signal(workers, signal.SIGTERM)
    while any(worker.pid for worker in workers):
        if signal.SIGINT in caught[told:]:
            _signal(workers, signal.SIGINT)
        told = len(caught)
        if time.monotonic() > deadline:
            _signal(workers, signal.SIGKILL)
            deadline = float("inf")
        _wait(wake, min(deadline, time.monotonic() + 1))
        for worker in workers:
            _ended(worker)


def _signal(workers: list[_Worker], number: int) -> None:
    for worker in workers:
        if worker.pid:
            with suppress(ProcessLookupError):
                os.kill(worker.pid, number)


def _wait(wake: socket.socket, until: float | None) -> None:
    """Returns at a signal, at the latest at that time."""
    seconds = None if until is None else max(0.0, until - time.monotonic())
    if select.select([wake], [], [], seconds)[0]:
        with suppress(BlockingIOError):
            wake.recv(4096)


@contextmanager
def _woken(caught: list[int]) -> Iterator[socket.socket]:
    """A socket that becomes readable at each signal; those to stop are noted in `caught`."""
    woken, waking = socket.socketpair()
    woken.setblocking(False)
    waking.setblocking(False)
    handlers = {number: signal.signal(number, lambda number, _: caught.append(number)) for number in _STOPPING}
    handlers[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    before = signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
    try:
        yield woken
    finally:
        signal.set_wakeup_fd(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        woken.close()
        waking.close()
