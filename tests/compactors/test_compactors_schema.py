"""The schema that is published for compactors of the user's own says what is sent to them, and what is taken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from test_compactors_custom import CASES, PLAN, PLANS, WANTS, answered, asked, run, told

from tidegate.compactors.strategy import Reply
from tidegate.wire.conversation import DialectName, FinishReason

SCHEMA: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "docs" / "custom-compactors.schema.json").read_text("utf-8")
)["$defs"]

KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "integer": (int,), "boolean": (bool,), "null": (type(None),),
}  # fmt: skip


def problems(value: Any, schema: dict[str, Any], at: str = "") -> list[str]:
    """Where a value is not as a schema says; of the words that this schema uses."""
    if "$ref" in schema:
        return problems(value, SCHEMA[schema["$ref"].removeprefix("#/$defs/")], at)
    assert set(schema) <= {
        "type", "enum", "required", "properties", "additionalProperties", "items", "minimum", "minProperties",
        "description",
    }  # fmt: skip
    if "enum" in schema and value not in schema["enum"]:
        return [f"{at}: {value!r}"]
    kinds = schema.get("type", [])
    allowed = tuple(kind for name in ([kinds] if isinstance(kinds, str) else kinds) for kind in KINDS[name])
    if allowed and (not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed)):
        return [f"{at}: a {type(value).__name__}"]
    if isinstance(value, int) and value < schema.get("minimum", value):
        return [f"{at}: {value}"]
    if isinstance(value, list):
        return [it for n, one in enumerate(value) for it in problems(one, schema.get("items", {}), f"{at}[{n}]")]
    if not isinstance(value, dict):
        return []
    known = schema.get("properties", {})
    found = [f"{at}.{name} is not there" for name in schema.get("required", []) if name not in value]
    if len(value) < schema.get("minProperties", 0):
        found.append(f"{at} is empty")
    for name, one in value.items():
        if name in known:
            found += problems(one, known[name], f"{at}.{name}")
        elif schema.get("additionalProperties", True) is False:
            found.append(f"{at}.{name} is unknown")
    return found


@pytest.mark.parametrize(
    "replies",
    [
        {"/wants": told(WANTS), "/compact": told({"summary": "notes"})},
        {
            "/wants": told(PLANS),
            "/plan": told(PLAN),
            "/chat/completions": answered("chat"),
            "/finish": told({"summary": "notes"}),
        },
    ],
    ids=["short", "long"],
)
def test_what_is_sent_and_taken_is_as_the_schema_says(replies: dict[str, Reply]) -> None:
    _, calls = run(replies)
    for call in calls:
        if call.via:
            assert problems(json.loads(call.body), SCHEMA[f"POST {call.path}"]) == []
            assert problems(json.loads(replies[call.path].body), SCHEMA[f"200 {call.path}"]) == []


@pytest.mark.parametrize("name", ["no text at all", "no plan at all", "a plan without a body", "an empty body"])
def test_what_is_refused_as_invalid_is_not_as_the_schema_says(name: str) -> None:
    replies, reason = CASES[name]
    path = [*replies][-1]
    assert reason == "custom_invalid"
    assert problems(json.loads(replies[path].body), SCHEMA[f"200 {path}"])


@pytest.mark.parametrize("changed", [{"trigger": "never"}, {"more": 1}, {"until": 0}, {"items": [1]}, {"tokens": None}])
def test_the_schema_tells_a_view_from_others(changed: dict[str, Any]) -> None:
    view = asked().view()
    assert problems(view, SCHEMA["view"]) == []
    assert problems({**view, **changed}, SCHEMA["view"])


def test_its_names_are_those_of_the_source() -> None:
    assert [*SCHEMA["view"]["properties"]] == SCHEMA["view"]["required"] == [*asked().view()]
    assert SCHEMA["view"]["properties"]["dialect"]["enum"] == [*get_args(DialectName)]
    finishes = SCHEMA["POST /finish"]["properties"]["reply"]["properties"]["finish"]["enum"]
    assert finishes == [*get_args(FinishReason), None]
