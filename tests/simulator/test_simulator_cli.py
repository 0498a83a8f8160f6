"""`tidegate simulate` from the shell."""

import json
import re
import socket
import subprocess
import sys

import httpx2 as httpx
import pytest
from click.testing import CliRunner
from simulator_calls import CHAT, KEYS, MESSAGES, chat, user

from tidegate.cli.simulate_command import simulate


def test_serves_as_told(tmp_path):
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{"do": "error", "status": 503}]))
    code = "from tidegate.cli.simulate_command import simulate; simulate()"
    flags = ["--port", "0", "--window", "300", "--profile", "vllm", "--script", str(script)]
    process = subprocess.Popen([sys.executable, "-c", code, *flags], stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert "vllm, window 300 tokens" in line
        url = re.search(r"http://\S+", line)[0]
        assert httpx.post(url + CHAT, json=chat(), headers=KEYS).status_code == 503
        refused = httpx.post(url + CHAT, json=chat(user("x" * 9000)), headers=KEYS)
        assert "maximum context length is 300 tokens" in refused.text
        assert httpx.get(url + "/__sim/state").json()["counters"]["requests"] == 2
    finally:
        process.terminate()
        assert process.wait(10) is not None


def test_compacts_as_told():
    code = "from tidegate.cli.simulate_command import simulate; simulate()"
    flags = ["--port", "0", "--compact-path", "501", "--trigger", "ignored", "--org", "any=a/b"]
    process = subprocess.Popen([sys.executable, "-c", code, *flags], stdout=subprocess.PIPE, text=True)
    try:
        url = re.search(r"http://\S+", process.stdout.readline())[0]
        body = {"model": "m", "input": [user("Hello."), {"type": "compaction_trigger"}]}
        assert httpx.post(url + "/v1/responses/compact", json=body, headers=KEYS).status_code == 501
        answer = httpx.post(url + "/v1/responses", json=body, headers=KEYS).json()
        assert [item["type"] for item in answer["output"]] == ["message"]
        assert httpx.get(url + "/__sim/state").json()["requests"][0]["org"] == "a/b"
    finally:
        process.terminate()
        assert process.wait(10) is not None


def test_manages_context_as_told():
    code = "from tidegate.cli.simulate_command import simulate; simulate()"
    flags = ["--port", "0", "--beta", "compact-2026-01-12", "--least-trigger", "20"]
    process = subprocess.Popen([sys.executable, "-c", code, *flags], stdout=subprocess.PIPE, text=True)
    try:
        url = re.search(r"http://\S+", process.stdout.readline())[0]
        headers = KEYS | {"anthropic-beta": "compact-2026-01-12,compact-2026-09-04"}
        body = {"model": "claude-opus-5-5", "max_tokens": 99, "messages": [user("Hello." * 40)]}
        trigger = {"type": "input_tokens", "value": 20}
        edits = {"edits": [{"type": "compact_20260112", "trigger": trigger}]}
        answer = httpx.post(url + MESSAGES, json=body | {"context_management": edits}, headers=headers).json()
        assert [block["type"] for block in answer["content"]] == ["compaction", "text"]
        refused = httpx.post(url + MESSAGES, json=body | {"compaction": {"type": "summarize"}}, headers=headers)
        assert "compaction: Extra inputs are not permitted" in refused.text
    finally:
        process.terminate()
        assert process.wait(10) is not None


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(simulate, ["--port", str(port)])
    assert result.exit_code == 1
    assert f"Can't listen on 127.0.0.1:{port}: Address already in use. Choose another with --port." in result.output


def test_a_host_that_is_none_is_named():
    result = CliRunner().invoke(simulate, ["--host", "no-such-host.invalid", "--port", "0"])
    assert result.exit_code == 1
    assert "no-such-host.invalid" in result.output
    assert "Choose another with --host." in result.output


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--profile", "acme"], "'acme' is not one of 'auto', 'openai'"),
        (["--window", "0"], "0 is not in the range x>=1"),
        (["--script", "missing.json"], "does not exist"),
        (["--compact-path", "410"], "'410' is not one of 'served', '404',"),
        (["--boundary", "none"], "'none' is not one of 'keep_users',"),
        (["--org", "key"], "expected KEY=ORG or KEY=ORG/PROJECT"),
    ],
)
def test_says_what_is_allowed(flags, words):
    result = CliRunner().invoke(simulate, flags)
    assert result.exit_code == 2
    assert words in result.output


@pytest.mark.parametrize("text", ["{", '[{"do": "boom"}]', '"x"'])
def test_a_bad_script_is_named(tmp_path, text):
    path = tmp_path / "script.json"
    path.write_text(text)
    result = CliRunner().invoke(simulate, ["--script", str(path)])
    assert result.exit_code == 2
    assert "script.json" in result.output


def test_help_has_examples():
    assert "tidegate simulate --window 24000" in CliRunner().invoke(simulate, ["--help"]).output
