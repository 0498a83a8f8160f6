"""The two upstream clients that the same tests are run against, and where aiohttp's differs from the gateway's own."""

from __future__ import annotations

from typing import Protocol

from tidegate.upstream import Pool, Timeouts
from tidegate.upstream.client import Client
from tidegate.upstream.library import AiohttpPool
from tidegate.upstream.proxy import NO_PROXIES, Proxies


class Tried(Client, Protocol):
    """A client, and what only tests ask of it."""

    @property
    def open_now(self) -> int: ...


class Make(Protocol):
    """Makes a client."""

    def __call__(
        self,
        *,
        timeouts: Timeouts | None = None,
        max_per_host: int = 1000,
        idle_seconds: float = 60,
        ca_file: str | None = None,
        proxies: Proxies = NO_PROXIES,
    ) -> Tried: ...


CLIENTS: dict[str, Make] = {"own": Pool, "aiohttp": AiohttpPool}

NOT_AIOHTTP = {
    "test_a_header_goes_out_as_its_bytes": "it takes texts and writes them in UTF-8; others are refused, not changed",
    "test_the_newest_idle_connection_is_used_first": "it takes the oldest, so that idle ones age more slowly",
    "test_bytes_on_an_idle_connection_close_it": "it is closed when its turn comes, which is before any request",
    "test_connections_that_are_not_used_again[bytes after the end]": "its parser refuses all that came in one packet",
    "test_a_body_sent_in_answer_to_head_is_not_taken_for_the_next_answer": "its parser refuses all of that packet",
    "test_a_broken_chunk_is_an_error_after_what_came_before": "its parser refuses all that came in one packet",
    "test_the_answer_to_head_has_no_body[]": "it keeps no connection of an answer without a length, though it has none",
    r"test_an_answer_that_can_be_read_two_ways_is_an_error[HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n"
    r"Content-Length: 2\r\n\r\nok]": "its parser takes folded headers from servers, as one line",
    r"test_an_answer_that_can_be_read_two_ways_is_an_error[HTTP/1.1 200 OK\nContent-Length: 2\n\nok]": (
        "its parser takes bare line feeds from servers"
    ),
    "test_headers_are_limited[many]": "it limits each header (64 KiB) and their number (256), and says so otherwise",
    "test_headers_are_limited[interim]": "it takes interim answers without end; the time for the head ends them",
    "test_trailers_and_chunk_extensions_are_limited[ext]": "it has no limit there; the time for a piece ends them",
    "test_trailers_and_chunk_extensions_are_limited[many]": "it limits their number (256), and says so otherwise",
    "test_a_tunnel_is_asked_for_with_host_and_port_and_nothing_else": "it adds Accept and User-Agent for the proxy",
}
"""Tests that fail with aiohttp, for what can't be had from it, each with the reason. The rest must pass with both."""
