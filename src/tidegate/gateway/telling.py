"""Notices of an exchange in the log: numbers and names, never words.

Knows how loudly each is told. Called by the gateway and the client transports.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from tidegate.engine.effects import Notify

steps = logging.getLogger("tidegate.steps")

LEVELS: Final[Mapping[str, int]] = {"fault": logging.WARNING, "shadow": logging.INFO}
"""What is told by default: faults, and what would have been done. All else is for whoever looks closely."""


def tell(request_id: str, notice: Notify, *, quietly: bool = False) -> None:
    """Writes a notice to the log; `quietly`: for whoever looks closely, whatever it is."""
    level = logging.DEBUG if quietly else LEVELS.get(notice.event, logging.DEBUG)
    if steps.isEnabledFor(level):
        detail = " ".join(f"{key}={value}" for key, value in notice.detail.items())
        steps.log(level, "%s %s %s", request_id, notice.event, detail)
