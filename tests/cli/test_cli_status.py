"""`tidegate status`: what a running gateway tells, for the user who has its key or for a caller."""

from __future__ import annotations

import json
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tidegate import config
from tidegate.cli import main
from tidegate.gateway.server import serving
from tidegate.simulator import SimulatorSettings, serve


def ask(base: str, key: str) -> None:
    said = {"model": "m", "messages": [{"role": "user", "content": "hello " * 50}]}
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(f"{base}/v1/chat/completions", json.dumps(said).encode(), headers)
    urllib.request.urlopen(request, timeout=20).read()


def run(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["status", *arguments])


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Settings whose store and key are in a folder of the test's own."""
    path = tmp_path / "tidegate.toml"
    path.write_text(
        f'[store]\npath = "{tmp_path / "checkpoints.db"}"\nkey_file = "{tmp_path / "key"}"\n'
        '[server]\nport = 0\nlog_level = "error"\n[upstream]\nask_windows = false\n[models."*"]\nwindow = 9000\n'
    )
    return path


def test_the_user_who_has_the_key_file_sees_all_and_a_caller_sees_its_own(kept, tmp_path, monkeypatch):
    monkeypatch.setenv("MINE", "sk-1")
    with serve(SimulatorSettings(window=9000)) as simulator:
        made = config.load(kept, {"upstream.url": simulator.url}, {})
        with serving(made) as (base, _):
            ask(base, "sk-1")
            ask(base, "sk-2")
            mine = ("--gateway", base, "--config", str(kept))
            shown = run(*mine)
            assert shown.exit_code == 0, shown.output
            assert "2 conversations" in shown.output
            assert "2 relayed" in shown.output
            assert shown.output.count("below_threshold") == 2
            listed = json.loads(run(*mine, "--json").output)["list"]
            one = run(*mine, listed[0]["id"])
            assert "window        9,000 (settings)" in one.output
            assert "due from      7,650, aiming for 4,500" in one.output
            assert "1 conversation;" in run(*mine, "--key-env", "MINE").output
            # Another user's key is no key of this gateway.
            (tmp_path / "other.toml").write_text(kept.read_text().replace('/key"', '/other-key"'))
            stranger = run("--gateway", base, "--config", str(tmp_path / "other.toml"))
            assert "0 conversations" in stranger.output
            wrong = run(*mine, "0000")
            assert (wrong.exit_code, "no such conversation" in wrong.output) == (1, True)


def test_without_a_key_in_common_it_shows_what_anybody_sees(kept, tmp_path):
    kept.write_text(kept.read_text().replace("[store]", '[store]\nkind = "memory"'))
    with (
        serve(SimulatorSettings(window=9000)) as simulator,
        serving(config.load(kept, {"upstream.url": simulator.url}, {})) as (base, _),
    ):
        ask(base, "sk-1")
        shown = run("--gateway", base, "--config", str(kept))
        assert (shown.exit_code, "0 conversations" in shown.output) == (0, True)
        assert not (tmp_path / "key").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gateway", "http://127.0.0.1:9"], "no gateway at http://127.0.0.1:9: Connection refused. `tidegate serve`"),
        (["--gateway", "ftp://x"], "is no http:// or https:// URL"),
        (["--key-env", "NOT_SET_AT_ALL"], "NOT_SET_AT_ALL is not set"),
    ],
)
def test_it_says_what_is_wrong(arguments, words, kept):
    shown = run(*arguments, "--config", str(kept))
    assert shown.exit_code == 1
    assert words in shown.output


@pytest.mark.parametrize(("status", "why"), [(404, "(404)"), (502, "(502)"), (200, "(no JSON)")])
def test_so_it_does_of_a_server_that_is_no_gateway(status, why, kept):
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        shown = run("--gateway", f"http://127.0.0.1:{server.server_port}", "--config", str(kept))
    assert shown.exit_code == 1
    assert f"no gateway at http://127.0.0.1:{server.server_port}: what answers there is none {why}" in shown.output
    assert "html" not in shown.output


def test_the_admins_key_goes_to_no_other_machine_in_clear(kept, monkeypatch):
    from tidegate.cli import status_command

    kept.write_text(kept.read_text().replace("[server]", '[server]\nadmin_key = "sixteen-letters-at-least"'))
    assert status_command._admin(kept, "http://gateway.example:8484") == {}
    assert status_command._admin(kept, "https://gateway.example") != {}
    assert status_command._admin(kept, "http://127.0.0.1:8484") != {}
