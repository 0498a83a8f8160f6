"""Ids, signatures and sealed contents that only this simulator can have made.

Knows HMAC and the seed; verifies by computing, not by remembering, so one changed character is noticed.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error

from tidegate.simulator.jsontext import JsonObject, NotJson, decode, encode

_MAC = 16
_BOUND = 16


class Mint:
    """Makes and checks what a provider hands out. The same seed makes the same things in the same order."""

    def __init__(self, seed: int) -> None:
        self._secret = hashlib.sha256(f"tidegate simulator {seed}".encode()).digest()
        self._count = 0

    def id(self, prefix: str, length: int = 24) -> str:
        """A new id like `call_5f0c…`."""
        self._count += 1
        return prefix + self._mac("id", str(self._count).encode()).hex()[:length]

    def sign(self, family: str, thinking: str, bound: str = "") -> str:
        """Signature of a thinking text by the model family, bound to the hash of what precedes it where given."""
        prefix = bytes.fromhex(bound)[:_BOUND].ljust(_BOUND, b"\0") if bound else bytes(_BOUND)
        mac = self._mac("thinking", family.encode(), thinking.encode("utf-8", "surrogatepass"), prefix)
        return urlsafe_b64encode(b"\x12" + prefix + mac).decode()

    def signature_bound(self, family: str, thinking: str, signature: str) -> str | None:
        """The hash that a signature binds this text to (empty: to nothing), None where the signature is false."""
        raw = _unbase64(signature)
        if raw is None or len(raw) != 1 + _BOUND + _MAC:
            return None
        prefix = raw[1 : 1 + _BOUND]
        mac = self._mac("thinking", family.encode(), thinking.encode("utf-8", "surrogatepass"), prefix)
        if not hmac.compare_digest(mac, raw[1 + _BOUND :]):
            return None
        return prefix.hex() if any(prefix) else ""

    def seal(self, kind: str, payload: JsonObject) -> str:
        """A payload that clients carry but can't read or change, as `encrypted_content` is."""
        raw = encode(payload)
        return "gAAAA" + urlsafe_b64encode(self._mac(kind, raw) + _stir(raw, self._secret)).decode()

    def unseal(self, kind: str, sealed: str) -> JsonObject | None:
        """The payload, or None where the simulator did not seal it or a byte has changed."""
        raw = _unbase64(sealed.removeprefix("gAAAA")) if sealed.startswith("gAAAA") else None
        if raw is None:
            return None
        payload = _stir(raw[_MAC:], self._secret)
        if not hmac.compare_digest(self._mac(kind, payload), raw[:_MAC]):
            return None
        try:
            value = decode(payload)
        except NotJson:
            return None
        return value if isinstance(value, dict) else None

    def _mac(self, kind: str, *parts: bytes) -> bytes:
        digest = hmac.new(self._secret, kind.encode(), hashlib.sha256)
        for part in parts:
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        return digest.digest()[:_MAC]


def hash_of(*parts: bytes) -> str:
    """Short hash of byte strings, in hex, never all zeros."""
    digest = hashlib.blake2b(digest_size=_BOUND)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def _stir(data: bytes, secret: bytes) -> bytes:
    """Hides the payload's words from a reader of the wire; its own inverse. Not secrecy: the seed is public."""
    stream = hashlib.shake_256(secret).digest(len(data))
    return bytes(a ^ b for a, b in zip(data, stream, strict=True))


def _unbase64(text: str) -> bytes | None:
    try:
        raw = urlsafe_b64decode(text.encode("ascii"))
    except (Base64Error, ValueError, UnicodeError):
        return None
    return raw if urlsafe_b64encode(raw).decode() == text else None
