"""Whose request it is: the credential in its headers, the tenant it stands for, the key to add where there is none.

Never logs or returns a credential but to the upstream's headers. Called once a request.
"""

from __future__ import annotations

import base64
import binascii
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec

from tidegate.context.fingerprint import Hasher
from tidegate.providers import Provider

Headers = Sequence[tuple[bytes, bytes]]

CREDENTIAL_HEADERS = (b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key")

SCHEMES = frozenset({b"bearer", b"basic", b"token"})

SECRET_WORDS = (b"auth", b"key", b"token", b"secret", b"credential", b"password")
"""A header whose name holds one of these tells callers apart: gateways and clouds have many names for a key."""

NO_SECRETS = frozenset({b"idempotency-key", b"x-idempotency-key", b"sec-websocket-key", b"x-client-request-key"})
"""Names that hold such a word and mean one request, not one caller."""

SECRET_PARAMETERS = frozenset({b"key", b"api_key", b"api-key", b"apikey", b"access_token", b"token", b"code", b"sig"})
"""Query parameters that carry a key."""

ACCOUNT_CLAIM = "https://api.openai.com/auth"
ACCOUNT_NAMES = ("chatgpt_account_id", "chatgpt_user_id", "user_id")
"""Where a ChatGPT login's token names its account and the person in it; the tokens themselves rotate."""

ACCEPTED_KEPT = 4096

OWN_KEPT = 256
"""Credentials whose hash is remembered; the headings of as many clients hold them anyway."""


def credential(headers: Headers, provider: Provider) -> bytes:
    """The secret a request carries for this provider, without its scheme; empty where it carries none."""
    own = (provider.auth.header or "").lower().encode()
    wanted = (*CREDENTIAL_HEADERS, own) if own else CREDENTIAL_HEADERS
    return next((secret for name, value in headers if name in wanted and (secret := _secret(value))), b"")


def identity(headers: Headers, query: bytes, provider: Provider) -> bytes:
    """All that tells one caller from another: every secret of a request, in a fixed order; empty where it has none.

    Different secrets are one identity together: which of them an upstream looks at is its own affair, and one that many
    people share (a placeholder) must not make them one tenant. Cookies count where there is nothing else.
    """
    own = provider.auth.header.lower().encode() if provider.auth.header else b""
    found = sorted({secret for name, value in headers if _tells(name, own) and (secret := _secret(value))})
    for parameter in query.split(b"&") if query else ():
        name, _, value = parameter.partition(b"=")
        if value and name.lower() in SECRET_PARAMETERS:
            found.append(parameter)
    if not found:
        found = sorted(value for name, value in headers if name == b"cookie" and value)
    return b"\0".join(found)


def _tells(name: bytes, own: bytes) -> bool:
    return name == own or _secretive(name)


@lru_cache(maxsize=1024)
def _secretive(name: bytes) -> bool:
    return name not in NO_SECRETS and any(word in name for word in SECRET_WORDS)


def _secret(value: bytes) -> bytes:
    """The value without its scheme; empty where there is but a scheme, as clients without a key send it."""
    scheme, _, rest = value.strip().partition(b" ")
    return rest.strip() if scheme.lower() in SCHEMES else value.strip()


def with_key(
    headers: list[tuple[bytes, bytes]], provider: Provider, environ: Mapping[str, str], key: str = ""
) -> list[tuple[bytes, bytes]]:
    """The headers, with this key of the provider's, or its own from the environment (of several the first that is
    set), where the client sent no credential."""
    key = key or next((key for env in provider.auth.envs if (key := environ.get(env, ""))), "")
    if not key or credential(headers, provider):
        return headers
    added = [(name.encode(), value.encode()) for name, value in provider.auth.headers(key).items()]
    replaced = {*CREDENTIAL_HEADERS, *(name for name, _ in added)}
    return [*((name, value) for name, value in headers if name not in replaced), *added]


class Tenants:
    """Credentials to tenants.

    A tenant is the keyed hash of the credential, or of the account named in a token, but only at the endpoint that has
    accepted that very token for a conversation: its claims are not verified here, and another upstream may take any.
    """

    def __init__(self, hasher: Hasher) -> None:
        self._hasher = hasher
        self._accounts: OrderedDict[tuple[bytes, str], bytes] = OrderedDict()
        self._owns: dict[bytes, bytes] = {}

    def of(self, secret: bytes, endpoint: str) -> bytes:
        """The tenant of a credential at an API root; requests without one are one tenant there."""
        own = self._own(secret) if secret else self._hasher.tenant(b"endpoint\0" + endpoint.encode())
        return self._accounts.get((own, endpoint), own)

    def accepted(self, secret: bytes, endpoint: str) -> None:
        """The upstream at that API root has served a conversation to this credential."""
        if secret.count(b".") != 2:
            return
        known = self._own(secret), endpoint
        if known in self._accounts:
            self._accounts.move_to_end(known)
            return
        account = _account(secret)
        if account:
            self._accounts[known] = self._hasher.tenant(b"account\0" + endpoint.encode() + b"\0" + account)
            if len(self._accounts) > ACCEPTED_KEPT:
                self._accounts.popitem(last=False)

    def _own(self, secret: bytes) -> bytes:
        own = self._owns.get(secret)
        if own is None:
            if len(self._owns) >= OWN_KEPT:
                self._owns.clear()
            own = self._owns[secret] = self._hasher.tenant(b"credential\0" + secret)
        return own


def _account(token: bytes) -> bytes:
    """The account and the person a JWT names, empty where it names no account."""
    payload = token.split(b".")[1]
    try:
        claims = msgspec.json.decode(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))
    except (binascii.Error, ValueError, msgspec.DecodeError):
        return b""
    section = claims.get(ACCOUNT_CLAIM) if isinstance(claims, dict) else None
    names = [section.get(name) for name in ACCOUNT_NAMES] if isinstance(section, dict) else [None]
    if not isinstance(names[0], str) or not names[0]:
        return b""
    return b"\0".join(name.encode() if isinstance(name, str) else b"" for name in names)
