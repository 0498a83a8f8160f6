"""The bars that `bench/gateway.py` holds Tidegate to, and the ratios that its short form watches.

docs/benchmarks.md explains each.
"""

from __future__ import annotations

from collections.abc import Callable

from rig.verdicts import Bar, Figures, added, median, ratio, total

Value = Callable[[Figures, str], float | None]

PLAIN, KEPT = "nginx-plain", "nginx"
"""nginx as a plain `proxy_pass`, whose multiple the bars are; and with its connections to the upstream kept, a setting
that few make: shown beside."""


def _times(scenario: str, metric: str, base: str) -> Value:
    return lambda figures, gateway: ratio(figures, scenario, metric, gateway, base)


def _against_nginx(
    point: int, what: str, scenario: str, metric: str, limit: float, stretch: float | None = None
) -> Bar:
    plain, kept = (_times(scenario, metric, base) for base in (PLAIN, KEPT))
    return Bar(point, f"{what}, against nginx", plain, limit, stretch=stretch, beside=kept)


def _less_than(peer: str, scenario: str) -> Value:
    return lambda figures, gateway: ratio(figures, scenario, "cpu_us", peer, gateway)


def _added_ms(scenario: str) -> Value:
    def value(figures: Figures, gateway: str) -> float | None:
        us = added(figures, scenario, "latency_p50_us", gateway)
        return None if us is None else us / 1000

    return value


def _median(scenario: str, metric: str) -> Value:
    return lambda figures, gateway: median(figures, scenario, gateway, metric)


def _first_byte(base: str) -> Value:
    """Added time to the first byte, as a multiple of what the base adds."""

    def value(figures: Figures, gateway: str) -> float | None:
        mine = added(figures, "first_20", "first_byte_p50_us", gateway)
        theirs = added(figures, "first_20", "first_byte_p50_us", base)
        return mine / theirs if mine is not None and theirs is not None and theirs > 0 else None

    return value


def _lost(figures: Figures, gateway: str) -> float | None:
    return total(figures, "streams_500", gateway, "failures")


def _unfair(figures: Figures, gateway: str) -> float | None:
    """How long the slowest stream took, as a multiple of the middle one's time; all have as many chunks."""
    slowest = median(figures, "streams_500", gateway, "latency_max_us")
    middle = median(figures, "streams_500", gateway, "latency_p50_us")
    return slowest / middle if slowest is not None and middle is not None else None


def _stalled(figures: Figures, gateway: str) -> float | None:
    """Turns that waited; none counts only if there was a compaction to wait for."""
    waited, summaries = (median(figures, "stall", gateway, metric) for metric in ("waited", "summaries"))
    return waited if summaries else None


BARS = (
    _against_nginx(1, "CPU, 1 KB, 32 at once", "1k_c32", "cpu_us", 4, stretch=2.5),
    _against_nginx(1, "CPU, 100 KB", "100k", "cpu_us", 4, stretch=3),
    _against_nginx(1, "CPU, 1 MB", "1m", "cpu_us", 6, stretch=3.5),
    Bar(1, "LiteLLM's CPU against ours, 1 KB", _less_than("litellm", "1k_c32"), 150, least=True),
    Bar(1, "cliffcompaction's CPU against ours, 1 KB", _less_than("cliffcompaction", "1k_c32"), 20, least=True),
    Bar(2, "Added latency, 1 KB", _added_ms("1k"), 0.5, "ms"),
    Bar(2, "Added latency, 100 KB", _added_ms("100k"), 2, "ms"),
    Bar(2, "Added latency, 1 MB", _added_ms("1m"), 8, "ms"),
    _against_nginx(3, "CPU of a chunk, 20 streams", "streams_20", "chunk_cpu_ms", 2, stretch=1.6),
    Bar(3, "Added time to first byte, against nginx", _first_byte(PLAIN), 2.5, beside=_first_byte(KEPT)),
    Bar(3, "Of 500 streams: lost or short", _lost, 0, "streams"),
    Bar(3, "Of 500 streams: the slowest against the middle one", _unfair, 1.1),
    Bar(3, "Memory at 500 streams", _median("memory", "streams_mb"), 64, "MB"),
    Bar(4, "A turn more of 4 MB, against the bare scan", _times("turns_4m", "cpu_us", "bare scan"), 3),
    Bar(4, "Memory of an idle conversation, without its items", _median("memory", "conversation_kb"), 4, "KB"),
    Bar(4, "Memory of an idle worker", _median("memory", "idle_mb"), 60, "MB"),
    Bar(6, "Turns that waited for a compaction", _stalled, 0, "turns"),
)
CHECKS = (
    ("1 KB, 32 at once", "1k_c32", "cpu_us"),
    ("100 KB", "100k", "cpu_us"),
    ("1 MB", "1m", "cpu_us"),
    ("growing sessions", "grow_100k", "cpu_us"),
    ("a turn more of 4 MB", "turns_4m", "cpu_us"),
    ("streams", "first_20", "chunk_cpu_ms"),
)
"""What the short form watches: a name, its scenario, its metric."""


def watched(figures: Figures, base: str, gateway: str = "tidegate") -> dict[str, float | None]:
    """The ratios to `base` that the short form watches; None: not measured."""
    return {name: ratio(figures, scenario, metric, gateway, base) for name, scenario, metric in CHECKS}
