"""Compressed bodies: what is read, what is refused, and that a bomb does not go off."""

from __future__ import annotations

import gzip
import sys
import tracemalloc
import zlib

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.upstream.decode import BodyTooLarge, BodyUnreadable, decode_body

TEXT = b'{"model":"m","messages":[]}' * 50


def raw_deflate(data: bytes) -> bytes:
    writer = zlib.compressobj(wbits=-15)
    return writer.compress(data) + writer.flush()


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def zstd_stream(data: bytes) -> bytes:
    """Without the size in its header, as a streaming client writes it."""
    writer = zstandard.ZstdCompressor().compressobj()
    return writer.compress(data) + writer.flush()


def brotli(data: bytes) -> bytes:
    module = pytest.importorskip("brotli")
    return bytes(module.compress(data, quality=2))


CODINGS = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd, "br": brotli}


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("", TEXT),
        ("identity", TEXT),
        ("gzip", gzip.compress(TEXT)),
        ("GZip", gzip.compress(TEXT)),
        ("x-gzip", gzip.compress(TEXT)),
        ("gzip", gzip.compress(TEXT[:100]) + gzip.compress(TEXT[100:])),
        ("gzip", gzip.compress(TEXT) + b"\0" * 10),
        ("deflate", zlib.compress(TEXT)),
        ("deflate", raw_deflate(TEXT)),
        ("zstd", zstd(TEXT)),
        ("zstd", zstd_stream(TEXT)),
        ("zstd", zstd(TEXT[:100]) + zstd_stream(TEXT[100:])),
        ("gzip, zstd", zstd(gzip.compress(TEXT))),
        ("zstd,identity , gzip", gzip.compress(zstd(TEXT))),
    ],
)
def test_what_is_read(encoding: str, body: bytes) -> None:
    assert decode_body(body, encoding, len(TEXT)) == TEXT


@pytest.mark.parametrize("encoding", ["", "gzip", "zstd", "unheard-of"])
def test_an_empty_body_is_empty(encoding: str) -> None:
    assert decode_body(b"", encoding, 10) == b""


@given(data=st.binary(max_size=5000), encoding=st.sampled_from(["gzip", "deflate", "zstd"]))
@settings(max_examples=100, deadline=None)
def test_decoding_undoes_encoding(data: bytes, encoding: str) -> None:
    assert decode_body(CODINGS[encoding](data), encoding, 5000) == data


@given(noise=st.binary(min_size=1, max_size=200), encoding=st.sampled_from(["gzip", "deflate", "zstd"]))
@settings(max_examples=100, deadline=None)
def test_noise_is_refused_or_read_but_never_anything_else(noise: bytes, encoding: str) -> None:
    try:
        assert len(decode_body(noise, encoding, 1000)) <= 1000
    except (BodyTooLarge, BodyUnreadable):
        pass


@pytest.mark.parametrize("name", CODINGS)
def test_brotli_and_the_others_read_what_they_wrote(name: str) -> None:
    assert decode_body(CODINGS[name](TEXT), name, len(TEXT)) == TEXT


@pytest.mark.parametrize("name", CODINGS)
@pytest.mark.parametrize("fault", ["cut", "begun", "noise", "tail"])
def test_a_broken_body_is_told(name: str, fault: str) -> None:
    whole = CODINGS[name](TEXT)
    body = {"cut": whole[:-3], "begun": whole[:1], "noise": b"\xff" * 40, "tail": whole + b"tail"}[fault]
    with pytest.raises(BodyUnreadable, match=f"not valid {name}"):
        decode_body(body, name, 1_000_000)


@pytest.mark.parametrize("name", CODINGS)
def test_the_limit_is_exact(name: str) -> None:
    body = CODINGS[name](TEXT)
    assert decode_body(body, name, len(TEXT)) == TEXT
    with pytest.raises(BodyTooLarge, match=f"larger than {len(TEXT) - 1} bytes once"):
        decode_body(body, name, len(TEXT) - 1)


def test_the_limit_holds_for_plain_bodies_too() -> None:
    with pytest.raises(BodyTooLarge):
        decode_body(TEXT, "", 10)


@pytest.mark.parametrize("name", CODINGS)
@pytest.mark.parametrize("twice", [False, True])
def test_a_bomb_does_not_go_off(name: str, twice: bool) -> None:
    bomb = CODINGS[name](b"\0" * (200_000_000 if name == "zstd" else 20_000_000))
    if twice:
        bomb = CODINGS[name](bomb)
    assert len(bomb) < 100_000
    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLarge):
            decode_body(bomb, ", ".join([name] * (1 + twice)), 1_000_000)
        assert tracemalloc.get_traced_memory()[1] < (40_000_000 if name == "zstd" else 4_000_000)
    finally:
        tracemalloc.stop()


def test_a_zstd_frame_may_not_ask_for_a_huge_window() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    body = writer.compress(TEXT) + writer.flush()
    with pytest.raises(BodyUnreadable):
        decode_body(body, "zstd", 1_000_000)


@pytest.mark.parametrize(("name", "empty"), [("gzip", gzip.compress(b"")), ("zstd", zstd_stream(b""))])
def test_a_body_of_endless_frames_is_refused(name: str, empty: bytes) -> None:
    with pytest.raises(BodyUnreadable, match="consists of more than"):
        decode_body(empty * 10_000, name, 1_000_000)


@pytest.mark.parametrize("encoding", ["compress", "aws-chunked", "gzip, secret", "*"])
def test_an_unknown_coding_is_refused_by_what_may_be_used(encoding: str) -> None:
    with pytest.raises(BodyUnreadable, match="Use gzip, deflate, zstd") as caught:
        decode_body(TEXT, encoding, 1_000_000)
    assert "secret" not in str(caught.value)


def test_codings_can_not_be_stacked_without_end() -> None:
    with pytest.raises(BodyUnreadable, match="more than 3 times"):
        decode_body(TEXT, "gzip, gzip, gzip, gzip", 1_000_000)


@pytest.mark.parametrize("installed", ["none", "old"])
def test_brotli_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch, installed: str) -> None:
    class Old:
        class Decompressor:
            pass

    monkeypatch.setitem(sys.modules, "brotli", None if installed == "none" else Old)  # type: ignore[arg-type]
    with pytest.raises(BodyUnreadable, match=r"package brotli 1\.2"):
        decode_body(b"x", "br", 10)
