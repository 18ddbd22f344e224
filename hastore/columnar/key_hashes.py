"""Compute the index's hashes of all keys of a block, without a Python object per key.

    hash = |h(topic#) × 31^n + k₀ × 31^(n-1) + … + kₙ₋₁|   mod 2³², k the key's UTF-16 units

The hashes of all keys of one length are a matrix of bytes times a vector of powers.  That works for
ASCII; records with any other key must be hashed text by text (``odd_rows``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    Array = NDArray[Any]

_FACTOR: Final = 31
_ASCII_MAX: Final = 127
_SPACE: Final = ord(" ")
_MIN_VALUE: Final = -(2**31)


class Pieces:
    """Non-empty slices of one buffer of text, each with its row and ``[start, end)`` position."""

    def __init__(self, data: Array, rows: Array, starts: Array, ends: Array) -> None:
        is_kept = ends > starts
        self.data = data
        self.rows, self.starts, self.ends = rows[is_kept], starts[is_kept], ends[is_kept]

    def odd_rows(self) -> Array:
        """Return the rows with a non-ASCII byte."""
        at = np.flatnonzero(self.data > _ASCII_MAX)
        found = self.ends.searchsorted(at, side="right")
        at, found = at[found < len(self.rows)], found[found < len(self.rows)]
        return np.unique(self.rows[found[self.starts[found] <= at]])

    def hashes(self, begun: Array) -> Array:
        """Return each piece's hash, continued from ``begun``, the hash of its row's topic."""
        found = begun[self.rows].astype(np.uint32)
        sizes = self.ends - self.starts
        for size in np.unique(sizes).tolist():
            some = np.flatnonzero(sizes == size)
            powers = _powers(size)
            windows = np.lib.stride_tricks.sliding_window_view(self.data, size)
            text = windows[self.starts[some]].astype(np.uint32)
            found[some] = found[some] * powers[0] + text @ powers[1:]
        signed = found.view(np.int32).astype(np.int64)
        return np.where(signed == _MIN_VALUE, 0, np.abs(signed)).astype(np.int32)


def _powers(size: int) -> Array:
    """Return 31^size, …, 31, 1 mod 2³²."""
    values = [pow(_FACTOR, exponent, 2**32) for exponent in range(size, -1, -1)]
    return np.array(values, np.uint32)


def values_of(column: pa.StringArray) -> Pieces:
    """Return a column's values, without null and empty ones."""
    data, starts, ends = _buffers(column)
    return Pieces(data, np.arange(len(column)), starts, ends)


def words_of(column: pa.StringArray) -> Pieces:
    """Return the words of a column's values, split at spaces, in order."""
    data, starts, ends = _buffers(column)
    first = int(starts[0]) if len(starts) else 0
    last = int(ends[-1]) if len(ends) else 0
    # Values follow each other without gaps, so every space ends one piece and begins another.
    spaces = first + np.flatnonzero(data[first:last] == _SPACE)
    word_starts = np.sort(np.concatenate([starts, spaces + 1]))
    word_ends = np.sort(np.concatenate([ends, spaces]))
    rows = ends.searchsorted(word_starts, side="right")
    return Pieces(data, rows, word_starts, word_ends)


def _buffers(column: pa.StringArray) -> tuple[Array, Array, Array]:
    _, offsets, data = column.buffers()
    places = np.frombuffer(offsets, np.int32)[column.offset :][: len(column) + 1].astype(np.int64)
    text = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return text, places[:-1], places[1:]
