"""Records that lie end to end in one buffer, as numpy columns.

    data   | record | record | record | not a whole record, BLANK, zeros or damage
           ^starts[0]^        ^starts[2]

``walk`` follows the sizes; all else is read by numpy, a column at a time.  The rules are those of
``store.record_check``: a row is intact if and only if ``check_record`` calls it a MESSAGE.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
from isal import isal_zlib

from hastore.store.record.layout import (
    CRC_MASK,
    HEADS,
    HOST_FLAGS,
    HOST_FLAGS_POSITION,
    MAGIC_POSITION,
    MAGIC_SIZE,
    MESSAGE_MAGIC_BYTES,
    MESSAGE_MAGIC_CODE,
    MESSAGE_MAGIC_CODE_V2,
    NAME_END,
    PAIR_END,
    PROP_CRC_HALVES,
    PROP_CRC_SIZE,
    RECORD_SIZE_MIN,
    SIZE,
    TEXT_SIZE_MAX,
    TOPIC_SIZE_MAX_V1,
    head_fields,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

_SAMPLE_SIZE: Final = 8_000  # bytes whose records decide which way to walk is quicker
_SMALL_SIZE: Final = 600  # average size of records for which ``_chained`` is
# __CRC32# 01 dddddddddd 02
_PROP_CRC_TYPE: Final = np.dtype(
    [("half_1", "<u4"), ("half_2", "<u4"), ("end", "u1"), ("digits", "u1", 10), ("pair_end", "u1")]
)
_HALF_1: Final = np.uint32(int.from_bytes(PROP_CRC_HALVES[0], "little"))
_HALF_2: Final = np.uint32(int.from_bytes(PROP_CRC_HALVES[1][:4], "little"))
_POWERS_OF_TEN: Final = 10 ** np.arange(10, dtype=np.int64)  # the least significant digit first
_crc32 = isal_zlib.crc32


def _head_type(host_flags: int) -> np.dtype[Any]:
    return np.dtype(
        [
            (name, f"V{code[:-1]}" if code.endswith("s") else f">{code}")
            for name, code in head_fields(host_flags)
        ]
    )


_HEADS: Final = {flags: _head_type(flags) for flags in HEADS}
HEAD_FIELDS: Final = tuple(
    name for name in _HEADS[0].names or () if name not in {"born_host", "store_host"}
)


def walk(data: bytes, position: int, end: int) -> tuple[Array, int]:
    """Return where whole records begin in ``[position, end)``, and where the walk stopped.

    The sizes and magics are checked, nothing else.
    """
    last = min(end, len(data) - RECORD_SIZE_MIN + 1)
    sample_end = min(position + _SAMPLE_SIZE, last)
    found, stopped = _follow_sizes(data, position, sample_end)
    starts = np.frombuffer(array("q", found), np.int64)
    if sample_end <= stopped < last:
        if len(found) * _SMALL_SIZE > _SAMPLE_SIZE:
            chained, stopped = _chained(data, stopped, last)
            starts = np.concatenate([starts, chained])
        found, stopped = _follow_sizes(data, stopped, last)
        starts = np.concatenate([starts, np.frombuffer(array("q", found), np.int64)])
    if stopped > len(data):  # the last one is not whole
        stopped = int(starts[-1])
        starts = starts[:-1]
    if not len(starts):
        return starts, stopped
    # Checking all magics at once is quicker; the walk ends at the first wrong one.
    magics = windows(data, MAGIC_SIZE)[starts + MAGIC_POSITION].view(">i4")[:, 0]
    good = (magics == MESSAGE_MAGIC_CODE) | (magics == MESSAGE_MAGIC_CODE_V2)
    if good.all():
        return starts, stopped
    first = int(good.argmin())
    return starts[:first], int(starts[first])


def windows(data: bytes | NDArray[np.uint8], width: int) -> Array:
    """Return a view whose row n is the ``width`` bytes from position n on; indexing it copies.

    Like numpy's ``sliding_window_view``, without its checks, which take longer than most copies.
    """
    size = len(data) - width + 1
    return np.ndarray((max(size, 0), width), np.uint8, data, strides=(1, 1))


def _follow_sizes(data: bytes, position: int, last: int) -> tuple[list[int], int]:
    """Return the positions below ``last`` that hold a valid size, and the end of the last one."""
    unpack = SIZE.unpack_from
    found: list[int] = []
    append = found.append
    while position < last:
        (size,) = unpack(data, position)
        if size < RECORD_SIZE_MIN:
            break
        append(position)
        position += size
    return found, position


def _chained(data: bytes, position: int, last: int) -> tuple[Array, int]:
    """Do the same for records with a magic, all at once: a fifth of the time if they are small.

    Finds every magic.  From ``position`` on, each size must lead to the next magic; the first that
    does not (a magic in a body, perhaps) ends the chain.
    """
    found = np.frombuffer(data, np.uint8)
    magics = found[position + MAGIC_POSITION : last + MAGIC_POSITION]
    marks = np.flatnonzero(magics == MESSAGE_MAGIC_BYTES[0])
    marks += position
    for index in (1, 2):  # only the last byte of the V2 magic differs
        marks = marks[found[marks + (MAGIC_POSITION + index)] == MESSAGE_MAGIC_BYTES[index]]
    sizes = np.zeros(len(marks), np.int64)
    for index in range(SIZE.size):
        sizes = sizes << 8 | found[marks + index]
    if not len(marks) or marks[0] != position:
        return marks[:0], position
    ends = marks + sizes
    leads = (ends[:-1] == marks[1:]) & (sizes[:-1] >= RECORD_SIZE_MIN)
    count = len(leads) if leads.all() else int(leads.argmin())
    return marks[:count], int(marks[count])


@final
class RecordBlock:
    """The records at ``starts``; all arrays have one value for each.

    A record whose inner lengths do not agree ends the block: ``end`` is where it begins, and
    ``count`` is smaller than the number of starts passed.  ``physic_offset`` is where ``data``
    begins.
    """

    def __init__(self, data: bytes, starts: Array, end: int, physic_offset: int) -> None:
        self.data = data
        self._bytes = np.frombuffer(data, np.uint8)
        self.physic_offset = physic_offset
        self.starts = starts
        self._read_heads()
        self._measure()
        wrong = np.flatnonzero(~self._is_measured)
        if wrong.size:
            end = int(self.starts[wrong[0]])
            self._cut(int(wrong[0]))
        self.end = end

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.starts)

    # -- heads -----------------------------------------------------------------------------------

    def _read_heads(self) -> None:
        self.head: dict[str, Array] = {}
        # (rows, born hosts, store hosts) of each layout that occurs
        self.hosts: list[tuple[Array, Array, Array]] = []
        host_flags = self._bytes[self.starts + HOST_FLAGS_POSITION] & HOST_FLAGS
        for flags in np.flatnonzero(np.bincount(host_flags)).tolist():
            self._read_layout(np.flatnonzero(host_flags == flags), _HEADS[flags])
        if not self.hosts:  # no record at all
            self._read_layout(np.zeros(0, np.int64), _HEADS[0])

    def _read_layout(self, rows: Array, head_type: np.dtype[Any]) -> None:
        """Read the heads of the records with the same host flags."""
        starts = self.starts[rows]
        # A record of 91 bytes has no room for the head of an IPv6 host.
        fits = starts + head_type.itemsize <= len(self.data)
        if fits.all():
            heads = self._gather(starts, head_type.itemsize).view(head_type)[:, 0]
        else:
            heads = np.zeros(len(rows), head_type)
            heads[fits] = self._gather(starts[fits], head_type.itemsize).view(head_type)[:, 0]
            heads["body_size"][~fits] = -1
        self.hosts.append((rows, heads["born_host"], heads["store_host"]))
        is_whole = len(rows) == len(self.starts)  # most logs have one layout
        body_starts = starts + head_type.itemsize
        if is_whole:
            self.body_starts = body_starts
        for name in HEAD_FIELDS:
            native = head_type.fields[name][0].newbyteorder("=")  # type: ignore[index]
            if is_whole:
                self.head[name] = heads[name].astype(native)
            else:
                self.head.setdefault(name, np.zeros(len(self.starts), native))[rows] = heads[name]
        if not is_whole:
            if len(self.hosts) == 1:
                self.body_starts = np.zeros(len(self.starts), np.int64)
            self.body_starts[rows] = body_starts

    def _gather(self, starts: Array, width: int) -> Array:
        """Return ``width`` bytes from each start, a row each."""
        if not len(starts):
            return np.zeros((0, width), np.uint8)
        found: Array = windows(self.data, width)[starts]
        return found

    def _measure(self) -> None:
        """Find topics and properties, and check that the lengths add up."""
        head = self.head
        self.ends = ends = self.starts + head["size"]
        self.body_sizes = head["body_size"].astype(np.int64)
        is_v2 = head["magic"] == MESSAGE_MAGIC_CODE_V2
        at = self.body_starts + self.body_sizes
        good = (self.body_sizes >= 0) & (at + 1 + is_v2 + 2 <= ends)
        short, long = self._short_at(at, good)
        self.topic_sizes = np.where(is_v2, long, short)
        self.topic_starts = at + 1 + is_v2
        good &= self.topic_sizes <= np.where(is_v2, TEXT_SIZE_MAX, TOPIC_SIZE_MAX_V1)
        at = self.topic_starts + self.topic_sizes
        good &= at + 2 <= ends
        _, self.properties_sizes = self._short_at(at, good)
        self.properties_starts = at + 2
        good &= self.properties_sizes <= TEXT_SIZE_MAX
        good &= self.properties_starts + self.properties_sizes == ends
        self._is_measured = good

    def _short_at(self, at: Array, good: Array) -> tuple[Array, Array]:
        """Return one byte, and two, at each position; positions that are not ``good`` read at 0."""
        at = np.where(good, at, 0)
        first = self._bytes[at].astype(np.int64)
        return first, first << 8 | self._bytes[at + 1]

    def _cut(self, count: int) -> None:
        for name in (
            "starts", "ends", "body_starts", "body_sizes", "topic_starts", "topic_sizes",
            "properties_starts", "properties_sizes",
        ):  # fmt: skip
            setattr(self, name, getattr(self, name)[:count])
        self.head = {name: values[:count] for name, values in self.head.items()}
        hosts = []
        for rows, born, stored in self.hosts:
            kept = int(np.searchsorted(rows, count))
            hosts.append((rows[:kept], born[:kept], stored[:kept]))
        self.hosts = hosts

    # -- checks ----------------------------------------------------------------------------------

    def is_in_place(self) -> Array:
        """Whether each record's stored offset is its position."""
        placed: Array = self.head["stored_offset"] == self.starts + self.physic_offset
        return placed

    def body_fits(self) -> Array:
        """Whether each body matches its record's CRC."""
        found = self._crcs(self.body_starts, self.body_starts + self.body_sizes)
        fits: Array = _without_sign(found) == self.head["body_crc"]
        return fits

    def _crcs(self, starts: Array, ends: Array) -> Array:
        """Return the CRC32 of each piece of the data.

        One call a piece: the more expensive of the two loops over records.
        """
        crc = _crc32
        view = memoryview(self.data)
        spans = zip(starts.tolist(), ends.tolist(), strict=True)
        found = array("I", [crc(view[a:b]) for a, b in spans])  # a third of numpy's own time
        return np.frombuffer(found, np.uint32)

    def digests(self) -> Array:
        """Return the CRC32 of each whole record."""
        return self._crcs(self.starts, self.ends).view(np.int32)

    def prop_crc_fits(self) -> Array:
        """Whether each record has no ``__CRC32#``, or the right one.

        If half its name is damaged, the other half and its shape identify it (``record_check``).
        """
        rows, stored = self._prop_crcs()
        found = _without_sign(self._crcs(self.starts[rows], self.ends[rows] - PROP_CRC_SIZE))
        return self._prop_crcs_are(rows, stored, found)

    def both_fit(self) -> tuple[Array, Array]:
        """Return ``body_fits`` and ``prop_crc_fits``, reading each record from memory once."""
        rows, stored = self._prop_crcs()
        if len(rows) < self.count:
            return self.body_fits(), self.prop_crc_fits()
        starts = np.stack((self.body_starts, self.starts), axis=1)
        ends = np.stack((self.body_starts + self.body_sizes, self.ends - PROP_CRC_SIZE), axis=1)
        found = _without_sign(self._crcs(starts.ravel(), ends.ravel())).reshape(-1, 2)
        fits: Array = found[:, 0] == self.head["body_crc"]
        return fits, self._prop_crcs_are(rows, stored, found[:, 1])

    def is_intact(self) -> Array:
        """Whether each record is in its place and matches its checksums."""
        body_fits, others_fit = self.both_fit()
        return body_fits & others_fit & self.is_in_place()

    def _prop_crcs(self) -> tuple[Array, Array]:
        """Return the rows that may have a ``__CRC32#``, and their last bytes."""
        rows = np.flatnonzero(self.properties_sizes >= PROP_CRC_SIZE)
        stored = self._gather(self.ends[rows] - PROP_CRC_SIZE, PROP_CRC_SIZE).view(_PROP_CRC_TYPE)
        stored = stored[:, 0]
        is_half_named = stored["half_1"] == _HALF_1
        is_half_named |= (stored["half_2"] == _HALF_2) & (stored["end"] == NAME_END)
        if is_half_named.all():
            return rows, stored
        return rows[is_half_named], stored[is_half_named]

    def _prop_crcs_are(self, rows: Array, stored: Array, found: Array) -> Array:
        """Compare the ``stored`` checksums of ``rows`` with those that were ``found``."""
        # The digits' values, least significant first; a byte below "0" wraps.
        digits = stored["digits"] - np.uint8(ord("0"))
        is_shaped = stored["pair_end"] == PAIR_END
        is_digit = digits < len(_POWERS_OF_TEN)
        if not is_digit.all():
            is_shaped &= is_digit.all(axis=1)
        is_named = (stored["half_1"] == _HALF_1) & (stored["half_2"] == _HALF_2)
        is_named &= stored["end"] == NAME_END
        is_right = is_named & is_shaped & (digits @ _POWERS_OF_TEN == found)
        fits = np.ones(self.count, np.bool_)
        fits[rows[(is_named | is_shaped) & ~is_right]] = False
        return fits


def _without_sign(crcs: Array) -> Array:
    """Return CRCs as records state them: without the highest bit."""
    return (crcs & CRC_MASK).view(np.int32)
