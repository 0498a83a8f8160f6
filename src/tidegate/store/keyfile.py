"""The secret of an installation: from the environment, or made on first start and kept in a private file.

Knows where the key is and what it must look like; not what it is for. Called where a store is opened.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
import stat
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidegate.engine.checkpoint import StoreError
from tidegate.store.seal import derive

_SECRET_BYTES: Final = 32
_LARGEST_FILE: Final = 4096
_ALLOWED: Final = f"at least {_SECRET_BYTES} random bytes in base64 or hex (make one with: openssl rand -base64 32)"
_HEX: Final = re.compile(rb"[0-9a-fA-F]+")
_BASE64: Final = re.compile(rb"[A-Za-z0-9+/_-]+={0,2}")
_BEGUN_SECONDS: Final = 1.0
"""How long to wait for a process that has made the file but not filled it (file systems without links)."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The two keys of an installation, 32 bytes each, both from one secret."""

    hash_key: bytes = field(repr=False)
    """For fingerprints and tenants."""
    seal_key: bytes = field(repr=False)
    """For artifacts at rest."""

    @classmethod
    def of(cls, secret: bytes) -> Keys:
        """The keys that a secret of at least 32 bytes stands for."""
        return cls(hash_key=derive(secret, "hash v1"), seal_key=derive(secret, "seal key v1"))

    @classmethod
    def random(cls) -> Keys:
        """Keys for one process, kept nowhere."""
        return cls.of(secrets.token_bytes(_SECRET_BYTES))


def load_or_create(path: Path, env: str | None = None) -> Keys:
    """The keys of this installation.

    `env` is the secret itself, as an environment variable or the configuration gave it; it wins over the
    file. Else the secret is read from `path`, which is made (mode 0600, its folder 0700) if it is not there;
    processes that start at once agree on one. Raises `StoreError` where the value is not a key, or the file
    is unreadable or open to others.
    """
    if env is not None and env.strip():
        return Keys.of(_secret(env.strip().encode("utf-8", "replace"), "the store key given by the configuration"))
    try:
        text = _read(path)
        if text is None:
            _create(path)
            text = _read(path)
    except OSError as exc:
        raise StoreError(f"key file {path}: {exc.strerror or exc}") from None
    if text is None:
        raise StoreError(f"key file {path}: vanished while it was being made")
    return Keys.of(_secret(text, f"key file {path}"))


def _secret(text: bytes, source: str) -> bytes:
    """The bytes that `text` spells. Hex digits alone are hex: a hex key cut short is not taken for base64."""
    try:
        if _HEX.fullmatch(text):
            secret = binascii.unhexlify(text)
        elif _BASE64.fullmatch(text):
            bare = text.rstrip(b"=").replace(b"-", b"+").replace(b"_", b"/")
            secret = base64.b64decode(bare + b"=" * (-len(bare) % 4), validate=True)
        else:
            raise StoreError(f"{source}: is neither base64 nor hex; allowed: {_ALLOWED}")
    except binascii.Error:
        raise StoreError(f"{source}: is cut short or has a stray character; allowed: {_ALLOWED}") from None
    if len(secret) < _SECRET_BYTES:
        raise StoreError(f"{source}: {len(secret)} bytes are too few; allowed: {_ALLOWED}")
    return secret


def _read(path: Path) -> bytes | None:
    """Text of the key file, None where there is none."""
    patience = time.monotonic() + _BEGUN_SECONDS
    while True:
        try:
            with path.open("rb") as file:
                _check_private(path, os.fstat(file.fileno()))
                text = file.read(_LARGEST_FILE).strip()
        except FileNotFoundError:
            return None
        if text:
            return text
        if time.monotonic() > patience:
            raise StoreError(f"key file {path}: is empty; allowed: {_ALLOWED}. Remove it to have a new one made")
        time.sleep(0.02)


def _check_private(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"key file {path}: is not a file")
    if os.name == "posix" and status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise StoreError(
            f"key file {path}: mode {mode:04o} lets others at it; run: chmod 600 {path} "
            "(or give the key as TIDEGATE_STORE__KEY)"
        )


def _create(path: Path) -> None:
    """Makes the key file with a new secret, whole or not at all; one that exists by now is left as it is."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = base64.b64encode(secrets.token_bytes(_SECRET_BYTES)) + b"\n"
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(6)}")
    try:
        _write(draft, text)
        with suppress(FileExistsError):
            try:
                os.link(draft, path)
            except FileExistsError:
                raise
            except OSError:  # a file system without links: whoever makes the name first fills it
                _write(path, text)
    finally:
        draft.unlink(missing_ok=True)


def _write(path: Path, text: bytes) -> None:
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(fd, "wb") as file:
        if os.name == "posix":
            os.fchmod(fd, 0o600)  # whatever the umask took away
        file.write(text)
        file.flush()
        os.fsync(fd)
