"""What is sealed opens only with its key, in its place, undamaged."""

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.engine.checkpoint import StoreError
from tidegate.store.seal import Sealer, derive

KEY = bytes(range(32))
PLAIN = b"the agent chose port 4242"


@given(plain=st.binary(max_size=300), context=st.binary(max_size=60))
@settings(deadline=None, max_examples=50)
def test_opens_what_it_sealed(plain: bytes, context: bytes) -> None:
    assert Sealer(KEY).open(Sealer(KEY).seal(plain, context), context) == plain


def test_hides_the_plain_text_and_never_repeats() -> None:
    first, second = Sealer(KEY).seal(PLAIN, b"c"), Sealer(KEY).seal(PLAIN, b"c")
    assert PLAIN not in first
    assert first != second


@given(position=st.integers(0, len(PLAIN) + 28), bit=st.integers(0, 7))
@settings(deadline=None, max_examples=80)
def test_any_flipped_bit_is_refused(position: int, bit: int) -> None:
    sealed = bytearray(Sealer(KEY).seal(PLAIN, b"c"))
    sealed[position] ^= 1 << bit
    with pytest.raises(StoreError):
        Sealer(KEY).open(bytes(sealed), b"c")


@pytest.mark.parametrize(
    ("key", "context", "cut"),
    [
        pytest.param(KEY[::-1], b"c", None, id="another key"),
        pytest.param(KEY, b"d", None, id="another place"),
        pytest.param(KEY, b"c", -1, id="a byte short"),
        pytest.param(KEY, b"c", 5, id="a stump"),
        pytest.param(KEY, b"c", 0, id="nothing"),
    ],
)
def test_refuses(key: bytes, context: bytes, cut: int | None) -> None:
    sealed = Sealer(KEY).seal(PLAIN, b"c")
    with pytest.raises(StoreError) as caught:
        Sealer(key).open(sealed[:cut], context)
    assert "port" not in str(caught.value)


def test_a_later_version_is_named() -> None:
    sealed = b"\x07" + Sealer(KEY).seal(PLAIN, b"c")[1:]
    with pytest.raises(StoreError, match="version 7"):
        Sealer(KEY).open(sealed, b"c")


def test_purposes_have_different_keys() -> None:
    assert derive(KEY, "one") != derive(KEY, "two")
    with pytest.raises(ValueError, match="32 bytes"):
        derive(KEY[:31], "one")


@pytest.mark.parametrize("secret", [KEY, KEY * 5])
def test_keys_are_derived_by_hkdf(secret: bytes) -> None:
    by_the_library = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"tidegate hash v1")
    assert derive(secret, "hash v1") == by_the_library.derive(secret)


def test_a_sealer_does_not_show_its_key() -> None:
    assert KEY.hex() not in repr(Sealer(KEY))
    assert str(KEY) not in repr(Sealer(KEY))
