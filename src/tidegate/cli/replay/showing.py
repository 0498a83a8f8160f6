"""What became of a recorded session, for people and as JSON: numbers and names, never words of the conversation.

Knows how to show it. Called by `tidegate replay`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tidegate.cli.replay.playing import Played, Playing, totals
from tidegate.cli.replay.recorded import Session
from tidegate.cli.tables import printable
from tidegate.drive.rehearsal import CACHED, Turn
from tidegate.engine.effects import Notify

SIMULATED: Final = (
    "Summaries are simulated: a text of a likely size stands in for each, those of providers' own compactions too. "
    "Sizes are Tidegate's estimates in tokens."
)
PRICED: Final = (
    f"cost: new input tokens, reused ones at {CACHED:g}, and what summaries read and wrote; provider files state no "
    "prices, so there are no dollars."
)

ORDINARY: Final = frozenset({"", "below_threshold", "disabled", "prepared", "unknown_window", "overflow_off"})
"""Reasons that need not be told of each turn."""

WHY: Final = {"threshold": "due", "overflow": "refused before", "requested": "asked for"}

Row = tuple[str, ...]


def show(console: Console, session: Session, playings: Sequence[Playing], *, brief: bool) -> None:
    """Tables for one file: a row a turn for each policy, then what they came to."""
    console.print(f"[bold]{escape(printable(session.file))}[/bold]: {session.format}", highlight=False)
    for playing in playings:
        console.print(f"\n[bold]{escape(playing.name)}[/bold]  {_limits(playing)}", highlight=False)
        rows = [_row(played) for played in playing.turns if not brief or any(_done(played.turn))]
        if rows:
            console.print(_table(("turn", "at", "input", "sent", "reused", "what was done"), rows, words=1))
        else:
            console.print("nothing was done", highlight=False)
        for note in playing.notes:
            console.print(f"note: {escape(printable(note))}", highlight=False)
    console.print()
    console.print(
        _table(("", *(playing.name for playing in playings)), [*zip(FIGURES, *map(_sum, playings), strict=True)])
    )
    console.print(f"{SIMULATED}\n{PRICED}", highlight=False, style="dim")


def _limits(playing: Playing) -> str:
    known = [
        f"{name} {size:,}"
        for name, size in (("window", playing.window), ("threshold", playing.threshold), ("target", playing.target))
        if size is not None
    ]
    return escape(", ".join((f"at {playing.provider}", *known)))


def _table(header: Row, rows: Sequence[Row], words: int = 0) -> Table:
    """Numbers to the right, but for the first column and as many of the last as hold words."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, title in enumerate(header):
        right = place >= 1 - words and place < len(header) - words
        table.add_column(title, justify="right" if right else "left", no_wrap=right)
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    return table


def _row(played: Played) -> Row:
    turn = played.turn
    return (
        str(played.number),
        f"line {played.line}" if played.line else "",
        f"{turn.before:,}",
        f"{turn.sent:,}" if turn.answered else "-",
        _percent(turn.reused, turn.sent) if turn.answered else "-",
        "; ".join((*(["sub-agent"] if played.aside else []), *_done(turn))),
    )


FIGURES: Final = (
    "requests answered",
    "compactions",
    "refused as too long",
    "tokens of the client's requests",
    "tokens sent",
    "  reused",
    "largest request",
    "summary calls",
    "  tokens read",
    "  tokens written",
    "cost",
)


def _sum(playing: Playing) -> Row:
    """A column: one cell for each of `FIGURES`."""
    sheet = playing.sheet
    return (
        f"{sheet.requests:,} of {len(playing.turns):,}",
        f"{sheet.compactions:,}",
        f"{sheet.refused:,}",
        f"{sheet.asked:,}",
        f"{sheet.sent:,}",
        _percent(sheet.reused, sheet.sent),
        f"{sheet.largest:,}",
        f"{sheet.summary_calls:,}",
        f"{sheet.summary_new + sheet.summary_reused:,}",
        f"{sheet.summary_written:,}",
        f"{sheet.cost:,.0f}",
    )


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _done(turn: Turn) -> Iterator[str]:
    """What was done about a request, and why."""
    why, items = "", 0
    for notice in turn.told:
        detail = notice.detail
        if notice.event == "compacting":
            why, items = str(detail["why"]), int(str(detail["items"]))
        elif notice.event == "compacted":
            cause = "prepared before" if turn.outcome.reason == "prepared" and why == "threshold" else WHY.get(why, why)
            yield f"{detail['strategy']} of {items} items, {cause}: {detail['before']:,} -> {detail['after']:,}"
        elif told := _told(notice):
            yield told
    if not turn.answered:
        yield "refused as too long, and not recovered"
    if turn.outcome.reason not in ORDINARY:
        yield turn.outcome.reason


def _told(notice: Notify) -> str:
    if notice.event == "prepared":
        return "a summary is made ready"
    if notice.event in ("compaction_failed", "prepare_failed"):
        return f"{notice.event.replace('_', ' ')}: {notice.detail.get('reason', '')}"
    return ""


def told(session: Session, playings: Sequence[Playing]) -> dict[str, object]:
    """All of it as JSON."""
    return {
        "file": session.file,
        "format": session.format,
        "summaries": "simulated",
        "policies": [
            {
                "policy": playing.name,
                "provider": playing.provider,
                "window": playing.window,
                "threshold": playing.threshold,
                "target": playing.target,
                "notes": [*playing.notes],
                "turns": [_facts(played) for played in playing.turns],
                "totals": totals(playing),
            }
            for playing in playings
        ],
    }


def _facts(played: Played) -> dict[str, object]:
    turn, outcome = played.turn, played.turn.outcome
    return {
        "turn": played.number,
        "line": played.line,
        "model": printable(played.model),
        "sub_agent": played.aside,
        "tokens_asked": turn.before,
        "tokens_sent": turn.sent if turn.answered else None,
        "tokens_reused": turn.reused if turn.answered else None,
        "answered": turn.answered,
        "refused": turn.refused,
        "action": outcome.action,
        "reason": outcome.reason,
        "strategy": outcome.strategy,
        "compactions": [
            {key: notice.detail[key] for key in ("strategy", "before", "after", "calls")}
            for notice in turn.told
            if notice.event == "compacted"
        ],
        "why": [notice.detail["why"] for notice in turn.told if notice.event == "compacting"],
        "prepared": any(notice.event == "prepared" for notice in turn.told),
    }
