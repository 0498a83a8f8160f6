"""Lines of requests: gathered for a moment, in the form of the other logs, and never a reason to fail."""

from __future__ import annotations

import asyncio
import io
import re

import pytest

from tidegate.gateway.access import MOST, AccessLog

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO tidegate\.access (.*)")


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def said(stream: io.StringIO) -> list[str]:
    lines = stream.getvalue().splitlines()
    matches = [LINE.fullmatch(line) for line in lines]
    assert all(matches)
    return [match[1] for match in matches if match]


def test_without_a_loop_a_line_is_written_at_once():
    stream = io.StringIO()
    AccessLog(stream).write("one two")
    assert said(stream) == ["one two"]


@pytest.mark.pure
def test_lines_are_gathered_and_written_in_order(monkeypatch):
    monkeypatch.setattr("tidegate.gateway.access.GATHERED_SECONDS", 0.02)
    stream = io.StringIO()

    async def go() -> None:
        log = AccessLog(stream)
        for n in range(5):
            log.write(f"line {n}")
        assert stream.getvalue() == ""
        await asyncio.sleep(0.1)

    asyncio.run(go())
    assert said(stream) == [f"line {n}" for n in range(5)]


def test_no_more_wait_than_fit_and_the_rest_comes_with_a_flush():
    stream = io.StringIO()

    async def go() -> None:
        log = AccessLog(stream)
        for n in range(MOST + 3):
            log.write(str(n))
        assert len(said(stream)) == MOST
        log.flush()

    asyncio.run(go())
    assert said(stream) == [str(n) for n in range(MOST + 3)]


def test_a_stream_that_nobody_reads_any_more_costs_nothing():
    AccessLog(Broken()).write("lost")
