"""The properties of records that all have the same names in the same order.

    | TAGS 01 a 02 | KEYS 01 k1 02 |       typical of one producer: each name forms a column, is
    | TAGS 01 b 02 | KEYS 01 k2 02 |       decoded once, and copied without a search

The rows are the same as those of ``property_columns``, which reads all other properties.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
import pyarrow as pa

from hastore.columnar.text_columns import first_words, text_column
from hastore.store.record.layout import NAME_END, PAIR_END

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

_WORD_SIZE: Final = 8
_NAME_END_PAIR_END: Final = np.uint16(PAIR_END << 8 | NAME_END)  # as two bytes


@final
class UniformPairs:
    """Pairs as a table, a row for each record and a column for each of ``names``; see ``find``."""

    def __init__(self, raw: pa.Buffer, names: list[str], begins: Array, ends: Array) -> None:
        self._raw = raw
        self._names = names
        self._begins, self._ends = begins, ends  # of values, record after record
        self._values: pa.Array | None = None

    @classmethod
    def find(
        cls, raw: pa.Buffer, text: Array, row_starts: Array, marks: Array
    ) -> UniformPairs | None:
        """Return the pairs of a text of records without gaps; None if they are not uniform.

        ``marks`` are the positions of all 01 and 02.
        """
        count = len(row_starts)
        if not len(marks) or len(marks) % (2 * count):
            return None
        width = len(marks) // (2 * count)
        if (text[marks].view("<u2") != _NAME_END_PAIR_END).any():
            return None
        name_ends, ends = marks[::2], marks[1::2]
        starts = np.empty_like(ends)
        starts[0] = 0
        np.add(ends[:-1], 1, out=starts[1:])
        if ends[-1] != len(text) - 1 or (starts[::width] != row_starts).any():
            return None  # a text without a 02 at its end, or with more or fewer pairs
        begins = name_ends + 1
        if (begins >= ends).any():
            return None
        names = _names(text, starts, name_ends - starts, width)
        return None if names is None else cls(raw, names, begins, ends)

    def take_values(self) -> None:
        """Make all values at once, for the map."""
        self._values = text_column(self._raw, self._begins, self._ends)

    def column(self, name: str) -> pa.Array:
        """Return the value of one property of each record, null where it has none."""
        assert len(name) <= _WORD_SIZE, name  # as in PropertyPairs
        count, width = len(self._ends), len(self._names)
        if name not in self._names:
            return pa.nulls(count // width, pa.string())
        place = self._names.index(name)
        if self._values is not None:
            return self._values.take(pa.array(np.arange(place, count, width)))
        return text_column(self._raw, self._begins[place::width], self._ends[place::width])

    def map_column(self) -> pa.Array:
        """Return all properties of each record as a map."""
        if self._values is None:
            self.take_values()
        count, width = len(self._ends), len(self._names)
        parts = [name.encode() for name in self._names]
        rows = count // width
        offsets = np.zeros(count + 1, np.int32)
        np.cumsum(np.tile([len(part) for part in parts], rows), out=offsets[1:])
        names = pa.StringArray.from_buffers(
            count, pa.py_buffer(offsets), pa.py_buffer(b"".join(parts) * rows)
        )
        of_row = np.arange(0, count + 1, width, dtype=np.int32)
        return pa.MapArray.from_arrays(pa.array(of_row), names, self._values)


def _names(text: Array, starts: Array, sizes: Array, width: int) -> list[str] | None:
    """Return the names of the first record; None if another record has different ones.

    None as well if a name is empty, repeated, longer than 16 bytes, or not UTF-8.
    """
    own = sizes[:width]
    if own.min() < 1 or own.max() > 2 * _WORD_SIZE or _differs(sizes, width):
        return None
    rows = len(starts) // width
    unused = np.maximum(_WORD_SIZE - own, 0).astype(np.uint64) << np.uint64(3)
    if _differs(first_words(text, starts) << np.tile(unused, rows), width):
        return None
    long = np.flatnonzero(own > _WORD_SIZE)
    if len(long):
        last = (starts + sizes - _WORD_SIZE).reshape(rows, width)[:, long]
        if _differs(first_words(text, last.ravel()), len(long)):
            return None
    spans = zip(starts[:width].tolist(), own.tolist(), strict=True)
    try:
        names = [text[start : start + size].tobytes().decode() for start, size in spans]
    except UnicodeDecodeError:
        return None
    return names if len(set(names)) == len(names) else None


def _differs(values: Array, width: int) -> bool:
    """Whether any row of ``width`` values differs from the row before."""
    return bool((values[width:] != values[:-width]).any())
