"""What a history is called: keyed hashes of items, chained, so that a checkpoint is addressed by what it
replaces.

Knows what may differ between two sendings of one history; knows no storage and no sizes. Called by the ledger
and the engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, get_args

from blake3 import blake3

from tidegate.context.chain import Chain
from tidegate.context.links import LINK_BYTES
from tidegate.wire import REQUESTS
from tidegate.wire.conversation import Conversation, DialectName, JsonValue, UnreadableBody
from tidegate.wire.jsontext import canonical_dumps, loads

KEY_BYTES: Final = 32

# Claude Code puts a line into the system prompt whose digits follow the first user message, so they change
# whenever it compacts; the line says nothing to the model.
_VOLATILE: Final = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")


class Hasher:
    """Hashes under one secret key; replicas that share the key name the same history alike.

    Each purpose has its own key, derived from the secret, so that a hash of one kind never equals one of
    another.
    """

    __slots__ = ("_bodies", "_chain", "_head", "_items", "_mix", "_raw", "_tenant")

    def __init__(self, key: bytes) -> None:
        """`key` is 32 secret bytes; raises `ValueError` for any other length."""
        if len(key) != KEY_BYTES:
            raise ValueError(f"the hashing key has {len(key)} bytes, {KEY_BYTES} are needed")

        def derive(purpose: str) -> bytes:
            return blake3(key, derive_key_context=f"tidegate v1 {purpose}").digest()

        self._items = {name: derive(f"item {name}") for name in get_args(DialectName)}
        self._bodies = {name: derive(f"body {name}") for name in get_args(DialectName)}
        self._raw = derive("raw")
        self._tenant = derive("tenant")
        self._head = derive("head")
        self._chain = derive("chain")
        self._mix = derive("mix")

    def item(self, dialect: DialectName, canonical: bytes) -> bytes:
        """Fingerprint of an item's canonical form, 32 bytes."""
        return blake3(canonical, key=self._items[dialect]).digest()

    def raw(self, raw: bytes) -> bytes:
        """Hash of bytes as they came, 32 bytes: for remembering what was already read."""
        return blake3(raw, key=self._raw).digest()

    def tenant(self, credential: bytes) -> bytes:
        """Name of whoever holds a credential, 16 bytes; the credential can't be had back from it."""
        return blake3(credential, key=self._tenant).digest(length=16)

    def mix(self, *parts: bytes) -> bytes:
        """Hash of several byte strings, 32 bytes; where one ends and the next begins counts."""
        return blake3(_framed(parts), key=self._mix).digest()

    def chain(self, tenant: bytes, dialect: DialectName, fingerprints: Iterable[bytes]) -> Chain:
        """The chain of a history, from the fingerprints of its items."""
        link = blake3(_framed((tenant, dialect.encode())), key=self._chain).digest()
        return self.longer(Chain(tenant, dialect, link), fingerprints)

    def longer(self, chain: Chain, fingerprints: Iterable[bytes]) -> Chain:
        """The chain of a history with more items at its end."""
        key, link = self._chain, chain.joined[-LINK_BYTES:]
        links = [chain.joined]
        for fingerprint in fingerprints:
            link = blake3(link + fingerprint, key=key).digest()
            links.append(link)
        return Chain(chain.tenant, chain.dialect, b"".join(links), chain.bucket)

    def prefix(self, dialect: DialectName) -> blake3:
        """A running hash of a body's beginning, under a key of its own for each dialect: `update` and `digest` (32
        bytes) by turns."""
        return blake3(key=self._bodies[dialect])

    def head(self, conversation: Conversation) -> bytes:
        """Hash of what stands before the chain: system prompt, leading system items and tools, 32 bytes.

        JSON spacing, key order, `cache_control` of system blocks and of tools, and known volatile lines make
        no difference. Raises `UnreadableBody` where a part of it is not JSON.
        """
        requests = REQUESTS[conversation.dialect]
        lead: list[JsonValue] = []
        for index in range(conversation.lead):
            value = _read(conversation.item_raw(index))
            if not isinstance(value, dict):
                raise UnreadableBody("a leading item is not an object")
            plain = requests.canonical(value)
            if isinstance(plain, dict) and "content" in plain:
                plain = {**plain, "content": _blocks(plain["content"])}
            lead.append(plain)
        system = _blocks(_read(conversation.system)) if conversation.system else []
        tools = _tools(_read(conversation.tools)) if conversation.tools else []
        form: JsonValue = [system, lead, tools]
        return blake3(canonical_dumps(form), key=self._head).digest()


def _framed(parts: Sequence[bytes]) -> bytes:
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def _read(raw: bytes) -> JsonValue:
    try:
        return loads(raw)
    except (ValueError, RecursionError) as error:
        raise UnreadableBody("system prompt or tools are not JSON") from error


def _blocks(value: JsonValue) -> JsonValue:
    """A system text or its list of blocks: one form for both, without cache marks and volatile lines."""
    if value is None:
        return []
    if isinstance(value, str):
        value = [{"type": "text", "text": value}]
    if not isinstance(value, list):
        return value
    blocks: list[JsonValue] = []
    for block in value:
        if not isinstance(block, dict):
            blocks.append(block)
            continue
        block = {name: part for name, part in block.items() if name != "cache_control"}
        text = block.get("text")
        if isinstance(text, str) and (match := _VOLATILE.match(text)):
            rest = text[match.end() :]
            if not rest.strip():
                continue
            block["text"] = rest
        blocks.append(block)
    return blocks


def _tools(value: JsonValue) -> JsonValue:
    """Tools without cache marks; a property of that name inside a tool's schema stays."""
    if not isinstance(value, list):
        return value
    return [
        {name: part for name, part in tool.items() if name != "cache_control"} if isinstance(tool, dict) else tool
        for tool in value
    ]
