"""Whether a turn ever waits for a compaction: an agent at its own pace, a provider whose summaries take seconds.

Tidegate has the time between turns to prepare a compaction in the background.
"""

from __future__ import annotations

import time
from pathlib import Path

from rig.agent import Agent, Turn
from rig.gateways import Gateway
from rig.processes import stop
from rig.windowed import provide

WINDOW = 32_768
TURN_BYTES = 5_200
"""About 4 % of the window a turn: less than the band in which a compaction is prepared."""
TURNS = 26
"""Enough to fill the window a first time."""


def stall(folder: Path, gateway: Gateway, summary_seconds: float) -> dict[str, float]:
    """One session with turns every two times `summary_seconds`.

    A turn waited if it took at least half of a summary's time, or if Tidegate says that it compacted in it and had not
    prepared that. A session without any summary proves nothing: `summaries` tells.
    """
    folder.mkdir(parents=True)
    provider = provide(folder, WINDOW, summary_seconds)
    turns: list[Turn] = []
    try:
        running, port = provider.bring_up(gateway)
        agent = Agent("chat", "steps", f"http://127.0.0.1:{port}", TURN_BYTES, name="stall")
        began = time.monotonic()
        for number in range(TURNS):
            time.sleep(max(0.0, began + number * 2 * summary_seconds - time.monotonic()))
            turns.append(agent.act())
        if running is not None:
            stop([running])
        summaries = sum(not note["own"] for note in provider.notes())
    finally:
        stop([provider.running])
    waited = [
        turn
        for turn in turns
        if turn.seconds >= summary_seconds / 2
        or (turn.action in ("compacted", "recovered") and turn.reason != "prepared")
    ]
    return {
        "waited": float(len(waited)),
        "summaries": float(summaries),
        "prepared": float(sum(turn.reason == "prepared" for turn in turns)),
        "replayed": float(sum(turn.action == "replayed" for turn in turns)),
        "failures": float(sum(turn.status != 200 for turn in turns)),
        "longest_ms": max(turn.seconds for turn in turns) * 1000,
    }
