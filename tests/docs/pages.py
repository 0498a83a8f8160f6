"""The code blocks of README.md and docs/, by page, heading and number: tests run them from there, as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PART = re.compile(
    r"^#+ (?P<heading>[^\n]+)$|^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```", re.S | re.M
)


class Name(NamedTuple):
    """Where a block stands."""

    page: str
    heading: str
    number: int = 0
    """Among the blocks of the same language under that heading."""


def blocks(language: str) -> dict[Name, str]:
    """All blocks of a language."""
    found: dict[Name, str] = {}
    for page in PAGES:
        heading = ""
        for part in PART.finditer(page.read_text("utf-8")):
            if part["heading"] is not None:
                heading = part["heading"]
            elif part["language"] == language:
                number = sum((page.name, heading) == (one.page, one.heading) for one in found)
                lines = [line.removeprefix(part["indent"]) for line in part["text"].splitlines()]
                found[Name(page.name, heading, number)] = "\n".join(lines) + "\n"
    return found
