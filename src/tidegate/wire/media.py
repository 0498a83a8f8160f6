"""What can be told of an image, file or sound from the first bytes of its base64, without decoding the rest.

Knows file formats and data URLs, no dialect. Called by the dialects for their media parts.
"""

from __future__ import annotations

import binascii
import re
import struct
from typing import TypeAlias

from tidegate.wire.conversation import Part

_DATA_URL = re.compile(r"data:(?P<media>[^;,]{0,128})[^,]{0,512},", re.IGNORECASE)
_PEEKS = (1024, 24_576, 393_216)
"""Decoded bytes to look at, in turn: nearly all formats tell their size in the first, a JPEG with large EXIF
or colour profiles in the last."""
_LARGEST_PDF = 4 * 1024 * 1024
"""Characters of base64 up to which a PDF's pages are counted."""
_PAGE = re.compile(rb"/Type\s*/Page(?![A-Za-z])")
_COUNT = re.compile(rb"/Count\s+(\d{1,6})")

Size: TypeAlias = tuple[int, int]


def image(source: str, *, media_type: str = "", detail: str = "", name: str = "") -> Part:
    """An image part from a URL, a data URL or bare base64 (where `media_type` is given)."""
    media, offset, payload = _payload(source, media_type)
    size = image_size(source, offset) if payload else None
    width, height = size if size else (None, None)
    return Part("image", name=name or media, width=width, height=height, detail=detail, data_bytes=payload)


def document(source: str, *, media_type: str = "", name: str = "") -> Part:
    """A file part from a URL, a data URL or bare base64 (where `media_type` is given)."""
    media, offset, payload = _payload(source, media_type)
    pages = pdf_pages(source, offset) if payload else None
    return Part("file", name=name or media, pages=pages, data_bytes=payload)


def image_size(data: str, offset: int = 0) -> Size | None:
    """Width and height in pixels of the base64 image that begins at `offset`; None where they can't be
    told."""
    for length in _PEEKS:
        head = _decoded(data, offset, length)
        size = _png(head) or _gif(head) or _webp(head) or _jpeg(head)
        if size or not head.startswith(b"\xff\xd8") or len(head) < length:
            return size
    return None


def pdf_pages(data: str, offset: int = 0) -> int | None:
    """Pages of the base64 PDF that begins at `offset`; None for other files, large ones, and packed page
    trees."""
    if len(data) - offset > _LARGEST_PDF or not _decoded(data, offset, 16).startswith(b"%PDF"):
        return None
    whole = _decoded(data, offset, len(data))
    pages = len(_PAGE.findall(whole))
    return pages or max((int(count) for count in _COUNT.findall(whole)), default=0) or None


def _payload(source: str, media_type: str) -> tuple[str, int, int]:
    """Media type, where the base64 begins, how long it is (0 where the source is a plain URL)."""
    match = _DATA_URL.match(source)
    if match:
        return match["media"], match.end(), len(source) - match.end()
    return (media_type, 0, len(source)) if media_type else ("", 0, 0)


def _decoded(data: str, offset: int, length: int) -> bytes:
    """The first `length` bytes or so; what is no base64 is passed over."""
    text = data[offset : offset + length * 4 // 3 + 4]
    text = "".join(text.split()).replace("-", "+").replace("_", "/")
    try:
        return binascii.a2b_base64(text[: len(text) // 4 * 4])
    except (binascii.Error, ValueError):
        return b""


def _real(width: int, height: int) -> Size | None:
    return (width, height) if width > 0 and height > 0 else None


def _png(head: bytes) -> Size | None:
    if len(head) < 24 or head[:8] != b"\x89PNG\r\n\x1a\n":
        return None
    return _real(*struct.unpack(">II", head[16:24]))


def _gif(head: bytes) -> Size | None:
    if len(head) < 10 or head[:6] not in (b"GIF87a", b"GIF89a"):
        return None
    return _real(*struct.unpack("<HH", head[6:10]))


def _webp(head: bytes) -> Size | None:
    # https://developers.google.com/speed/webp/docs/riff_container: lossy, lossless and extended headers.
    if len(head) < 30 or head[:4] != b"RIFF" or head[8:12] != b"WEBP":
        return None
    kind = head[12:16]
    if kind == b"VP8 ":
        width, height = struct.unpack("<HH", head[26:30])
        return _real(width & 0x3FFF, height & 0x3FFF)
    if kind == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return _real((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if kind == b"VP8X":
        return _real(int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1)
    return None


def _jpeg(head: bytes) -> Size | None:
    if head[:2] != b"\xff\xd8":
        return None
    pos = 2
    while pos + 9 <= len(head):
        if head[pos] != 0xFF:
            return None
        marker = head[pos + 1]
        if marker == 0xFF:
            pos += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # a start of frame
            height, width = struct.unpack(">HH", head[pos + 5 : pos + 9])
            return _real(width, height)
        elif marker == 0x01 or 0xD0 <= marker <= 0xD8:  # markers without a length
            pos += 2
        else:
            pos += 2 + int.from_bytes(head[pos + 2 : pos + 4], "big")
    return None
