"""What the gateway tells of itself and of conversations: to each caller what is its own, to the admin all of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rawclient import Answer, Call, history, post
from running import Running, running

from tidegate.gateway.diagnostics import ADMIN_HEADER, CONVERSATIONS, PATH
from tidegate.simulator import SimulatorSettings, Step

ADMIN = (ADMIN_HEADER, "sixteen-letters-at-least")
ONE, TWO = ("authorization", "Bearer sk-one"), ("authorization", "Bearer sk-two")
CHAT = "/v1/chat/completions"


def gate(window: int = 100_000, **flags: Any) -> Any:
    return running(SimulatorSettings(window=window), window=window, server__admin_key=ADMIN[1], **flags)


def get(served: Running, path: str, *headers: tuple[str, str]) -> Answer:
    return Call(served.base, "GET", path, headers).rest()


def told(served: Running, path: str, *headers: tuple[str, str]) -> Any:
    got = get(served, path, *headers)
    assert got.status == 200, got.body
    return json.loads(got.body)


@pytest.mark.parametrize(
    ("dialect", "path", "headers"),
    [
        ("chat", CHAT, [ONE]),
        ("responses", "/v1/responses", [ONE]),
        ("messages", "/v1/messages", [("x-api-key", "sk-one"), ("anthropic-version", "2023-06-01")]),
    ],
)
def test_a_caller_sees_what_became_of_its_conversation_and_no_other_does(dialect, path, headers):
    with gate() as served:
        sent = post(served.base, path, history(dialect, 4), *headers)
        assert sent.status == 200
        [one] = told(served, CONVERSATIONS, *headers)["conversations"]
        assert one["current"]["tokens"] == int(sent.one("x-tidegate-tokens-before") or 0)
        assert one["last_check"]["reason"] == "below_threshold"
        assert {k: one["current"][k] for k in ("enabled", "window", "window_source", "threshold", "target")} == {
            "enabled": True,
            "window": 100_000,
            "window_source": "settings",
            "threshold": 85_000,
            "target": 50_000,
        }
        assert "endpoint" not in one
        assert told(served, f"{CONVERSATIONS}/{one['id']}", *headers)["id"] == one["id"]
        for stranger in ([TWO], []):
            assert told(served, CONVERSATIONS, *stranger) == {"known": 0, "conversations": []}
            got = get(served, f"{CONVERSATIONS}/{one['id']}", *stranger)
            assert (got.status, got.reason) == (404, "unknown_conversation")


@pytest.mark.parametrize("limit", ["", "x", "-1", "%C2%B2", "9" * 5000])
def test_a_limit_that_is_no_number_is_none(limit):
    with gate() as served:
        post(served.base, CHAT, history("chat", 4), ONE)
        assert len(told(served, f"{CONVERSATIONS}?limit={limit}", ONE)["conversations"]) == 1


def test_the_admin_sees_all_of_them_and_the_gateway_itself():
    with gate() as served:
        for key in (ONE, TWO):
            post(served.base, CHAT, history("chat", 4), key)
        served.simulator.script(Step(do="error", status=500))
        post(served.base, CHAT, history("chat", 5), TWO)
        seen = told(served, CONVERSATIONS, ADMIN)
        assert (seen["known"], len({one["id"] for one in seen["conversations"]})) == (2, 2)
        assert len(told(served, f"{CONVERSATIONS}?limit=1", ADMIN)["conversations"]) == 1
        whole = told(served, PATH, ADMIN)
        assert whole["requests"]["actions"]["relayed"] == 3
        assert whole["requests"]["reasons"]["below_threshold"] == 2
        assert whole["requests"]["reasons"]["diagnostics"] == 2
        assert whole["conversations"]["known"] == 2
        [model] = whole["models"]
        assert (model["model"], model["conversations"], model["window"]) == ("shop-model", 2, 100_000)
        assert model["endpoint"].startswith(served.simulator.url)
        assert whole["uptime_seconds"] >= 0


def test_to_others_the_gateway_tells_only_what_is_theirs():
    with gate() as served:
        post(served.base, CHAT, history("chat", 4), ONE)
        own, other = told(served, PATH, ONE), told(served, PATH, TWO)
        assert (own["conversations"]["known"], other["conversations"]["known"], other["models"]) == (1, 0, [])
        for it in (own, other):
            assert not it.keys() & {"requests", "compactions", "learned", "capabilities", "pid", "store"}
            assert served.simulator.url not in json.dumps(it)


def test_what_was_completed_and_what_failed_are_told():
    with gate(4000, compaction__prepare="off") as served:
        long = history("chat", 60)
        assert post(served.base, CHAT, long, ONE).action in ("compacted", "recovered")
        [one] = told(served, CONVERSATIONS, ONE)["conversations"]
        assert (one["last_check"]["reason"], one["completed"]["count"]) == ("requested", 1)
        last = one["completed"]["last"]
        assert (last["why"], last["strategy"], last["tokens_after"] < last["tokens_before"]) == (
            "threshold",
            "summary",
            True,
        )
        assert told(served, PATH, ADMIN)["compactions"] == {"completed": 1, "unchanged": 0, "failures": 0}


def test_a_learned_window_is_told_as_such():
    with running(SimulatorSettings(window=4000), server__admin_key=ADMIN[1], compaction__prepare="off") as served:
        post(served.base, CHAT, history("chat", 60), ONE)
        post(served.base, CHAT, history("chat", 61), ONE)
        [one] = told(served, CONVERSATIONS, ONE)["conversations"]
        assert (one["current"]["window"], one["current"]["window_source"]) == (4000, "learned")
        [learned] = told(served, PATH, ADMIN)["learned"]
        assert (learned["limit"], learned["source"], learned["counts"]) == (4000, "stated", True)


def test_an_unknown_window_is_told_as_such():
    with running(SimulatorSettings(window=10**6)) as served:
        post(served.base, CHAT, history("chat", 4), ONE)
        [one] = told(served, CONVERSATIONS, ONE)["conversations"]
        assert (one["current"]["window_source"], one["last_check"]["reason"]) == ("unknown", "unknown_window")


@pytest.mark.parametrize("key", ["", "sixteen-letters-at-leasT", "sixteen"])
def test_a_wrong_admin_key_opens_nothing(key):
    with gate() as served:
        got = get(served, PATH, (ADMIN_HEADER, key), ONE)
        assert (got.status, got.reason) == (403, "wrong_admin_key")


def test_no_words_and_no_keys_are_told():
    with gate(4000, compaction__prepare="off") as served:
        said = history("chat", 60)
        post(served.base, CHAT, said, ONE)
        for path in (PATH, CONVERSATIONS):
            shown = get(served, path, ADMIN).body.decode()
            assert "sk-one" not in shown
            assert ADMIN[1] not in shown
            assert all(message["content"][:20] not in shown for message in said["messages"])


@pytest.mark.parametrize(
    ("method", "path"), [("POST", PATH), ("GET", "/tidegate/v1/compact"), ("GET", "/tidegate/v1/else")]
)
def test_what_is_no_path_of_its_own_is_not_passed_on(method, path):
    with gate() as served:
        got = Call(served.base, method, path, [ONE], b"{}" if method == "POST" else None).rest()
        assert (got.status, got.reason) == (404, "no_such_path")
        assert served.records == []


def test_a_page_of_another_site_is_told_nothing():
    with gate() as served:
        assert get(served, PATH, ONE, ("origin", "https://evil.example")).status == 403
