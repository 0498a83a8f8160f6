"""What a history is called: keyed hashes of items, chained, so that a checkpoint is addressed by what it
replaces.

Knows what may differ between two sendings of one history; knows no storage and no sizes. Called by the ledger
and the engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, get_args, overload

import msgspec
from blake3 import blake3

from tidegate.wire import REQUESTS
from tidegate.wire.conversation import Conversation, DialectName, JsonValue, UnreadableBody
from tidegate.wire.jsontext import canonical_dumps, loads

KEY_BYTES: Final = 32
LINK_BYTES: Final = 32

# Claude Code puts a line into the system prompt whose digits follow the first user message, so they change
# whenever it compacts; the line says nothing to the model.
_VOLATILE: Final = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")


class Links(Sequence[bytes]):
    """The links of a chain, cut out of all of them when asked for."""

    __slots__ = ("_count", "_joined")

    def __init__(self, joined: bytes) -> None:
        self._joined = joined
        self._count = len(joined) // LINK_BYTES

    def __len__(self) -> int:
        """One more than the chain has items."""
        return self._count

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[bytes, ...]: ...

    def __getitem__(self, index: int | slice) -> bytes | tuple[bytes, ...]:
        """A link, or several."""
        if isinstance(index, slice):
            return tuple(self[k] for k in range(*index.indices(self._count)))
        if index < 0:
            index += self._count
        if not 0 <= index < self._count:
            raise IndexError("the chain has no such link")
        return self._joined[index * LINK_BYTES : (index + 1) * LINK_BYTES]

    def __eq__(self, other: object) -> bool:
        """Equal to any sequence of the same links."""
        return tuple(self) == tuple(other) if isinstance(other, Links | tuple | list) else NotImplemented

    def __hash__(self) -> int:
        """Of the links."""
        return hash(self._joined)


class Prefixes(Mapping[int, bytes]):
    """Every length from 1 to n with its link."""

    __slots__ = ("_joined",)

    def __init__(self, joined: bytes) -> None:
        self._joined = joined

    def __getitem__(self, length: int) -> bytes:
        """The link of the first `length` items."""
        end = (length + 1) * LINK_BYTES
        if length < 1 or end > len(self._joined):
            raise KeyError(length)
        return self._joined[end - LINK_BYTES : end]

    def __contains__(self, length: object) -> bool:
        """Whether the history has as many items."""
        return isinstance(length, int) and 1 <= length <= len(self)

    def __iter__(self) -> Iterator[int]:
        """The lengths."""
        return iter(range(1, len(self) + 1))

    def __len__(self) -> int:
        """How many items the history has."""
        return len(self._joined) // LINK_BYTES - 1


class Chain(msgspec.Struct, frozen=True, gc=False):
    """The names of every beginning of one history: `links[k]` is the hash of its first k items, 32 bytes
    each.

    `links[0]` depends on tenant and dialect only, so no two tenants and no two dialects share a link.
    """

    tenant: bytes
    dialect: DialectName
    joined: bytes
    """All links, one after the other."""

    def __repr__(self) -> str:
        """What may be shown of it."""
        return f"Chain(dialect={self.dialect!r}, length={len(self)})"

    def __len__(self) -> int:
        """How many items the history has."""
        return len(self.joined) // LINK_BYTES - 1

    @property
    def links(self) -> Links:
        """The links, from the one of no items on."""
        return Links(self.joined)

    def link(self, length: int) -> bytes:
        """`links[length]` for a length that the history has."""
        return self.joined[length * LINK_BYTES : (length + 1) * LINK_BYTES]

    @property
    def bucket(self) -> bytes:
        """`links[1]`, under which a history's checkpoints are listed; empty for a history without items."""
        return self.joined[LINK_BYTES : 2 * LINK_BYTES]

    def prefixes(self) -> Mapping[int, bytes]:
        """Every length from 1 to n with its link."""
        return Prefixes(self.joined)

    def cut(self, length: int) -> Chain:
        """The chain of the first `length` items."""
        return Chain(self.tenant, self.dialect, self.joined[: (length + 1) * LINK_BYTES])


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
        return Chain(chain.tenant, chain.dialect, b"".join(links))

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
