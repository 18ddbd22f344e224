"""Java's ``String.hashCode``, which consume queues (of tags) and index files (of keys) hold.

    s[0] * 31^(n-1) + s[1] * 31^(n-2) + … + s[n-1]      over UTF-16 code units, in 32 signed bits

A text is thus a number in base 31 whose digits are too large.  Each byte is split into two digits
of that base, 31 * high + low, and ``int(…, 31)`` reads the two numbers in C, in a third of the time
of a sum over the characters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hastore.native.in_use import extension

if TYPE_CHECKING:
    from collections.abc import Callable

_DIGITS: Final = b"0123456789abcdefghijklmnopqrstu"  # of base 31
_LOW: Final = bytes(_DIGITS[byte % 31] for byte in range(256))
_HIGH: Final = bytes(_DIGITS[byte // 31] for byte in range(256))
_PIECE_SIZE: Final = 256  # longer texts are read piece by piece, else time grows with the square
_POWERS: Final = tuple(pow(31, size, 2**32) for size in range(_PIECE_SIZE + 1))


def hash_in_python(text: str, begun: int = 0) -> int:
    """Return ``text.hashCode()`` as a signed 32-bit number.

    ``begun`` is the hash of a prefix: ``java_hash_code(b, java_hash_code(a))`` is the hash of
    ``a + b``.
    """
    if text.isascii():
        return hash_ascii(text.encode(), begun)
    return _signed(_hash_any(text, begun))


def hash_ascii(text: bytes, begun: int = 0) -> int:
    """Return the same of a text that is ASCII, given as bytes."""
    size = len(text)
    if not 0 < size <= _PIECE_SIZE:
        return _signed(_hash_any(text.decode("ascii"), begun))
    value = (
        begun * _POWERS[size] + int(text.translate(_LOW), 31) + 31 * int(text.translate(_HIGH), 31)
    ) & 0xFFFFFFFF
    return value if value < 0x80000000 else value - 0x100000000


def _signed(value: int) -> int:
    value &= 0xFFFFFFFF
    return value if value < 0x80000000 else value - 0x100000000


java_hash_code: Callable[..., int] = hash_in_python if extension is None else extension.java_hash


def _hash_any(text: str, begun: int) -> int:
    """Hash the upper and lower bytes of the code units separately, piece by piece."""
    data = text.encode("utf-16-be", "surrogatepass")
    upper, lower = data[::2], data[1::2]
    value = begun
    for start in range(0, len(lower), _PIECE_SIZE):
        end = start + _PIECE_SIZE
        piece = 256 * _polynomial(upper[start:end]) + _polynomial(lower[start:end])
        value = value * _POWERS[len(lower[start:end])] + piece & 0xFFFFFFFF
    return value


def _polynomial(data: bytes) -> int:
    return int(data.translate(_LOW), 31) + 31 * int(data.translate(_HIGH), 31)


def tags_code(tags: str | None) -> int:
    """Return the tagsCode of a message's TAGS: its hash, 0 if it is missing or empty."""
    return java_hash_code(tags) if tags else 0
