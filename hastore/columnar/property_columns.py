"""Splits the properties of many records at once.

    K E Y S 01 k 1 02 T A G S 01 t 02        one record's text; the last 02 may be missing
    └name─┘    └val┘  └name─┘    v

Rules of ``message_codec.decode_properties``: a name ends at the first 01 of its pair; a pair
without a name or a value is skipped; if a name comes twice, the last value counts.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
import pyarrow as pa

from hastore.columnar.record_block import windows
from hastore.columnar.text_columns import binary_take, first_words, text_column
from hastore.columnar.uniform_pairs import UniformPairs
from hastore.store.record.layout import NAME_END, PAIR_END

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hastore.columnar.record_block import RecordBlock

    Array = NDArray[Any]

_WORD_SIZE: Final = 8
_COMPARED_MAX: Final = 16  # pairs of a record; with more a hash table is quicker
_MIXING: Final = np.uint64(0x9E3779B97F4A7C15)
_MIXING_ROWS: Final = np.uint64(0xC2B2AE3D27D4EB4F)


def property_pairs(block: RecordBlock, *, of_all: bool = False) -> PropertyPairs | UniformPairs:
    """Return the properties of a block; ``of_all`` (for the map) makes all values at once."""
    sizes = block.properties_sizes
    # One buffer of nothing but properties, so that one search finds all separators.
    pieces = binary_take(block.data, block.properties_starts, block.properties_starts + sizes)
    raw = pieces.buffers()[2] or pa.py_buffer(b"")
    row_ends = np.cumsum(sizes)
    text = np.frombuffer(raw, np.uint8, int(sizes.sum()))
    marks = np.flatnonzero(text <= PAIR_END)
    pairs: PropertyPairs | UniformPairs | None
    pairs = UniformPairs.find(raw, text, row_ends - sizes, marks)
    if pairs is None:
        pairs = PropertyPairs(raw, text, sizes, row_ends, marks)
    if of_all:
        pairs.take_values()
    return pairs


@final
class PropertyPairs:
    """All pairs of a block: the row of each, and where name and value stand in its data."""

    def __init__(
        self, raw: pa.Buffer, text: Array, sizes: Array, row_ends: Array, marks: Array
    ) -> None:
        """Split ``text``, all records' properties without gaps."""
        self._count = len(sizes)
        self._raw = raw
        self._bytes = text
        self._values: pa.Array | None = None
        if not self._read_plain(text, sizes, row_ends, marks):
            self._read_any(text, sizes, row_ends)

    def take_values(self) -> None:
        """Make all values at once."""
        self._values = text_column(self._raw, self.name_ends + 1, self.value_ends)

    def _read_plain(self, text: Array, sizes: Array, row_ends: Array, marks: Array) -> bool:
        """Read texts in which 01 and 02 alternate and which end in 02, as RocketMQ writes them.

        ``marks`` are the positions of all 01 and 02.  Return false for other texts.
        """
        kinds = text[marks]
        if (
            len(marks) % 2
            or (kinds[::2] != NAME_END).any()
            or (kinds[1::2] != PAIR_END).any()
            or (text[row_ends[sizes > 0] - 1] != PAIR_END).any()
        ):
            return False
        name_ends, ends = marks[::2], marks[1::2]
        starts = np.empty_like(ends)
        starts[:1] = 0
        starts[1:] = ends[:-1] + 1
        if (name_ends == starts).any() or (name_ends + 1 == ends).any():
            return False
        self.name_starts, self.name_ends, self.value_ends = starts, name_ends, ends
        counts = np.diff(ends.searchsorted(row_ends), prepend=0)
        self.rows = np.repeat(np.arange(self._count), counts)
        return True

    def _read_any(self, text: Array, sizes: Array, row_ends: Array) -> None:
        row_starts = row_ends - sizes
        pair_ends = np.flatnonzero(text == PAIR_END)
        has_any = sizes > 0
        starts = _marked(len(text), row_starts[has_any], pair_ends + 1)
        starts = starts[text[starts] != PAIR_END]  # an empty pair has no name
        ends = _marked(len(text) + 1, pair_ends, row_ends[has_any])
        ends = ends[ends.searchsorted(starts, side="right")]
        name_ends = np.append(np.flatnonzero(text == NAME_END), len(text))
        name_ends = name_ends[name_ends.searchsorted(starts)]
        kept = (name_ends > starts) & (name_ends + 1 < ends)
        self.name_starts, self.name_ends, self.value_ends = (
            starts[kept], name_ends[kept], ends[kept]
        )  # fmt: skip
        self.rows = np.searchsorted(row_ends, self.name_starts, side="right")

    def column(self, name: str) -> pa.Array:
        """Return the value of one property of each record, null where it has none."""
        found = self._found(name)
        of_row = np.full(self._count, -1, np.int64)
        of_row[self.rows[found]] = found  # if a name comes twice, the last one stays
        missing = of_row < 0
        if self._values is not None:
            return self._values.take(pa.array(of_row, mask=missing if missing.any() else None))
        of_row[missing] = 0
        starts = self.name_ends[of_row] + 1 if len(found) else of_row
        ends = np.where(missing, starts, self.value_ends[of_row]) if len(found) else of_row
        return text_column(self._raw, starts, ends, missing=missing)

    def _found(self, name: str) -> Array:
        """Return the pairs of a name of at most 8 bytes."""
        assert len(name) <= _WORD_SIZE, name  # only the first word is compared
        word = np.frombuffer(name.encode().rjust(_WORD_SIZE, b"\0"), "<u8")[0]
        sizes = self.name_ends - self.name_starts
        return np.flatnonzero((self._first_words == word) & (sizes == len(name)))

    @functools.cached_property
    def _first_words(self) -> Array:
        """The first 8 bytes of each name as one number, right-aligned where it is shorter."""
        words = first_words(self._bytes, self.name_starts)
        missing = np.maximum(_WORD_SIZE - (self.name_ends - self.name_starts), 0)
        words <<= (missing << 3).astype(np.uint64)
        return words

    def map_column(self) -> pa.Array:
        """Return all properties of each record as a map; empty where it has none."""
        raw = self._raw
        rows, starts, name_ends, ends = self.rows, self.name_starts, self.name_ends, self.value_ends
        names = text_column(raw, starts, name_ends)
        kept = self._last_of_each_name(names)
        if kept is not None:
            rows, starts, name_ends, ends = rows[kept], starts[kept], name_ends[kept], ends[kept]
            names = text_column(raw, starts, name_ends)
        offsets = np.zeros(self._count + 1, np.int32)
        np.cumsum(np.bincount(rows, minlength=self._count), out=offsets[1:])
        values = self._values if kept is None else None
        if values is None:
            values = text_column(raw, name_ends + 1, ends)
        return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), names, values)

    def _may_repeat(self) -> bool:
        """Whether a record may have a name twice: compares lengths, first and last bytes."""
        most = int(np.bincount(self.rows, minlength=1).max())
        if most > _COMPARED_MAX:
            return True
        # The record's number is in each code, so only names of one record can be alike.
        codes = self.rows << 32 | (self.name_ends - self.name_starts) << 16
        codes |= self._bytes[self.name_starts].astype(np.int64) << 8
        codes |= self._bytes[self.name_ends - 1]
        if not _is_any_alike(codes, most):
            return False
        # Of names longer than 16 bytes the middle is not compared.
        sizes = self.name_ends - self.name_starts
        padded = np.concatenate([np.zeros(_WORD_SIZE, np.uint8), self._bytes])
        last = windows(padded, _WORD_SIZE)[self.name_ends].view("<u8")[:, 0]
        last >>= (np.maximum(_WORD_SIZE - sizes, 0) << 3).astype(np.uint64)
        mixed = self._first_words * _MIXING ^ last ^ sizes.astype(np.uint64)
        mixed += self.rows.astype(np.uint64) * _MIXING_ROWS
        return _is_any_alike(mixed, most)

    def _last_of_each_name(self, names: pa.Array) -> Array | None:
        """Return the pairs to keep; None for all of them."""
        if not self._may_repeat():
            return None
        codes = names.dictionary_encode().indices.to_numpy(zero_copy_only=False)
        ids = self.rows * (len(names) + 1) + codes
        ordered = np.sort(ids)
        if not (ordered[1:] == ordered[:-1]).any():
            return None
        _, last_first = np.unique(ids[::-1], return_index=True)
        kept: Array = np.sort(len(ids) - 1 - last_first)
        return kept


def _is_any_alike(codes: Array, most: int) -> bool:
    """Whether two codes less than ``most`` places apart are the same."""
    return any((codes[step:] == codes[:-step]).any() for step in range(1, most))


def _marked(size: int, *places: Array) -> Array:
    """Return the places below ``size`` in order, each once; quicker than sorting them."""
    marks = np.zeros(size + 1, np.bool_)
    for some in places:
        marks[some] = True
    return np.flatnonzero(marks[:size])
