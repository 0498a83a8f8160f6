"""How each gateway that is no peer is started: Tidegate from a checkout, nginx, a bare relay, and none at all.

Knows command lines and configurations; a gateway listens on `Place.port` and sends to `Place.upstream`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rig.bodies import MODEL

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a gateway finds itself: its port, the upstream's, its folder, and the window (tokens) of the models."""

    port: int
    upstream_port: int
    folder: Path
    window: int

    @property
    def upstream(self) -> str:
        return f"http://127.0.0.1:{self.upstream_port}"


@dataclass(frozen=True, slots=True)
class Launch:
    """A command, and what its environment has besides ours."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway: its name, what starts it (none for no gateway), how long that may take, and which APIs it relays."""

    name: str
    launch: Callable[[Place], Launch] | None
    seconds: float = 20
    apis: tuple[str, ...] = ("chat", "messages", "responses")
    about: str = ""


CACHES = """
[routing]
default_chat = "bench"
default_responses = "bench"
default_messages = "bench"
[providers.bench]
title = "The benches' upstream"
base_url = "{upstream}/v1"
dialects = ["chat", "responses", "messages"]
quirks.merge_user = false
[[providers.bench.prompt_cache]]
read = 0.1
source = "window_upstream.py tells what it had cached, and the benches count that at a tenth"
"""
"""The upstream as a provider of which is known what is known of OpenAI and Anthropic: that it caches, at which price,
and that it takes two messages of the user in a row."""


def tidegate(
    place: Place,
    package: Path = ROOT / "src",
    store: str = "memory",
    models: bool = True,
    caches: bool = False,
    more: str = "",
) -> Launch:
    """Tidegate of a folder, with its default settings but for the store and, with `models`, the model's window; with
    `caches` also what its upstream's prompt cache costs. `more` tables of the configuration come after them."""
    config = place.folder / "tidegate.toml"
    told = f'[models."{MODEL}"]\nwindow = {place.window}\n' if models else ""
    told += CACHES.format(upstream=place.upstream) if caches else ""
    config.write_text(f'store.kind = "{store}"\n{told}{more}')
    home = {name: str(place.folder) for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")}
    command = (sys.executable, "-m", "tidegate", "serve", "--port", str(place.port), "--config", str(config))
    to = () if caches else ("--upstream", place.upstream)
    return Launch((*command, *to), {**home, "PYTHONPATH": str(package)})


NGINX = """
worker_processes 1; daemon off; error_log {folder}/error.log crit; pid {folder}/pid;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_max_body_size 64m; client_body_buffer_size 8m; tcp_nodelay on;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  keepalive_requests 1000000000; keepalive_timeout 300;
  upstream mock {{ server 127.0.0.1:{upstream_port}; keepalive 600; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=2048;
    location / {{ {passed} }}
  }}
}}
"""
NGINX_KEPT = 'proxy_pass http://mock; proxy_http_version 1.1; proxy_set_header Connection "";'
NGINX_PLAIN = "proxy_pass http://127.0.0.1:{upstream_port};"


def nginx_program() -> str | None:
    """nginx, where it is installed."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


def _nginx(passed: str, place: Place) -> Launch:
    config = place.folder / "nginx.conf"
    passed = passed.format(upstream_port=place.upstream_port)
    config.write_text(
        NGINX.format(folder=place.folder, port=place.port, upstream_port=place.upstream_port, passed=passed)
    )
    return Launch((nginx_program() or "nginx", "-c", str(config)))


def _relay(place: Place) -> Launch:
    return Launch(
        (sys.executable, str(Path(__file__).with_name("relay.py")), str(place.port), str(place.upstream_port))
    )


DIRECT = Gateway("direct", None, about="no gateway")
NGINX_PROXY = Gateway(
    "nginx",
    partial(_nginx, NGINX_KEPT),
    about="nginx, `proxy_pass` with its default buffering, connections to the upstream kept",
)
NGINX_NOT_KEPT = Gateway(
    "nginx-plain",
    partial(_nginx, NGINX_PLAIN),
    about="nginx, `proxy_pass` and nothing else, as most people write it: a connection upstream for each request",
)
RELAY = Gateway("relay", _relay, about="`bench/rig/relay.py`: bytes from socket to socket in asyncio, nothing read")
TIDEGATE = Gateway("tidegate", tidegate, about="Tidegate, default settings, store in memory")
TIDEGATE_SQLITE = Gateway("tidegate-sqlite", lambda place: tidegate(place, store="sqlite"), about="the same on SQLite")
