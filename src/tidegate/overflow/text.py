"""A refusal's text, with the set of its words: what a pattern needs and is not among them need not be looked for.

Knows words; not what they mean. Made by `rules`, read by `pattern` and `classify`.
"""

from __future__ import annotations

STEM = 4
"""Bytes of a word by which it is found where only its beginning is known: `exceed` in `exceeds`."""

_KEPT = b"abcdefghijklmnopqrstuvwxyz0123456789"
_SEPARATED = bytes(byte if byte in _KEPT else 0x20 for byte in range(256))
_NO_DIGITS = bytes(byte for byte in range(256) if byte not in b"0123456789")


class Text:
    """A lower-case text. Its words are runs of ASCII letters and digits, as bytes; made when first asked for."""

    __slots__ = ("_raw", "_stems", "_words", "ascii", "numbered", "string")

    def __init__(self, string: str) -> None:
        """`string` is lower case."""
        self.string = string
        self.ascii = string.isascii()
        self._raw = string.encode("ascii", "replace")
        self.numbered = len(self._raw.translate(None, _NO_DIGITS)) > 1
        """Whether there are digits enough for a number of tokens."""
        self._words: frozenset[bytes] | None = None
        self._stems: frozenset[bytes] | None = None

    @property
    def words(self) -> frozenset[bytes]:
        """The text's words."""
        if self._words is None:
            self._words = frozenset(self._raw.translate(_SEPARATED).split())
        return self._words

    @property
    def stems(self) -> frozenset[bytes]:
        """The first `STEM` bytes of each word."""
        if self._stems is None:
            self._stems = frozenset([word[:STEM] for word in self.words])
        return self._stems
