"""Java's ``String.hashCode``: consume queues (tags) and index files (keys) hold it.

    s[0] * 31^(n-1) + s[1] * 31^(n-2) + … + s[n-1]      over UTF-16 code units, in 32 signed bits

The sum is computed whole, then cut to 32 bits: with the powers of 31 ready, ``sum(map(mul, …))``
runs in C.  A text outside the Basic Multilingual Plane counts as its surrogate pairs.
"""

from __future__ import annotations

import struct
from operator import mul
from typing import Final

_POWERS_MAX: Final = 256  # of 31, cut to 32 bits; a longer text is hashed piece by piece


def _powers() -> tuple[int, ...]:
    powers = [1]
    for _ in range(_POWERS_MAX - 1):
        powers.append(powers[-1] * 31 & 0xFFFFFFFF)
    return tuple(reversed(powers))


# _TAILS[n]: the last n of 31^255 … 31^1 31^0.
_ALL: Final = _powers()
_TAILS: Final = tuple(_ALL[_POWERS_MAX - size :] for size in range(_POWERS_MAX + 1))
_PIECE_FACTOR: Final = _ALL[0] * 31 & 0xFFFFFFFF  # 31^256


def java_hash_code(text: str) -> int:
    """Give ``text.hashCode()`` as a signed 32-bit number."""
    units: bytes | tuple[int, ...]
    if text.isascii():
        units = text.encode()
    else:
        data = text.encode("utf-16-le", "surrogatepass")
        units = struct.unpack(f"<{len(data) // 2}H", data)
    size = len(units)
    value: int
    if size <= _POWERS_MAX:
        value = sum(map(mul, units, _TAILS[size]))
    else:
        start = size % _POWERS_MAX  # the odd piece goes first, so that all others are whole
        value = sum(map(mul, units[:start], _TAILS[start]))
        for begin in range(start, size, _POWERS_MAX):
            piece = sum(map(mul, units[begin : begin + _POWERS_MAX], _ALL))
            value = (value * _PIECE_FACTOR + piece) & 0xFFFFFFFF
    return (value + 0x80000000 & 0xFFFFFFFF) - 0x80000000


def tags_code(tags: str | None) -> int:
    """Give the tagsCode of a message's TAGS: its hash, 0 for none or an empty one."""
    return java_hash_code(tags) if tags else 0
