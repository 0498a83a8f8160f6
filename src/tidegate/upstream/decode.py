"""Knows content codings: makes a compressed body plain again, within a limit. Nothing of what the body says.

The gateway calls it for request bodies, the drivers for answers they must read.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType

import zstandard

MAX_CODINGS = 3
"""Codings stacked on one body; real clients use one."""

MAX_FRAMES = 16
"""Gzip members or zstd frames in one body; real clients write one. Each costs a copy of the rest."""

ZSTD_WINDOW = 8 * 1024 * 1024
"""Bytes a zstd frame may make the reader keep: RFC 9659."""

_ZSTD_SLICE = 1024  # four bytes may stand for 128 KiB: what one slice yields stays within 32 MiB


class BodyTooLarge(Exception):
    """The body is over the limit once decompressed. A gateway answers 413."""


class BodyUnreadable(Exception):
    """The body is not what its Content-Encoding says, or that coding is not supported. A gateway answers 415
    or 400."""


def decode_body(body: bytes, encoding: str, limit: int) -> bytes:
    """Undoes the codings of a Content-Encoding value (RFC 9110 section 8.4), the last one first.

    An empty body is empty in any coding. No step may yield more than `limit` bytes; that is watched while it
    decompresses, so a small body can't grow into a big one first. Raises `BodyTooLarge`, `BodyUnreadable`.
    """
    if not body:
        return body
    listed = (word.strip().lower() for word in encoding.split(","))
    codings = [coding for coding in listed if coding not in ("", "identity")]
    if len(codings) > MAX_CODINGS:
        raise BodyUnreadable(f"The body is compressed more than {MAX_CODINGS} times. Compress it once, or not at all.")
    for coding in reversed(codings):
        decoder = _DECODERS.get(coding)
        if decoder is None:
            raise BodyUnreadable(
                "The body's Content-Encoding is not supported. Use gzip, deflate, zstd or br, or send it uncompressed."
            )
        body = _collect(decoder(body, limit), limit)
    if len(body) > limit:
        raise BodyTooLarge(f"The body is larger than {limit} bytes.")
    return body


def _collect(pieces: Iterator[bytes], limit: int) -> bytes:
    got: list[bytes] = []
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > limit:
            raise BodyTooLarge(f"The body is larger than {limit} bytes once decompressed.")
        got.append(piece)
    return got[0] if len(got) == 1 else b"".join(got)


def _gzip(body: bytes, limit: int) -> Iterator[bytes]:
    frames = 0
    while body:
        frames += 1
        reader = zlib.decompressobj(wbits=31)
        yield from _zlib(reader, body, limit, "gzip")
        body = reader.unused_data.lstrip(b"\0")  # some writers pad with zeros
        if frames == MAX_FRAMES and body:
            raise BodyUnreadable(f"The body consists of more than {MAX_FRAMES} gzip members.")


def _deflate(body: bytes, limit: int) -> Iterator[bytes]:
    """With the zlib wrapper, as RFC 9110 section 8.4.1.2 defines it, or without, as some clients send it."""
    wrapped = len(body) >= 2 and body[0] & 0x0F == 8 and int.from_bytes(body[:2], "big") % 31 == 0
    reader = zlib.decompressobj(wbits=15 if wrapped else -15)
    yield from _zlib(reader, body, limit, "deflate")
    if reader.unused_data:
        raise _unreadable("deflate")


def _zlib(reader: zlib._Decompress, body: bytes, limit: int, name: str) -> Iterator[bytes]:
    try:
        yield reader.decompress(body, limit + 1)
        while not reader.eof:
            piece = reader.decompress(reader.unconsumed_tail, limit + 1)
            if not piece and not reader.eof:
                raise _unreadable(name)
            yield piece
    except zlib.error:
        raise _unreadable(name) from None


def _zstd(body: bytes, limit: int) -> Iterator[bytes]:
    frames = 0
    rest = memoryview(body)
    while rest:
        frames += 1
        if frames > MAX_FRAMES:
            raise BodyUnreadable(f"The body consists of more than {MAX_FRAMES} zstd frames.")
        reader = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW).decompressobj()
        while not reader.eof:
            if not rest:
                raise _unreadable("zstd")
            part, rest = rest[:_ZSTD_SLICE], rest[_ZSTD_SLICE:]
            try:
                yield reader.decompress(part)
            except zstandard.ZstdError:
                raise _unreadable("zstd") from None
        unused = len(reader.unused_data)
        if unused:
            rest = memoryview(body)[len(body) - len(rest) - unused :]


def _brotli(body: bytes, limit: int) -> Iterator[bytes]:
    module = _brotli_module()
    reader = module.Decompressor()
    try:
        yield reader.process(body, output_buffer_limit=limit + 1)
        while not reader.is_finished():
            piece = reader.process(b"", output_buffer_limit=limit + 1)
            if not piece and not reader.is_finished():
                raise _unreadable("br")
            yield piece
    except module.error:
        raise _unreadable("br") from None


def _brotli_module() -> ModuleType:
    """The `brotli` package, 1.2 or newer: older ones can't be stopped before all is decompressed."""
    try:
        brotli: ModuleType | None = import_module("brotli")
    except ImportError:
        brotli = None
    if brotli is None or not hasattr(brotli.Decompressor, "can_accept_more_data"):
        raise BodyUnreadable(
            "The body is compressed with brotli, which needs the package brotli 1.2 or newer where the gateway runs. "
            "Install it, or use gzip or zstd."
        )
    return brotli


def _unreadable(name: str) -> BodyUnreadable:
    return BodyUnreadable(f"The body is not valid {name}, though its Content-Encoding says so, or it is cut.")


_DECODERS: dict[str, Callable[[bytes, int], Iterator[bytes]]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "zstd": _zstd,
    "br": _brotli,
}
