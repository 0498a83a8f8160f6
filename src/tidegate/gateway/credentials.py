"""Whose request it is: the credential in its headers, the tenant it stands for, the key to add where there is none.

Never logs or returns a credential but to the upstream's headers. Called by the app once a request.
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

ACCOUNT_CLAIM = ("https://api.openai.com/auth", "chatgpt_account_id")
"""Where a ChatGPT login's token names its account; the tokens themselves rotate within the hour."""

ACCEPTED_KEPT = 4096


def credential(headers: Headers) -> bytes:
    """The secret a request carries, without its scheme; empty where it carries none."""
    found = {name: value for name, value in headers if name in CREDENTIAL_HEADERS}
    for name in CREDENTIAL_HEADERS:
        value = found.get(name, b"").strip()
        if value:
            scheme, _, secret = value.partition(b" ")
            return secret.strip() if secret and scheme.lower() in (b"bearer", b"basic") else value
    return b""


def with_key(
    headers: list[tuple[bytes, bytes]], provider: Provider, environ: Mapping[str, str]
) -> list[tuple[bytes, bytes]]:
    """The headers, with the provider's own key from the environment where the client sent no credential."""
    if credential(headers):
        return headers
    key = environ.get(provider.auth.env, "") if provider.auth.env else ""
    if not key:
        return headers
    added = [(name.encode(), value.encode()) for name, value in provider.auth.headers(key).items()]
    names = {name for name, _ in added}
    return [*((name, value) for name, value in headers if name not in names), *added]


class Tenants:
    """Credentials to tenants.

    A tenant is the keyed hash of the credential, or of the account named in a token, but only once an upstream has
    accepted that very token: its claims are not verified here.
    """

    def __init__(self, hasher: Hasher) -> None:
        self._hasher = hasher
        self._accounts: OrderedDict[bytes, bytes] = OrderedDict()

    def of(self, secret: bytes, scope: bytes) -> bytes:
        """The tenant of a credential; `scope` keeps requests without one apart by where their key comes from."""
        own = self._hasher.tenant(b"credential\0" + secret if secret else b"scope\0" + scope)
        return self._accounts.get(own, own)

    def accepted(self, secret: bytes) -> None:
        """An upstream has answered this credential with success."""
        if secret.count(b".") != 2:
            return
        own = self._hasher.tenant(b"credential\0" + secret)
        if own in self._accounts:
            return
        account = _account(secret)
        if account:
            self._accounts[own] = self._hasher.tenant(b"account\0" + account)
            if len(self._accounts) > ACCEPTED_KEPT:
                self._accounts.popitem(last=False)


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
