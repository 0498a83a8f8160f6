"""Memory of bodies is kept while they come, and given back when none do."""

from __future__ import annotations

import asyncio
import platform
import subprocess
import sys

import pytest

from tidegate.gateway.http1 import Http1, Limits
from tidegate.gateway.http1_line import Line

GLIBC = "glibc" in platform.libc_ver()

SCRIPT = """
import resource, sys
from tidegate.gateway import memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

def faults(rounds=20):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        pieces = [bytes(bytearray(200_000)) for _ in range(20)]
        b"".join(pieces)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / rounds

faults(3)
left_alone = faults()
assert memory.keep()
faults(3)
kept, before = faults(), resident()
memory.release()
print(kept < left_alone / 4, before - resident() > 2 << 20)
"""


@pytest.mark.skipif(not GLIBC, reason="an allocator of glibc's")
def test_kept_memory_is_not_faulted_in_again_and_can_be_given_back():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


def test_where_it_can_not_be_nothing_happens():
    work = "from tidegate.gateway import memory; print(memory.keep(), memory.release())"
    script = f"import sys; sys.platform = 'other'; {work}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "None"]


class App:
    def gathers(self, arrival: object) -> bool:
        return True

    def at_once(self, line: Line) -> bool:
        line.start(204, [])
        line.end()
        return True

    async def __call__(self, *_: object) -> None:
        """Never called."""


@pytest.mark.pure
async def test_quiet_is_told_once_after_each_time_something_was_asked(monkeypatch):
    monkeypatch.setattr("tidegate.gateway.http1._QUIET_SECONDS", 0.05)
    hub, told = Http1(App(), Limits(idle_seconds=0.08)), []
    hub.on_quiet = lambda: told.append(hub.loop.time())
    server = await hub.loop.create_server(hub, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for expected in (1, 2):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.4)
        assert len(told) == expected
        assert hub.connections == set()
        writer.close()
    server.close()


def test_the_collector_is_told_what_stays_and_to_look_seldom():
    """In a process of its own: the switches are the process's."""
    code = (
        "import gc; from tidegate.gateway import memory; memory.settle(); "
        "print(gc.get_freeze_count() > 1_000, gc.get_threshold())"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "True (20000, 20, 20)"
