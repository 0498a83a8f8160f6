"""What an idle worker holds, with 500 open streams, and what each conversation that it has seen adds.

A gateway of its own for each size of conversation. Two sizes tell what belongs to a conversation from what belongs to
its items (the memo).
"""

from __future__ import annotations

from rig.bodies import write
from rig.gateways import Gateway
from rig.measure import Bench, put_down
from rig.scenarios import BY_NAME

WARM, COUNTED = 400, 1_200
"""Conversations sent before memory is read first, and from then on."""
SHORT, LONG = 1, 16
"""Turns of the conversations; a turn has two items, or three."""


def memory(bench: Bench, gateway: Gateway) -> dict[str, float]:
    """MB of an idle worker, and with 500 streams; KB of a conversation without its items, and bytes of an item."""
    idle, short_kb, short_items = _of_turns(bench, gateway, SHORT)
    _, long_kb, long_items = _of_turns(bench, gateway, LONG)
    item_kb = max(0.0, (long_kb - short_kb) / (long_items - short_items))  # a bounded memo may be full
    return {
        "idle_mb": idle,
        "streams_mb": _of_streams(bench, gateway),
        "conversation_kb": short_kb - item_kb * short_items,
        "item_bytes": item_kb * 1024,
        "short_kb": short_kb,
        "long_kb": long_kb,
    }


def _of_streams(bench: Bench, gateway: Gateway) -> float:
    """MB at most while 500 streams are open, in a worker that has done nothing else."""
    live = bench.bring_up(gateway)
    try:
        return bench.run(live, BY_NAME["streams_500"], 1)["rss_mb"]
    finally:
        put_down([live])


def _of_turns(bench: Bench, gateway: Gateway, turns: int) -> tuple[float, float, int]:
    """MB idle, KB a conversation of so many turns, and its items."""
    written = write(bench.api, 40_000, turns=turns)
    file = bench.folder / f"memory-{turns}.sessions"
    file.write_bytes(written.sessions(turns))
    items = written.whole().count(b'{"role":') + written.whole().count(b'{"type":"function_call')
    live = bench.bring_up(gateway)
    try:
        bench.upstream.set(stream=0)
        arguments = ("-g", str(file), "-c", "4")
        bench.load.run(live.port, bench.path, *arguments, "-n", str(WARM), "-k", "1")
        assert live.running is not None
        before = live.running.rss_mb()
        bench.load.run(live.port, bench.path, *arguments, "-n", str(COUNTED), "-k", str(WARM * 10))
        after = live.running.rss_mb()
    finally:
        put_down([live])
    return live.idle_mb, (after - before) * 1024 / COUNTED, items
