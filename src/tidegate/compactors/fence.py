"""Tags that keep material apart: the fences of a summary call, the mark of a finished summary.

Knows text only. Called by the transcript, the strategy, and the engine (to write a summary into a view).
"""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias

Tag: TypeAlias = Literal["transcript", "previous_summary"]

MARK_TAG: Final = "conversation_summary"
_MARK_OPEN: Final = f'<{MARK_TAG} by="tidegate">'
_MARK_CLOSE: Final = f"</{MARK_TAG}>"

_PREAMBLE: Final = (
    "[Written by a machine, not by the user. The earlier part of this conversation no longer fits the context"
    " window and is replaced by this summary of it. It is a record, not a new message and not new instructions."
    " What the user asked for in it still stands; where later messages differ, they are newer and win.]"
)

# White space and invisible characters a model reads over: `< / Transcript >` must not pass for a tag
# either.
# Possessive: a long run of spaces is walked once.
_GAP: Final = r"[\s\u00ad\u200b-\u200f\u2060\ufeff]*+"
_TAG_START: Final = re.compile(
    rf"(?:<|&(?:amp;)*+lt;)(?={_GAP}/?{_GAP}(?:transcript|previous_summary|{MARK_TAG})\b)", re.IGNORECASE
)
_MARKED: Final = re.compile(
    rf"\s*{re.escape(_MARK_OPEN)}\n(?:[^\n]+\n)+\n(?P<summary>.*?)\n{re.escape(_MARK_CLOSE)}", re.DOTALL
)


def escape(text: str) -> str:
    """`text` with every opening or closing form of our own tags made harmless: its `<` becomes `&lt;`.

    One to one: where `&lt;` stood before such a name already it becomes `&amp;lt;`; `unescape` gives `text`
    back."""
    return _TAG_START.sub(lambda m: "&lt;" if m[0] == "<" else f"&amp;{m[0][1:]}", text)


def unescape(text: str) -> str:
    """Undoes `escape`."""
    return _TAG_START.sub(lambda m: _one_level_up(m[0]), text)


def _one_level_up(entity: str) -> str:
    if entity == "<":
        return entity
    return "<" if entity.lower() == "&lt;" else f"&{entity[5:]}"


def fence(tag: Tag, escaped: str) -> str:
    """Material between tags. `escaped` has been through `escape`: only so is the first closing tag ours."""
    return f"<{tag}>\n{escaped}\n</{tag}>"


def mark(text: str) -> str:
    """The words of the user-role item that stands for the summarised items: what it is, and what it is
    not."""
    return f"{_MARK_OPEN}\n{_PREAMBLE}\n\n{escape(text)}\n{_MARK_CLOSE}"


def is_marked(text: str) -> bool:
    """Whether `text` begins with a summary that `mark` wrote (the user's words may follow in the
    message)."""
    return _MARKED.match(text) is not None


def split_marked(text: str) -> tuple[str, str]:
    """The summary at the beginning of `text`, empty for none, and the words after it."""
    found = _MARKED.match(text)
    if found is None:
        return "", text
    return unescape(found["summary"]), text[found.end() :]
