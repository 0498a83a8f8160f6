"""Which of several keys has sealed the compactions that a client brings back.

Keeps keyed hashes of what passed, and names of keys; no contents. Called by the relay, for the client's own calls, and
for conversations that hold what only one account can read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from tidegate.context.fingerprint import Hasher
from tidegate.wire.answers import read_object
from tidegate.wire.body import item_value
from tidegate.wire.conversation import Conversation, JsonObject
from tidegate.wire.responses import COMPACTIONS
from tidegate.wire.untyped import text_at

KEPT = 4096
"""Compactions whose key is remembered, of one provider."""

LARGEST = 16 << 20
"""Bytes of an answer that is looked at."""


class Owners:
    """Compactions, by what is sealed in them, and the names of their keys. Bounded; for one process."""

    def __init__(self, hasher: Hasher) -> None:
        self._hasher = hasher
        self._names: OrderedDict[bytes, str] = OrderedDict()

    def minted(self, sealed: Iterable[str], name: str) -> None:
        """These came in an answer to that key."""
        for one in sealed:
            self._names[self._key(one)] = name
            if len(self._names) > KEPT:
                self._names.popitem(last=False)

    def of(self, sealed: Iterable[str]) -> str:
        """The key of the newest of them that is known; empty for none."""
        return next((name for one in reversed([*sealed]) if (name := self._names.get(self._key(one), ""))), "")

    def _key(self, sealed: str) -> bytes:
        return self._hasher.mix(b"sealed", sealed.encode("utf-8", "surrogatepass"))


def sealed_in(conversation: Conversation) -> Iterator[str]:
    """What is sealed in the compactions of a history, in order."""
    for item in conversation.items:
        if b"encrypted_content" in item.raw:
            yield from _sealed(item_value(item))


def sealed_by(body: bytes) -> Iterator[str]:
    """What is sealed in the compactions of an answer to a compaction call."""
    output = (read_object(body) or {}).get("output")
    for item in output if isinstance(output, list) else ():
        yield from _sealed(item)


def _sealed(item: object) -> Iterator[str]:
    value: JsonObject = item if isinstance(item, dict) else {}
    if text_at(value, "type") in COMPACTIONS and (sealed := text_at(value, "encrypted_content")):
        yield sealed
