"""Sizes of media from their first bytes."""

import pytest
from wire_media import b64, gif, jpeg, packed_pdf, pdf, png, webp

from tidegate.wire import media

SIZES = [
    ("png", png(640, 480)),
    ("gif", gif(640, 480)),
    ("jpeg", jpeg(640, 480)),
    ("jpeg with camera data", jpeg(640, 480, before=20_000)),
    ("jpeg with much before its size", jpeg(640, 480, before=200_000)),
    ("webp lossy", webp(b"VP8 ", 640, 480)),
    ("webp lossless", webp(b"VP8L", 640, 480)),
    ("webp extended", webp(b"VP8X", 640, 480)),
]


@pytest.mark.parametrize("data", [data for _, data in SIZES], ids=[name for name, _ in SIZES])
def test_the_size_of_an_image_is_read_from_its_beginning(data):
    assert media.image_size(b64(data)) == (640, 480)
    part = media.image(f"data:image/x;base64,{b64(data)}")
    assert (part.width, part.height, part.data_bytes) == (640, 480, len(b64(data)))


def test_line_breaks_and_url_safe_letters_in_base64_are_read_too():
    text = b64(png(0xFFBF, 0xFBFF))
    broken = "\r\n".join(text[n : n + 76] for n in range(0, len(text), 76))
    assert media.image_size(broken) == (0xFFBF, 0xFBFF)
    assert media.image_size(text.replace("+", "-").replace("/", "_")) == (0xFFBF, 0xFBFF)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x89PNG", b"GIF89a", b"RIFF\0\0\0\0WEBPVP9 " + bytes(40), png(0, 5),
     b"\xff\xd8\xff\xe0\0\x10" + bytes(9000), b"\xff\xd8\xff\xda\0\0", b"BM" + bytes(60), jpeg(640, 480)[:40]],
)  # fmt: skip
def test_an_image_that_does_not_tell_its_size_has_none(data):
    assert media.image_size(b64(data)) is None


@pytest.mark.parametrize("text", ["", "?", "é" * 2000, "\ud800", "A", "=" * 50])
def test_what_is_no_base64_has_no_size(text):
    assert media.image_size(text) is None
    assert media.pdf_pages(text) is None


def test_only_the_beginning_of_a_large_image_is_decoded(monkeypatch):
    decoded = []
    real = media.binascii.a2b_base64
    monkeypatch.setattr(media.binascii, "a2b_base64", lambda text: decoded.append(len(text)) or real(text))
    assert media.image_size(b64(png(640, 480) + bytes(3_000_000))) == (640, 480)
    assert sum(decoded) < 2_000


@pytest.mark.parametrize(
    ("data", "pages"), [(pdf(3), 3), (packed_pdf(12), 12), (b"%PDF-1.4 none", None), (b"PK", None)]
)
def test_pages_of_a_pdf_are_counted(data, pages):
    part = media.document(f"data:application/pdf;base64,{b64(data)}", name="a.pdf")
    assert (part.pages, part.name, part.data_bytes) == (pages, "a.pdf", len(b64(data)))


def test_pages_of_a_large_pdf_are_not_counted():
    assert media.pdf_pages(b64(pdf(3) + bytes(4_000_000))) is None


def test_a_link_has_no_payload():
    part = media.image("https://example.org/a.png", detail="low")
    assert (part.data_bytes, part.width, part.text, part.detail) == (0, None, "", "low")


def test_a_data_url_without_base64_is_payload_all_the_same():
    part = media.image("data:image/svg+xml;utf8,<svg/>")
    assert (part.name, part.data_bytes, part.width) == ("image/svg+xml", 6, None)
