"""The gateway with aiohttp in place of its own client: streams, cuts, errors, clients that leave, uploads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import test_gateway_disconnect as leaving
import test_gateway_errors as errors
import test_gateway_relay as relaying
import test_gateway_streams as streams
from rawclient import Front, fronted
from running import Running, running, settings

from tidegate.gateway.server import CannotServe, build, serving
from tidegate.simulator import SimulatorSettings
from tidegate.upstream.library import AiohttpPool

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared() -> Iterator[Front]:
    with fronted(upstream__http="aiohttp", upstream__read_timeout=0.3) as front:
        assert isinstance(front.app.pool, AiohttpPool)
        yield front


@pytest.fixture
def front(shared: Front) -> Front:
    shared.upstream.reset()
    return shared


@pytest.fixture(scope="module")
def nowhere() -> Iterator[str]:
    with serving(settings(upstream="http://127.0.0.1:9", upstream__http="aiohttp")) as (base, _):
        yield base


@pytest.fixture(scope="module")
def shared_gate() -> Iterator[Running]:
    pace = "[stream]\nheartbeat_after_seconds = 0.03\nheartbeat_every_seconds = 0.03\n"
    with running(SimulatorSettings(window=4000), window=4000, toml=pace, upstream__http="aiohttp") as gate:
        yield gate


@pytest.fixture
def gate(shared_gate: Running) -> Running:
    shared_gate.simulator.reset()
    return shared_gate


test_leaving_while_the_upstream_thinks = leaving.test_leaving_while_the_upstream_thinks
test_leaving_while_the_head_is_held = leaving.test_leaving_while_the_head_is_held
test_leaving_within_a_stream = leaving.test_leaving_within_a_stream
test_leaving_within_an_upload = leaving.test_leaving_within_an_upload
test_leaving_before_an_upload_was_through = leaving.test_leaving_an_answer_that_came_before_the_upload_was_through
test_leaving_within_a_compaction_cancels_its_call = leaving.test_leaving_within_a_compaction_cancels_its_call
test_many_that_leave_leave_nothing_open = leaving.test_many_that_leave_leave_nothing_open

test_an_upstream_that_cannot_be_reached = errors.test_an_upstream_that_cannot_be_reached_is_a_502_with_what_to_check
test_an_upstream_that_does_not_begin_in_time_is_a_504 = errors.test_an_upstream_that_does_not_begin_in_time_is_a_504
test_what_is_no_answer_is_a_502_and_nothing_is_kept = errors.test_what_is_no_answer_is_a_502_and_nothing_is_kept
test_a_refusal_whose_body_is_cut_stays_that_refusal = errors.test_a_refusal_whose_body_is_cut_stays_that_refusal
test_a_refusal_is_left_to_the_clients_own_retry = errors.test_a_refusal_is_left_to_the_clients_own_retry

test_an_overflow_after_content_passes = streams.test_an_overflow_after_content_passes_and_nothing_is_sent_again
test_a_stream_that_is_cut_after_content = streams.test_a_stream_that_is_cut_after_content_is_cut_for_the_client
test_a_stream_that_is_cut_before_content_is_no_answer = streams.test_a_stream_that_is_cut_before_content_is_no_answer
test_an_overflow_in_a_compressed_refusal = streams.test_an_overflow_in_a_compressed_refusal_is_seen_all_the_same

test_an_answer_is_that_of_a_direct_call = relaying.test_an_answer_is_that_of_a_direct_call
test_an_answer_that_breaks_off_breaks_off = relaying.test_an_answer_that_breaks_off_breaks_off
test_a_large_upload_streams_through = relaying.test_a_large_upload_streams_through
test_an_upload_that_is_refused_early_is_told_so = relaying.test_an_upload_that_is_refused_early_is_told_so


WITHOUT = """
import sys
sys.modules["aiohttp"] = None
from tidegate.config import load
from tidegate.gateway.server import CannotServe, build
for chosen in ("own", "aiohttp"):
    try:
        build(load(None, {"upstream.http": chosen, "store.kind": "memory"}, {}))
        print("built")
    except CannotServe as error:
        print(error)
"""


def test_where_aiohttp_is_missing_the_start_says_how_to_get_it(tmp_path) -> None:
    said = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, cwd=tmp_path, check=True)
    own, chosen = said.stdout.splitlines()
    assert own == "built"
    assert chosen.startswith("upstream.http = aiohttp (")
    assert "pip install 'tidegate[aiohttp]'" in chosen


def test_its_ca_file_is_read_at_the_start(tmp_path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    with pytest.raises(CannotServe, match=r"ca\.pem can't be used"):
        build(settings(upstream__http="aiohttp", upstream__ca_file=file))
