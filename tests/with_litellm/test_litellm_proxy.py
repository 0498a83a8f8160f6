"""LiteLLM's own proxy as a process: with the hook in its config a chat outlives the window, without it it dies."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from agents import fact
from pages import Name, blocks

from tidegate import testing

pytestmark = [pytest.mark.litellm, pytest.mark.timeout(240)]

WINDOW = 4000
MASTER_KEY = "sk-proxy-7f3b9c0d1e2a4b5c6d7e8f90a1b2c3d4"
CONFIG = """\
model_list:
  - model_name: shop-model
    litellm_params:
      model: openai/shop-model
      api_base: {url}/v1
      api_key: sk-upstream
general_settings:
  master_key: {key}
"""
PLAIN = "litellm_settings:\n  num_retries: 0\n"
HOOK = blocks("yaml")[Name("in-process.md", "LiteLLM")]
INSTANCE = HOOK.replace("tidegate.litellm.hook", "own_hook.proxy_hook")
OWN = """\
from tidegate.litellm import TidegateHook

proxy_hook = TidegateHook(settings={"models": {"shop-model": {"window": 4000}}})
"""


@contextmanager
def proxy(folder: Path, url: str, more: str = PLAIN) -> Iterator[openai.OpenAI]:
    """A proxy in front of that provider, and a client of it."""
    (folder / "tidegate.toml").write_text('[store]\nkind = "memory"\n')
    (folder / "own_hook.py").write_text(OWN)
    config = folder / "config.yaml"
    config.write_text(CONFIG.format(url=url, key=MASTER_KEY) + more)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = shutil.which("litellm", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    assert program is not None, "the litellm command is not installed"
    command = [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
    settings = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "TIDEGATE_CONFIG": str(folder / "tidegate.toml")}
    log = folder / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **settings}, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + 120
        while not _up(port):
            assert process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.2)
        yield openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=MASTER_KEY, max_retries=0)
    finally:
        process.terminate()
        process.wait(20)


def _up(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health/liveliness", timeout=1).status_code == 200
    except httpx.TransportError:
        return False


def chat(client: openai.OpenAI, turns: int, *, stream: bool = False) -> tuple[list[Any], list[str]]:
    """A chat of so many turns: its history, and what became of each request."""
    history: list[Any] = []
    actions: list[str] = []
    for number in range(turns):
        history.append({"role": "user", "content": f"{fact(number)} {'word ' * 600}"})
        create = client.chat.completions.with_raw_response.create
        raw = create(model="shop-model", messages=history, stream=stream)
        answer: Any = raw.parse()
        text = "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices) if stream else ""
        history.append({"role": "assistant", "content": text if stream else answer.choices[0].message.content})
        actions.append(raw.headers.get("x-tidegate-action", ""))
    return history, actions


def test_with_the_hook_a_chat_outlives_the_window(tmp_path):
    with testing.simulator(window=WINDOW) as provider, proxy(tmp_path, provider.url, HOOK) as client:
        history, actions = chat(client, 14)
        assert actions[0] == "relayed"
        assert set(actions) == {"relayed", "recovered", "replayed", "compacted"}
        # The next hour of the same chat, streamed; then one whose client wants no help.
        before = len(provider.state.records)
        assert set(chat(client, 14, stream=True)[1]) <= {"relayed", "replayed", "compacted"}
        records = [record for record in list(provider.state.records)[before:] if record.kind == "main"]
        assert {record.outcome for record in records} == {"answered"}
        assert not any(record.violation for record in provider.state.records)
        assert fact(0)[:7] in records[-1].facts
        with pytest.raises(openai.BadRequestError, match="ContextWindowExceeded"):
            client.chat.completions.create(
                model="shop-model", messages=history, extra_headers={"x-tidegate-bypass": "1"}
            )


def test_an_instance_with_settings_of_its_own_compacts_before_the_window(tmp_path):
    with testing.simulator(window=WINDOW) as provider, proxy(tmp_path, provider.url, INSTANCE) as client:
        assert set(chat(client, 12)[1]) == {"relayed", "replayed", "compacted"}
        assert {record.outcome for record in provider.state.records} == {"answered"}


def test_without_the_hook_the_same_chat_dies(tmp_path):
    with testing.simulator(window=WINDOW) as provider, proxy(tmp_path, provider.url) as client:
        died = pytest.raises(openai.BadRequestError, match="ContextWindowExceeded")
        with died:
            chat(client, 14)
