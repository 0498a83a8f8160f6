"""A refusal's text, with the set of its words: what a pattern needs and is not among them need not be looked for.

Knows words; not what they mean. Made by `classify`, read by `pattern` and `rules`.
"""

from __future__ import annotations

STEM = 4
"""Bytes of a word by which it is found where only its beginning is known: `exceed` in `exceeds`."""

_KEPT = b"abcdefghijklmnopqrstuvwxyz0123456789"
_SEPARATED = bytes(byte if byte in _KEPT else 0x20 for byte in range(256))


class Text:
    """A lower-case text. Its words are runs of ASCII letters and digits, as bytes; made when first asked for."""

    __slots__ = ("_stems", "_words", "ascii", "string")

    def __init__(self, string: str) -> None:
        """`string` is lower case."""
        self.string = string
        self.ascii = string.isascii()
        self._words: frozenset[bytes] | None = None
        self._stems: frozenset[bytes] | None = None

    @property
    def words(self) -> frozenset[bytes]:
        """The text's words."""
        if self._words is None:
            self._words = words_of(self.string)
        return self._words

    @property
    def stems(self) -> frozenset[bytes]:
        """The first bytes of each word, `STEM` of them."""
        if self._stems is None:
            self._stems = frozenset([word[:STEM] for word in self.words])
        return self._stems


def words_of(string: str) -> frozenset[bytes]:
    """The words of a lower-case text, `_` and the like between them."""
    return frozenset(string.encode("ascii", "replace").translate(_SEPARATED).split())
