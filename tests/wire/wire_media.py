"""The beginnings of media files, as base64."""

import base64
import struct


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height) + b"\x08\x06\0\0\0" + bytes(4000)


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + bytes(40)


def jpeg(width: int, height: int, before: int = 100) -> bytes:
    """A JPEG whose size stands after `before` bytes of camera data and a colour profile."""
    camera = b"".join(
        b"\xff\xe1" + struct.pack(">H", min(65_000, before - n) + 2) + bytes(min(65_000, before - n))
        for n in range(0, before, 65_000)
    )
    frame = b"\xff\xc2" + struct.pack(">HBHH", 17, 8, height, width) + bytes(10)
    return b"\xff\xd8" + camera + b"\xff\xff\xdb\0\x04\0\0" + frame + bytes(3000)


def webp(kind: bytes, width: int, height: int) -> bytes:
    bodies = {
        b"VP8 ": bytes(6) + struct.pack("<HH", width, height),
        b"VP8L": b"\x2f" + struct.pack("<I", width - 1 | height - 1 << 14) + bytes(5),
        b"VP8X": bytes(4) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little"),
    }
    return b"RIFF\0\0\0\0WEBP" + kind + b"\0\0\0\0" + bodies[kind] + bytes(40)


def pdf(pages: int) -> bytes:
    leaves = b"".join(b"%d 0 obj << /Type /Page /Parent 1 0 R >> endobj\n" % (n + 2) for n in range(pages))
    return b"%PDF-1.4\n1 0 obj << /Type /Pages /Count 1 >> endobj\n" + leaves


def packed_pdf(pages: int) -> bytes:
    """A PDF whose page objects are compressed; only the tree's count can be read."""
    return b"%%PDF-1.7\n1 0 obj << /Type/Pages /Count %d >> endobj\nstream\x9c\x01endstream" % pages
