"""Divides a transcript into pieces that each fit one summary call, within a bound of calls.

Knows blocks and estimated tokens; not what is in them, nor who is asked. Called by the summary strategy.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Final

from tidegate.compactors.transcript import Block, Caps, cut_to_tokens, note

_SMALLEST_CAP: Final = 80
_NOTE_TOKENS: Final = 48


@dataclass(frozen=True, slots=True)
class Piece:
    """What one call is shown: blocks `start … stop-1` of the transcript."""

    text: str
    tokens: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Room:
    """Estimated tokens of transcript that fit the next call, and each one after it (with a summary)."""

    first: int
    later: int


def levels(tool_result_chars: int) -> tuple[Caps, ...]:
    """Ever tighter caps: tool results first, then calls and unknown parts, then the assistant's words, then
    the user's."""
    full = tool_result_chars

    def part(share: int) -> int:
        return max(_SMALLEST_CAP, full // share)

    return (
        Caps(full, full, part(2)),
        Caps(part(4), full, part(4)),
        Caps(part(10), part(4), part(10)),
        Caps(part(25), part(10), part(25)),
        Caps(part(25), part(25), part(25), assistant=1500),
        Caps(part(25), part(25), part(25), assistant=400),
        Caps(part(25), part(25), part(25), assistant=400, user=4000),
        Caps(part(25), part(25), part(25), assistant=200, user=1200),
        Caps(part(25), part(25), part(25), assistant=120, user=400),
    )


def plan(
    at_level: Callable[[int], Sequence[Block]], choices: range, start: int, room: Room, calls: int
) -> tuple[int, list[Piece]]:
    """The blocks from `start` on in at most `calls` pieces, at the first of the levels where they fit, and that level.

    Where no level is tight enough, what lies between the first piece and the last ones is left out, with a
    remark.
    """
    loosest, tightest = choices[0], choices[-1]
    pieces = pack(at_level(loosest), start, room)
    if len(pieces) <= calls:
        return loosest, pieces
    # Tighter caps never make more pieces, so that the first that will do can be searched for.
    tighter = choices[1:]
    found = bisect_left(tighter, True, key=lambda level: len(pack(at_level(level), start, room)) <= calls)
    if found < len(tighter):
        return tighter[found], pack(at_level(tighter[found]), start, room)
    return tightest, _without_the_middle(at_level(tightest), start, room, calls)


def pack(blocks: Sequence[Block], start: int, room: Room) -> list[Piece]:
    """Fills one piece after the other. A group is divided only if it is larger than a whole piece, then an
    item likewise, and a single block that is larger than a piece is cut, head and tail kept."""
    packer = _Packer(room, start)
    for _, group in groupby(blocks[start:], key=attrgetter("group")):
        packer.place(list(group), ("item",))
    packer.close()
    return packer.pieces


class _Packer:
    """Fills pieces in order; `open` holds the texts of the one being filled."""

    def __init__(self, room: Room, start: int) -> None:
        self.pieces: list[Piece] = []
        self._room = room
        self._start = self._stop = start
        self._open: list[str] = []
        self._used = 0

    def place(self, blocks: list[Block], finer: tuple[str, ...]) -> None:
        """Adds blocks that should stay together; `finer` names how they may be divided if they must."""
        tokens = sum(block.tokens for block in blocks)
        # A new piece helps if they fit it whole; and what must be cut anyway is cut least in a piece of its
        # own.
        if self._open and tokens > self._left() and (tokens <= self._room.later or len(blocks) == 1):
            self.close()
        if tokens <= self._left():
            self._add([block.text for block in blocks], tokens, len(blocks))
        elif len(blocks) > 1:
            for part in _divided(blocks, finer):
                self.place(part, finer[1:])
        else:
            left = self._left()
            self._add([cut_to_tokens(blocks[0].text, left - 1)], left, 1)

    def close(self) -> None:
        """Ends the open piece, if it holds anything."""
        if self._open:
            self.pieces.append(Piece("\n\n".join(self._open), self._used, self._start, self._stop))
            self._start, self._open, self._used = self._stop, [], 0

    def _left(self) -> int:
        return (self._room.later if self.pieces else self._room.first) - self._used

    def _add(self, texts: list[str], tokens: int, count: int) -> None:
        self._open += texts
        self._used += tokens
        self._stop += count


def _divided(blocks: list[Block], finer: tuple[str, ...]) -> list[list[Block]]:
    if not finer:
        return [[block] for block in blocks]
    return [list(part) for _, part in groupby(blocks, key=attrgetter(finer[0]))]


def _without_the_middle(blocks: Sequence[Block], start: int, room: Room, calls: int) -> list[Piece]:
    """The beginning (what was asked) and the end (where the work stands) of what no cap makes small
    enough."""
    room = Room(room.first - _NOTE_TOKENS, room.later - _NOTE_TOKENS)
    if calls == 1:
        room = Room(min(room.first, room.later) // 2, min(room.first, room.later) // 2)
    pieces = pack(blocks, start, room)
    ends = max(2, calls)
    if len(pieces) <= ends:
        kept = pieces
    else:
        resumed = pieces[len(pieces) - ends + 1]
        left_out = resumed.start - pieces[0].stop
        remark = note(f"[… {left_out} pieces of the transcript left out here …]")
        marked = Piece(f"{remark.text}\n\n{resumed.text}", resumed.tokens + remark.tokens, resumed.start, resumed.stop)
        kept = [pieces[0], marked, *pieces[len(pieces) - ends + 2 :]]
    if calls > 1:
        return kept
    text = "\n\n".join(piece.text for piece in kept)
    return [Piece(text, sum(piece.tokens for piece in kept), kept[0].start, kept[-1].stop)]
