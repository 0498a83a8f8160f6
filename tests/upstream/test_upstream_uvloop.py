"""The same on uvloop, which serves in production: what depends on how transports pause, end and are aborted."""

from __future__ import annotations

from collections.abc import Callable, Coroutine

import pytest
import test_upstream_connect as connecting
import test_upstream_pool as pooling
import test_upstream_response as responding
from authority import Authority
from clients import Make, Tried

from tidegate.upstream import Timeouts

uvloop = pytest.importorskip("uvloop")

PLAIN = [
    responding.test_a_slow_reader_holds_the_upstream_back,
    responding.test_a_cut_behind_a_full_buffer_is_still_seen,
    responding.test_a_body_without_a_length_ends_with_the_connection,
    responding.test_a_reset_is_no_end_of_a_body_without_a_length,
    responding.test_an_upstream_slow_to_take_holds_the_body_back,
    responding.test_an_upstream_that_takes_nothing_is_a_504,
    responding.test_cancellation_while_the_body_is_sent_closes_the_connection,
    responding.test_closing_an_unfinished_answer_cancels_the_upstream,
    pooling.test_connections_are_used_again,
    pooling.test_a_connection_closed_while_idle_costs_the_upstream_one_request_only,
    pooling.test_there_is_no_second_retry,
    pooling.test_silence_before_the_head_is_a_504,
    pooling.test_nobody_listens,
    pooling.test_no_such_host,
    pooling.test_closing_the_pool_closes_everything,
]
"""Take a client."""

ALONE = [
    responding.test_cancellation_at_any_moment_leaves_a_pool_that_works,
]
"""Take what makes a client."""

TLS = [
    connecting.test_https_goes_through_a_tunnel_and_the_tunnel_is_kept,
    connecting.test_a_proxy_that_hangs_is_a_504,
    connecting.test_a_handshake_that_hangs_is_a_504,
    connecting.test_cancelling_a_handshake_leaks_nothing,
    connecting.test_an_unknown_authority_is_refused,
]
"""Take what makes a client, and an authority."""


async def with_pool(case: Callable[[Tried], Coroutine[None, None, None]], pool: Tried) -> None:
    await case(pool)
    await pool.close()


@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case.__name__)
def test_plain(make: Make, case: Callable[[Tried], Coroutine[None, None, None]]) -> None:
    uvloop.run(with_pool(case, make(timeouts=Timeouts(connect=2, head=2, read=2))))


@pytest.mark.parametrize("case", ALONE, ids=lambda case: case.__name__)
def test_alone(make: Make, case: Callable[[Make], Coroutine[None, None, None]]) -> None:
    uvloop.run(case(make))


@pytest.mark.parametrize("case", TLS, ids=lambda case: case.__name__)
def test_tls(
    make: Make,
    case: Callable[[Make, Authority], Coroutine[None, None, None]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    uvloop.run(case(make, Authority(tmp_path_factory.mktemp("ca"))))


@pytest.mark.parametrize("length", [b"Content-Length: 8000000\r\n", b""], ids=["length", "until close"])
def test_a_slow_reader_over_tls(make: Make, length: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    authority = Authority(tmp_path_factory.mktemp("ca"))

    async def case(pool: Tried) -> None:
        await connecting.test_a_slow_reader_over_tls_gets_everything(pool, authority, length)

    uvloop.run(with_pool(case, make(timeouts=Timeouts(connect=2, head=2, read=2), ca_file=authority.file)))
