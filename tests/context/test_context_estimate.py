"""Sizes without a tokenizer: a table of rules, and what holds for any text."""

from __future__ import annotations

import base64
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.context.estimate import (
    IMAGE_UNKNOWN,
    ITEM_OVERHEAD,
    REQUEST_OVERHEAD,
    item_tokens,
    part_tokens,
    request_overhead,
    text_tokens,
)
from tidegate.wire import read
from tidegate.wire.conversation import Conversation, DialectName, Part

BASE64 = base64.b64encode(random.Random(1).randbytes(750_000)).decode()
WORDS = "The tide table says high water at noon. "


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("a", 1),
        ("four", 1),
        ("fives", 2),
        ("é" * 4, 2),
        ("🌊", 1),
        ("\ud800", 1),
        (WORDS * 1000, 10_000),
        ("a/b-c_d+e=" * 51, 128),
        ("x" * 511, 128),
        ("x" * 512, 512),
    ],
)
def test_bytes_by_four_and_unbroken_runs_by_one(text: str, tokens: int) -> None:
    assert text_tokens(text) == tokens


@pytest.mark.parametrize("script", ["潮", "ｱ", "み", "조", "ท", "ລ", "ខ", "မ", "བ", "𠀀"])
def test_scripts_without_spaces_count_at_least_six_tenths_a_character(script: str) -> None:
    assert 6_000 <= text_tokens(script * 10_000) <= 10_000


def test_base64_inside_a_text_counts_by_the_character() -> None:
    assert len(BASE64) == 1_000_000
    assert text_tokens(BASE64) == 1_000_000
    assert text_tokens(f"{WORDS}\n{BASE64}\n{WORDS}潮") >= 1_000_000


@pytest.mark.parametrize("offset", [0, 1, 100, 255, 256, 257, 511, 512, 700])
@pytest.mark.parametrize("length", [511, 512, 513, 767, 768, 1500])
def test_a_run_is_found_wherever_it_begins(offset: int, length: int) -> None:
    before = ("word " * 200)[:offset]
    before = before[:-1] + "." if before else ""
    counted = length if length >= 512 else 0
    rest = offset + 1 + (0 if counted else length)
    assert text_tokens(before + "A" * length + ".") == counted + -(-rest // 4)


def test_two_runs_beside_each_other_are_two() -> None:
    assert text_tokens("A" * 600 + "." + "B" * 600) == 1201
    assert text_tokens("A" * 500 + "." + "B" * 600) == 600 + 126


@given(st.text(max_size=300), st.integers(0, 900), st.text(max_size=300))
@settings(max_examples=100, deadline=None)
def test_more_text_never_counts_less(start: str, run: int, end: str) -> None:
    middle = "Zm9v" * (run // 4)
    whole = text_tokens(start + middle + end)
    assert text_tokens(start) <= text_tokens(start + middle) <= whole
    size = len((start + middle + end).encode())
    assert -(-size // 4) <= whole <= size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (WORDS * 100_000, 0.5),
        (("A" * 511 + ".") * 8_000, 1.0),
        (("A" * 513 + ".") * 8_000, 1.0),
        ("潮汐 " * 500_000, 0.5),
    ],
    ids=["words", "runs just too short", "runs just long enough", "Han"],
)
def test_four_megabytes_are_sized_at_once_whatever_is_in_them(text: str, seconds: float) -> None:
    begun = time.process_time()  # whatever else the machine does meanwhile
    text_tokens(text)
    assert time.process_time() - begun < seconds


# -- media and requests -----------------------------------------------------------------------------------

CHAT, RESPONSES, MESSAGES = "chat", "responses", "messages"


@pytest.mark.parametrize(
    ("dialect", "width", "height", "detail", "tokens"),
    [
        # https://platform.openai.com/docs/guides/images-vision, "Calculating costs"
        (CHAT, 1024, 1024, "high", 765),
        (RESPONSES, 2048, 4096, "high", 1105),
        (CHAT, 4096, 8192, "low", 85),
        (CHAT, None, None, "low", 85),
        (CHAT, 100, 100, "auto", 255),
        (CHAT, 512, 513, "", 425),
        (CHAT, 20_000, 3, "", 85 + 4 * 170),
        (CHAT, None, None, "", IMAGE_UNKNOWN),
        # https://docs.anthropic.com/en/docs/build-with-claude/vision: 1092 × 1092 is about 1,590 tokens
        (MESSAGES, 200, 200, "", 54),
        (MESSAGES, 1000, 1000, "", 1334),
        (MESSAGES, 1092, 1092, "", 1590),
        (MESSAGES, 8000, 8000, "", 1600),
        (MESSAGES, 8000, 100, "", 42),
        (MESSAGES, None, None, "", IMAGE_UNKNOWN),
    ],
)
def test_images_by_each_apis_rule(
    dialect: DialectName, width: int | None, height: int | None, detail: str, tokens: int
) -> None:
    part = Part("image", width=width, height=height, detail=detail, data_bytes=3_000_000)
    assert part_tokens(dialect, part) == tokens


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        (Part("text", "four" * 10), 10),
        (Part("thinking", "four" * 10), 10),
        (Part("thinking", "four", data_bytes=4_000), 1_000),
        (Part("call", '{"a":1}', name="read", id="call_1"), 8 + 1 + 2),
        (Part("result", "four" * 10, id="call_1"), 10),
        (Part("file", pages=12, data_bytes=9_000_000), 24_000),
        (Part("file", data_bytes=9_000_000), 2_000),
        (Part("file", "log " * 1_000), 1_000),
        (Part("file", "log " * 10, pages=2), 4_010),
        (Part("file", "log " * 10, data_bytes=9_000), 2_010),
        (Part("audio", data_bytes=100_000), 100),
        (Part("opaque", data_bytes=8_000), 2_000),
        (Part("json", '{"type":"novelty"}'), 5),
    ],
)
def test_other_parts(part: Part, tokens: int) -> None:
    for dialect in (CHAT, RESPONSES, MESSAGES):
        assert part_tokens(dialect, part) == tokens


@pytest.mark.parametrize("dialect", [CHAT, RESPONSES, MESSAGES])
def test_three_megabytes_of_image_are_no_text(dialect: DialectName) -> None:
    assert item_tokens(dialect, [Part("text", "Look"), Part("image", data_bytes=3_000_000)]) < 10_000


def test_an_item_costs_its_parts_and_a_little() -> None:
    assert item_tokens(CHAT, []) == ITEM_OVERHEAD
    assert item_tokens(CHAT, [Part("text", "four"), Part("text", "four")]) == ITEM_OVERHEAD + 2


def conversation(**parts: bytes) -> Conversation:
    """One with nothing but a system prompt, tools and a schema."""
    body = (
        b'{"model":"m","messages":[]' + b"".join(b',"%s":%s' % (_FIELDS[key], raw) for key, raw in parts.items()) + b"}"
    )
    return read("messages", body)


_FIELDS = {"system": b"system", "tools": b"tools", "schema": b"output_config"}


@pytest.mark.parametrize(
    ("parts", "tokens"),
    [
        ({}, 0),
        ({"system": b'"' + b"four" * 100 + b'"'}, 100),
        ({"system": rb'"\u6f6e\u6c50\u6f6e\u6c50"'}, 3),
        ({"system": b'[{"type":"text","text":"fourfour"},{"type":"text","text":"four"}]'}, 3),
        ({"system": b"null"}, 0),
        ({"tools": b'[{"name":"read_file"}]'}, 6),
        ({"tools": rb'[{"description":"\u6f6e\u6c50"}]'}, 7),
        ({"schema": b'{"type":"json_schema"}'}, 6),
    ],
)
def test_tools_system_and_schema_are_counted(parts: dict[str, bytes], tokens: int) -> None:
    assert request_overhead(conversation(**parts)) == REQUEST_OVERHEAD + tokens
