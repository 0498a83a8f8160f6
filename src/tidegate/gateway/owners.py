"""Which of several keys has made what a client brings back: compactions that it sealed, responses that it keeps.

Keeps keyed hashes of what passed, and names of keys; no contents. Called by the relay, for the client's own calls, and
for conversations that hold or name what only one account can read.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from tidegate.context.fingerprint import Hasher
from tidegate.upstream.client import Answer
from tidegate.upstream.http import Headers
from tidegate.wire.answers import read_object
from tidegate.wire.body import item_value
from tidegate.wire.conversation import Conversation, JsonObject
from tidegate.wire.jsontext import loads
from tidegate.wire.responses import COMPACTIONS
from tidegate.wire.untyped import text_at

KEPT = 4096
"""Compactions whose key is remembered, of one provider."""

LARGEST = 16 << 20
"""Bytes of an answer that is looked at."""

_LOOKED_AT: Final = 4096
"""Bytes at the beginning of an answer to a conversation in which its id is looked for."""

_HELD: Final = ("previous_response_id", "conversation")

_ID: Final = re.compile(rb'"id"\s*:\s*"([^"\\]{1,200})"')
_LACKS: Final = re.compile(
    rb"with id '[^']{1,200}' not found|previous_response_not_found|invalid_encrypted_content"
    rb"|encrypted content (?:for item \S+ )?could not be (?:verified|decrypted)",
    re.IGNORECASE,
)


def lacks(told: bytes) -> bool:
    """Whether a refusal says that the account has nothing of that name, or can't read what is sealed."""
    return _LACKS.search(told) is not None


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


def named_in(conversation: Conversation) -> Iterator[str]:
    """Ids of what the provider holds of a history."""
    return _names({name: loads(raw) for name in _HELD if (raw := conversation.field(name))})


def named_by(body: bytes) -> Iterator[str]:
    """The same of a body without items."""
    return _names(read_object(body) or {})


def _names(fields: JsonObject) -> Iterator[str]:
    for name in _HELD:
        value = fields.get(name)
        told = value.get("id") if isinstance(value, dict) else value
        if isinstance(told, str) and told:
            yield told


class Noting:
    """The same answer, of which the ids at its beginning are noted as it passes."""

    __slots__ = ("_answer", "_note", "_seen")

    def __init__(self, answer: Answer, note: Callable[[Iterable[str]], None]) -> None:
        self._answer, self._note = answer, note
        self._seen = bytearray()

    @property
    def status(self) -> int:
        """See `Answer`."""
        return self._answer.status

    @property
    def headers(self) -> Headers:
        """See `Answer`."""
        return self._answer.headers

    async def read(self) -> bytes:
        """See `Answer`."""
        piece = await self._answer.read()
        if piece and len(self._seen) < _LOOKED_AT:
            self._look(piece)
        return piece

    async def read_all(self, limit: int) -> bytes:
        """See `Answer`."""
        whole = await self._answer.read_all(limit)
        self._look(whole)
        return whole

    async def close(self) -> None:
        """See `Answer`."""
        await self._answer.close()

    def abandon(self) -> None:
        """See `Answer`."""
        self._answer.abandon()

    def _look(self, piece: bytes) -> None:
        self._seen += piece[: _LOOKED_AT - len(self._seen)]
        self._note([found.decode("utf-8", "replace") for found in _ID.findall(self._seen)[:4]])


def sealed_by(body: bytes) -> Iterator[str]:
    """What is sealed in the compactions of an answer to a compaction call."""
    output = (read_object(body) or {}).get("output")
    for item in output if isinstance(output, list) else ():
        yield from _sealed(item)


def _sealed(item: object) -> Iterator[str]:
    value: JsonObject = item if isinstance(item, dict) else {}
    if text_at(value, "type") in COMPACTIONS and (sealed := text_at(value, "encrypted_content")):
        yield sealed
