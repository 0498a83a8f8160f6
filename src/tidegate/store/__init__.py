"""Where checkpoints are kept: in one SQLite file, in memory, or not at all.

Knows kinds and places; nothing of a request. Called by the gateway and the clients at their start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, TypeAlias

import platformdirs

from tidegate.engine.checkpoint import Store, StoreError
from tidegate.store.capabilities import KeepsCapabilities, capabilities_in
from tidegate.store.keyfile import Keys, load_or_create
from tidegate.store.memory import MemoryStore
from tidegate.store.null import NullStore
from tidegate.store.seal import Sealer
from tidegate.store.sqlite import Kept, SqliteStore
from tidegate.store.windows import KeepsWindows, windows_in

__all__ = [
    "KeepsCapabilities",
    "KeepsWindows",
    "Kept",
    "Keys",
    "MemoryStore",
    "NullStore",
    "SqliteStore",
    "Store",
    "StoreError",
    "StoreKind",
    "capabilities_in",
    "default_key_file",
    "default_path",
    "load_or_create",
    "open_store",
    "windows_in",
]

StoreKind: TypeAlias = Literal["sqlite", "memory", "none"]

_MEMORY_BYTES: Final = 256 * 1024 * 1024
"""A store in memory takes no more than this, whatever is allowed on disk."""


def default_path() -> Path:
    """The SQLite file in the user's data folder."""
    return platformdirs.user_data_path("tidegate", appauthor=False) / "checkpoints.db"


def default_key_file() -> Path:
    """The key file in the user's data folder."""
    return platformdirs.user_data_path("tidegate", appauthor=False) / "key"


def open_store(
    kind: StoreKind,
    *,
    path: Path | None,
    keys: Keys,
    retention_days: float = 30,
    max_bytes: int = 1 << 30,
) -> Store:
    """A store of that kind; `path` None is the default place.

    Opens no file yet, so that a store that is down at the start costs replays only while it is down: ask
    `SqliteStore.check()` whether it works. `max_bytes` is of the file, or of memory (256 MiB at most).
    """
    match kind:
        case "sqlite":
            return SqliteStore(
                path or default_path(),
                Sealer(keys.seal_key),
                retention_days=retention_days,
                max_bytes=max_bytes,
            )
        case "memory":
            return MemoryStore(max_bytes=min(max_bytes, _MEMORY_BYTES), retention_days=retention_days)
        case "none":
            return NullStore()
