"""Several keys of one provider, for clients that send none: which conversation uses which, and which of them rest.

Knows variables, headers and statuses; no conversation. Called for every conversation of such a provider.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidegate.context.fingerprint import Hasher
from tidegate.gateway.credentials import credential
from tidegate.gateway.owners import Noting, Owners, lacks
from tidegate.gateway.peeked import Peeked
from tidegate.providers import Provider
from tidegate.upstream.client import Answer
from tidegate.upstream.http import Headers

RESTS: Final[Mapping[int, float]] = {401: 600.0, 402: 600.0, 403: 600.0, 429: 30.0}
"""Statuses that are meant for the key, and for how many seconds it rests where the answer does not say."""

LACKING: Final = frozenset({400, 404})
"""Statuses with which an account says that what a request names or holds is none of its own."""

LONGEST: Final = 3600.0
"""Seconds that a key rests at most, whatever an answer says."""


class Keyring:
    """The keys of one provider, by names that tell nothing of them. Used by one event loop."""

    __slots__ = ("_clock", "_hasher", "_keys", "_until", "owners")

    def __init__(
        self,
        keys: Mapping[str, str],
        hasher: Hasher,
        clock: Callable[[], float] = time.monotonic,
        rests: dict[str, float] | None = None,
        owners: Owners | None = None,
    ) -> None:
        """`rests`: until when keys rest, by their names and that clock, as another keyring of the provider left it; so
        with `owners`, which tell whose the compactions are that clients bring."""
        self._keys, self._hasher, self._clock = dict(keys), hasher, clock
        self._until: dict[str, float] = {} if rests is None else rests
        self.owners = Owners(hasher) if owners is None else owners

    def __repr__(self) -> str:
        """What may be shown of it."""
        return f"Keyring({len(self._keys)} keys)"

    def order(self, conversation: bytes) -> list[str]:
        """The names as one conversation prefers them: always the same for it, in every process with the same store key,
        so that its provider finds it in that key's cache and what only that key can read is sent with it; evenly spread
        over conversations; and where a key is added or taken away, most conversations keep theirs (rendezvous
        hashing). Those that rest come last."""
        now = self._clock()
        preferred = sorted(
            self._keys, key=lambda name: self._hasher.mix(b"credential", name.encode(), conversation), reverse=True
        )
        return sorted(preferred, key=lambda name: max(0.0, self._until.get(name, 0.0) - now))

    def order_for(self, conversation: bytes, sealed: Iterable[str]) -> list[str]:
        """The same for one that holds these compactions: the key that has sealed them comes first, if it is known."""
        names, own = self.order(conversation), self.owners.of(sealed)
        return sorted(names, key=lambda name: name != own) if own else names

    def rested(self, names: Sequence[str]) -> tuple[str, ...]:
        """Those of them that do not rest; all, where none is left."""
        now = self._clock()
        return tuple(name for name in names if self._until.get(name, 0.0) <= now) or tuple(names)

    def key(self, name: str) -> str:
        """The key of that name."""
        return self._keys[name]

    def refused(self, name: str, status: int, headers: Headers) -> bool:
        """Whether a status is meant for the key; then it rests."""
        seconds = RESTS.get(status)
        if seconds is None:
            return False
        self._until[name] = self._clock() + min(LONGEST, _said(headers) or seconds)
        return True

    def served(self, name: str) -> None:
        """It works again."""
        if self._until:
            self._until.pop(name, None)


def _said(headers: Headers) -> float:
    """Seconds in a `Retry-After`, 0 where there is none in seconds."""
    value = next((value for name, value in headers if name.lower() == b"retry-after"), b"")
    try:
        return max(0.0, float(value))
    except ValueError:
        return 0.0


class Keyrings:
    """The keyrings of all providers that have several keys."""

    def __init__(self, hasher: Hasher, environ: Mapping[str, str], before: Keyrings | None = None) -> None:
        """`before`: those of other provider files; a key that rests there rests here."""
        self._hasher, self._environ = hasher, environ
        self._known: dict[str, Keyring | None] = {}
        self._rests: dict[str, dict[str, float]] = {} if before is None else before._rests
        self._owners: dict[str, Owners] = {} if before is None else before._owners

    def of(self, provider: Provider, headers: Headers) -> Keyring | None:
        """A provider's keys, None where it has one at most or the client brings its own."""
        name = provider.name
        if name not in self._known:
            self._known[name] = self._make(provider)
        keyring = self._known[name]
        return None if keyring is None or credential(headers, provider) else keyring

    def _make(self, provider: Provider) -> Keyring | None:
        keys = [key for env in provider.auth.envs if (key := self._environ.get(env, "").strip())]
        named = {self._hasher.mix(b"key", key.encode())[:8].hex(): key for key in keys}
        if len(named) < 2:
            return None
        owners = self._owners.setdefault(provider.name, Owners(self._hasher))
        return Keyring(named, self._hasher, rests=self._rests.setdefault(provider.name, {}), owners=owners)


def _always(status: int, told: bytes, headers: Headers) -> bool:
    return True


def _lacks(status: int, told: bytes, headers: Headers) -> bool:
    return lacks(told)


@dataclass(slots=True)
class Turns:
    """The keys that one request may go out with, in turn."""

    keyring: Keyring
    names: tuple[str, ...]
    headers: Callable[[str], Headers]
    """The headers with the key of that name."""
    bound: bool = False
    """The request holds what only the first key's account may read."""
    meant: Callable[[int, bytes, Headers], bool] = _always
    """Whether a refusal is meant for the key, by its words: an overflow may come as a 403 or a 429 too."""
    lacks: Callable[[int, bytes, Headers], bool] = _lacks
    """Whether a refusal says, by its words, that the account has not got what the request is bound to."""
    held: tuple[str, ...] = ()
    """What binds the request, as far as it has names."""
    notes: bool = False
    """The answer may be what a later request is bound to."""
    spent: list[str] = field(default_factory=list)
    """Keys that were refused for this request."""
    strange: bool = False
    """The last of them was refused since its account has not got what the request is bound to."""

    @property
    def name(self) -> str:
        """The key to begin with where none is named."""
        return next((name for name in self.names if name not in self.spent), self.names[0])

    def asks(self, status: int) -> bool:
        """Whether the words of an answer of that status decide."""
        return status in RESTS or (self.bound and status in LACKING)

    def refused(self, name: str, status: int, headers: Headers, told: bytes = b"") -> bool:
        """Whether an answer to a request with that key is meant for the key, which rests then."""
        self.strange = self.bound and status in LACKING and self.lacks(status, told, headers)
        if self.strange:
            self.spent.append(name)
            return True
        if status in RESTS and not self.meant(status, told, headers):
            return False
        if not self.keyring.refused(name, status, headers):
            if status < 300:
                self.keyring.served(name)
            return False
        self.spent.append(name)
        return True

    @property
    def following(self) -> str:
        """The key to ask next, empty where there is none that may be: what one account alone can read goes to another
        only where it turns out to be that one's."""
        if self.bound and not self.strange:
            return ""
        return next((name for name in self.names if name not in self.spent), "")

    async def ask(self, send: Callable[[str], Awaitable[Answer]], credential: str = "") -> tuple[Answer, str]:
        """(the answer, the name of the key that it is for), where `send` sends the request with a named key. Where
        `credential` names none, another is asked in the place of a refused one."""
        name = credential or self.name
        answer = await send(name)
        while True:
            told = b""
            if self.asks(answer.status):
                answer = peeked = Peeked(answer)
                told = await peeked.beginning()
            refused = self.refused(name, answer.status, answer.headers, told)
            if not refused or (credential and not self.strange) or not self.following:
                return self._served(answer, name), name
            await answer.close()
            name = self.following
            answer = await send(name)

    def _served(self, answer: Answer, name: str) -> Answer:
        """An answer to a request with that key, which is remembered for what came with it."""
        if answer.status != 200:
            return answer
        owners = self.keyring.owners
        owners.minted(self.held, name)
        return Noting(answer, lambda ids: owners.minted(ids, name)) if self.notes else answer
