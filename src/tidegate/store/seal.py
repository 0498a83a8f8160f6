"""Sealing of what rests on disk: AES-GCM, bound to the place it was sealed for.

Knows bytes only; not where the key comes from, not what is sealed. Called by the stores.
"""

from __future__ import annotations

import hmac
import os
from typing import Final

from tidegate.engine.checkpoint import StoreError

_VERSION: Final = b"\x01"
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_OVERHEAD: Final = len(_VERSION) + _NONCE_BYTES + _TAG_BYTES


def derive(secret: bytes, purpose: str) -> bytes:
    """A 32-byte key for one purpose, from a secret of at least 32 bytes (HKDF-SHA256, RFC 5869)."""
    if len(secret) < 32:
        raise ValueError("a secret needs at least 32 bytes")
    # One block of it: `cryptography` would do the same, and takes 7 MB of memory where nothing is ever sealed.
    extracted = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(extracted, f"tidegate {purpose}".encode() + b"\x01", "sha256")


class Sealer:
    """Seals and opens with one key. Safe to share between threads.

    Sealed form: a version byte, a random 96-bit nonce, the ciphertext with its 128-bit tag. `context` is
    authenticated and not kept: what was sealed for one place opens in no other.
    """

    __slots__ = ("_aead", "_tampered")

    def __init__(self, key: bytes) -> None:
        """`key`: at least 32 bytes; the cipher gets a sub-key of it."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._tampered = InvalidTag
        self._aead = AESGCM(derive(key, "seal v1"))

    def __repr__(self) -> str:
        """Says nothing of the key."""
        return "Sealer()"

    def seal(self, plain: bytes, context: bytes) -> bytes:
        """`plain`, sealed for `context`: 29 bytes longer than it was."""
        nonce = os.urandom(_NONCE_BYTES)
        return _VERSION + nonce + self._aead.encrypt(nonce, plain, _VERSION + context)

    def open(self, sealed: bytes, context: bytes) -> bytes:
        """What was sealed for `context`. Raises `StoreError` where key, context or bytes have changed."""
        if len(sealed) < _OVERHEAD:
            raise StoreError("a sealed record is cut short")
        if sealed[:1] != _VERSION:
            raise StoreError(f"a sealed record has version {sealed[0]}; this build reads version {_VERSION[0]}")
        nonce, body = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
        try:
            return self._aead.decrypt(nonce, body, _VERSION + context)
        except self._tampered:
            raise StoreError("a sealed record is damaged, or was sealed with another key") from None
