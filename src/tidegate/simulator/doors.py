"""How clouds wrap the Messages API: Bedrock's, Vertex's and Foundry's paths, and what their bodies leave out or add.

Knows paths and envelopes; the API inside is the same. Called by the app.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from tidegate.simulator.context_settings import ON_DEMAND, THRESHOLD
from tidegate.simulator.jsontext import JsonObject, NotJson, as_object, decode
from tidegate.simulator.refusals import Refusal, refuse

_BEDROCK = re.compile(
    r"/model/(?P<model>[^/]+)/(?P<call>invoke|invoke-with-response-stream|converse|converse-stream|count-tokens)"
)
_VERTEX = re.compile(
    r"(?:/v1)?/projects/[^/]+/locations/[^/]+/publishers/anthropic/models/(?P<model>[^/:]+)"
    r":(?P<call>rawPredict|streamRawPredict)"
)
_ON_CONVERSE = "The compact beta feature is not currently supported on the Converse and ConverseStream APIs."


@dataclass(frozen=True, slots=True)
class Door:
    """A cloud's way in."""

    profile: str
    path: str
    """The path of the Messages API that it leads to."""
    fields: Mapping[str, object] = field(default_factory=dict)
    """Fields of the body that the path tells."""
    framing: str = "sse"
    """How a stream is written: `sse`, or Amazon's `eventstream`."""
    converse: bool = False
    versioned: bool = True
    """The body has an `anthropic_version`, as there is no such header."""

    def body(self, body: JsonObject) -> JsonObject:
        """The body as the Messages API has it. Raises `Refusal`."""
        if self.converse:
            _refuse_converse(body)
        if self.profile == "bedrock" and self.path.endswith("count_tokens"):
            body = _counted(body)
        if self.versioned:
            if not isinstance(body.get("anthropic_version"), str):
                refuse("anthropic_version: Field required", rule="version-header")
            body = {name: value for name, value in body.items() if name != "anthropic_version"}
        return {**body, **self.fields}

    def count(self, answer: JsonObject) -> JsonObject:
        """A counting answer as this cloud writes it."""
        return {"inputTokens": answer["input_tokens"]} if self.profile == "bedrock" else answer


def find(path: str, profile: str) -> Door | None:
    """The door at a path; `auto` takes any, another profile its own. None: no cloud's path."""
    if (found := _BEDROCK.fullmatch(path)) and profile in ("auto", "bedrock"):
        call, model = found["call"], unquote(found["model"])
        if call == "count-tokens":
            return Door("bedrock", "/messages/count_tokens", {"model": model})
        streams = call.endswith("-stream")
        fields = {"model": model, "stream": streams}
        return Door("bedrock", "/messages", fields, "eventstream" if streams else "sse", call.startswith("converse"))
    if (found := _VERTEX.fullmatch(path)) and profile in ("auto", "vertex"):
        if found["model"] == "count-tokens":
            return Door("vertex", "/messages/count_tokens")
        return Door("vertex", "/messages", {"model": unquote(found["model"])})
    if path.startswith("/anthropic/v1/") and profile in ("auto", "foundry"):
        return Door("foundry", path.removeprefix("/anthropic/v1").rstrip("/"), versioned=False)
    return None


def _refuse_converse(body: JsonObject) -> None:
    """Converse does not know the compaction betas; nothing else of Converse is here."""
    more = as_object(body.get("additionalModelRequestFields"))
    named = more.get("anthropic_beta")
    asked = {name for name in named if isinstance(name, str)} if isinstance(named, list) else set()
    if asked & {ON_DEMAND, THRESHOLD} or "compaction" in more or "context_management" in more:
        refuse(_ON_CONVERSE, rule="converse-compaction")
    raise Refusal("Converse is not served here.", rule="path", status=404, kind="path", type="not_found_error")


def _counted(body: JsonObject) -> JsonObject:
    """The InvokeModel body within a CountTokens request."""
    inner = as_object(as_object(body.get("input")).get("invokeModel")).get("body")
    try:
        value = decode(b64decode(inner, validate=True)) if isinstance(inner, str) else None
    except (NotJson, Base64Error, ValueError):
        value = None
    if not isinstance(value, dict):
        refuse("input: expected `invokeModel` with a base64 `body`", rule="body")
    return {name: entry for name, entry in value.items() if name != "max_tokens"}
