"""Requests of real clients, their texts replaced by words of our own, equal where the originals were equal."""

import json
from dataclasses import dataclass
from pathlib import Path

from tidegate.wire import REQUESTS
from tidegate.wire.conversation import Conversation, DialectName
from tidegate.wire.jsontext import canonical_dumps, loads

FOLDER = Path(__file__).parent.parent / "captures"

_DIALECTS: dict[str, DialectName] = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
}


@dataclass(frozen=True)
class Capture:
    name: str
    dialect: DialectName
    headers: dict[str, str]
    body: bytes

    def read(self) -> Conversation:
        return REQUESTS[self.dialect].read(self.body)

    def chain(self) -> list[bytes]:
        """The canonical form of every item, leading system items included."""
        canonical = REQUESTS[self.dialect].canonical
        return [canonical_dumps(canonical(loads(item.raw))) for item in self.read().items]


def capture(name: str) -> Capture:
    told = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    body = json.dumps(told["body"], ensure_ascii=False, separators=(",", ":")).encode()
    return Capture(name, _DIALECTS[told["path"]], dict(told["headers"]), body)


def names() -> list[str]:
    """Every capture that holds a conversation: not the WebSocket upgrade, not a call to `/responses/compact`."""
    found = []
    for file in sorted(FOLDER.glob("*.json")):
        told = json.loads(file.read_text(encoding="utf-8"))
        if told["body"] and told["path"] in _DIALECTS:
            found.append(file.stem)
    return found
