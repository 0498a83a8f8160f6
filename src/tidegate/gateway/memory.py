"""How memory is dealt with while requests are served: bodies' is kept for the next ones and given back in quiet times;
what stays is not looked through again.

Knows the switches of glibc and of Python's collector; without glibc the first does nothing. Called by what serves.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT: Final = 64 << 20
"""Bytes of freed memory that are kept."""
_MAPPED: Final = 32 << 20
"""Bytes from which an allocation is a mapping of its own; glibc allows no more."""

_COLLECT_AFTER: Final = (20_000, 20, 20)
"""Objects made beyond those freed, then rounds, until circles are looked for in each generation."""

_kept = False


def keep() -> bool:
    """Makes freed memory stay with the process. Returns whether this library can.

    Left alone, glibc maps large bodies anew, or gives their memory back to the system, each time; the page faults then
    cost more than all the rest of reading a body (measured, 1 MB: 850 µs a request, and 340 with the memory kept).
    """
    global _kept
    if sys.platform.startswith("linux"):
        try:
            mallopt = ctypes.CDLL(None).mallopt
        except (AttributeError, OSError):
            return False
        _kept = bool(mallopt(_M_TRIM_THRESHOLD, _KEPT)) and bool(mallopt(_M_MMAP_THRESHOLD, _MAPPED))
    return _kept


def settle() -> None:
    """What is there by now stays: the collector of circles need not look at it again, and need not look often.

    Requests leave no circles behind; what a rare fault leaves can wait. At its own pace the collector took a sixth of a
    small request's time (measured).
    """
    gc.collect()
    release()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)


def release() -> None:
    """Gives back what is free, if it was kept."""
    if _kept:
        ctypes.CDLL(None).malloc_trim(0)
