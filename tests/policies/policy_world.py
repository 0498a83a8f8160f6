"""Requests measured and decided on under a named policy, without sending anything."""

from __future__ import annotations

import json
from typing import Any

from tidegate.context.budget import Policy
from tidegate.context.cut import Cut
from tidegate.context.estimators import ESTIMATORS
from tidegate.context.fingerprint import Hasher
from tidegate.context.ledger import Ledger
from tidegate.context.policies import NAMED
from tidegate.engine.checkpoint import Report
from tidegate.engine.planning import plan
from tidegate.engine.request import Kit, Request, Target
from tidegate.engine.sizing import Sizing
from tidegate.engine.view import View, plain, read_history
from tidegate.overflow.verdict import Evidence, Verdict
from tidegate.overflow.window import Windows
from tidegate.wire import read

HASHER = Hasher(b"k" * 32)
TENANT = HASHER.tenant(b"sk-test")
VERDICT = Verdict("server", "none", True, Evidence("none", "none"))

Json = dict[str, Any]


def new_kit(policy: Policy | None = None) -> Kit:
    return Kit(HASHER, Ledger(HASHER), Windows(), lambda provider, refusal, sent: VERDICT, policy or Policy())


def target(policy: Policy | None, window: int | None, **changes: Any) -> Target:
    known: Json = {"provider": "openai", "endpoint": "http://up/v1", "model": "m", "window": window, "policy": policy}
    return Target(**{**known, **changes})


def body(messages: list[Json], **fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": messages, **fields}).encode()


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def answer(text: str) -> Json:
    return {"role": "assistant", "content": text}


def call(name: str, arguments: Json, number: int = 1) -> Json:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": None, "tool_calls": [
        {"id": f"c{number}", "type": "function", "function": function}]}  # fmt: skip


def result(text: str, number: int = 1) -> Json:
    return {"role": "tool", "tool_call_id": f"c{number}", "content": text}


def measured(
    name: str,
    raw: bytes,
    window: int | None,
    *,
    dialect: str = "chat",
    reports: tuple[int, int] | None = None,
    **to: Any,
) -> Sizing:
    """A request as the engine sizes it. `reports`: (items of its beginning, input tokens reported for those)."""
    policy = NAMED[name].policy
    kit = new_kit()
    request = Request("r1", read(dialect, raw), TENANT, target(policy, window, **to), 1000.0)  # type: ignore[arg-type]
    history = read_history(request.conversation, TENANT, HASHER, kit.ledger, ESTIMATORS[policy.estimator])
    sizing = Sizing(request, kit, history)
    if reports:
        length, tokens = reports
        known = Report(
            history.chain.bucket, length, history.chain.link(length), b"", history.head, "http://up/v1", "m", tokens
        )
        sizing = sizing.told((known,))
    return sizing


def whole(sizing: Sizing) -> View:
    return plain(sizing.history)


def size(name: str, raw: bytes, *, dialect: str = "chat") -> int:
    """Tokens of a request by a policy's estimator, as the engine counts it."""
    sizing = measured(name, raw, 10**6, dialect=dialect)
    view = whole(sizing)
    tokens = sizing.measured(view).tokens
    assert tokens == sizing.measured(view).local == view.tokens
    return tokens


def cut(name: str, raw: bytes, window: int | None, **to: Any) -> Cut | None:
    """Where the engine cuts a request that is due."""
    sizing = measured(name, raw, window, **to)
    aim = sizing.limits().target
    assert aim
    made = plan(sizing, whole(sizing), aim, "threshold", ("summary",))
    return made.cut if made else None
