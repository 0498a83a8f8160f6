"""Whose request it is: the credential in its headers, the tenant it stands for, the key to add where there is none.

Never logs or returns a credential but to the upstream's headers. Called once a request.
"""

from __future__ import annotations

import base64
import binascii
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import msgspec

from tidegate.context.fingerprint import Hasher
from tidegate.providers import Provider

Headers = Sequence[tuple[bytes, bytes]]

CREDENTIAL_HEADERS = (b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key")

SCHEMES = frozenset({b"bearer", b"basic", b"token"})

ACCOUNT_CLAIM = ("https://api.openai.com/auth", "chatgpt_account_id")
"""Where a ChatGPT login's token names its account; the tokens themselves rotate within the hour."""

ACCEPTED_KEPT = 4096


def credential(headers: Headers) -> bytes:
    """The secret a request carries, without its scheme; empty where it carries none.

    Different secrets in several headers are one credential together: which of them an upstream looks at is its own
    affair, and one that many people share (a placeholder) must not make them one tenant.
    """
    secrets: list[bytes] = []
    for wanted in CREDENTIAL_HEADERS:
        for name, value in headers:
            if name == wanted and (secret := _secret(value)) and secret not in secrets:
                secrets.append(secret)
    return b"\0".join(secrets)


def _secret(value: bytes) -> bytes:
    """The value without its scheme; empty where there is but a scheme, as clients without a key send it."""
    scheme, _, rest = value.strip().partition(b" ")
    return rest.strip() if scheme.lower() in SCHEMES else value.strip()


def with_key(
    headers: list[tuple[bytes, bytes]], provider: Provider, environ: Mapping[str, str]
) -> list[tuple[bytes, bytes]]:
    """The headers, with the provider's own key from the environment where the client sent no credential."""
    key = environ.get(provider.auth.env, "") if provider.auth.env else ""
    if not key or credential(headers):
        return headers
    added = [(name.encode(), value.encode()) for name, value in provider.auth.headers(key).items()]
    return [*((name, value) for name, value in headers if name not in CREDENTIAL_HEADERS), *added]


class Tenants:
    """Credentials to tenants.

    A tenant is the keyed hash of the credential, or of the account named in a token, but only at the endpoint that has
    accepted that very token for a conversation: its claims are not verified here, and another upstream may take any.
    """

    def __init__(self, hasher: Hasher) -> None:
        self._hasher = hasher
        self._accounts: OrderedDict[tuple[bytes, str], bytes] = OrderedDict()

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
        return self._hasher.tenant(b"credential\0" + secret)


def _account(token: bytes) -> bytes:
    """The account a JWT names, empty where it names none."""
    payload = token.split(b".")[1]
    try:
        claims = msgspec.json.decode(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))
    except (binascii.Error, ValueError, msgspec.DecodeError):
        return b""
    section = claims.get(ACCOUNT_CLAIM[0]) if isinstance(claims, dict) else None
    account = section.get(ACCOUNT_CLAIM[1]) if isinstance(section, dict) else None
    return account.encode() if isinstance(account, str) else b""
