"""Providers that are reached through a package's SDK: which they are, and what a client of one sees."""

from __future__ import annotations

import sys

import pytest
from rawclient import Call, body, fronted, post
from running import settings

from tidegate.gateway.server import serving
from tidegate.providers import load

WORK = """
[providers.work]
title = "Work"
through = "litellm"
dialects = ["chat", "messages"]
"""


@pytest.mark.parametrize(
    ("name", "overlay", "by_sdk"),
    [
        ("litellm", {}, True),
        ("bedrock", {}, True),
        ("bedrock", {"base_url": "https://bedrock-runtime.eu-west-1.amazonaws.com/openai/v1"}, False),
        ("openai", {}, False),
        ("azure", {}, False),
    ],
)
def test_those_that_no_base_url_is_known_of(name, overlay, by_sdk):
    provider = load(overrides={name: overlay} if overlay else {}).get(name)
    assert provider.by_sdk("chat") is by_sdk


def test_one_dialect_may_be_served_over_http():
    provider = load(overrides={"bedrock": {"base_urls": {"messages": "https://x.example/anthropic"}}}).get("bedrock")
    assert (provider.by_sdk("messages"), provider.by_sdk("chat"), provider.by_sdk(None)) == (False, True, True)


@pytest.mark.parametrize("path", ["/work/v1/chat/completions", "/work/v1/messages"])
@pytest.mark.parametrize("bypass", [False, True])
def test_without_the_package_a_client_is_told_what_to_install(monkeypatch, path, bypass):
    monkeypatch.setitem(sys.modules, "litellm", None)
    dialect = "messages" if path.endswith("messages") else "chat"
    with serving(settings(WORK)) as (base, _):
        headers = [("x-tidegate-bypass", "1")] if bypass else []
        got = post(base, path, body(dialect), *headers)
        assert got.status == 501
        assert "pip install 'tidegate[litellm]'" in got.json["error"]["message"]
        assert (got.json.get("type") == "error") is (dialect == "messages")


def test_other_paths_of_one_are_not_served_and_say_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "litellm", None)
    with serving(settings(WORK)) as (base, _):
        got = Call(base, "GET", "/work/v1/models").rest()
        assert (got.status, got.json["error"]["code"]) == (404, "not_served")


def test_nothing_of_it_is_imported_for_others():
    with fronted() as front:
        assert post(front.base, "/v1/chat/completions", body("chat")).status == 200
        assert "litellm" not in sys.modules
