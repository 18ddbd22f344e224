"""Records that lie end to end in one buffer, as numpy columns.

    data   | record | record | record | not a whole record, BLANK, zeros or damage
           ^starts[0]^        ^starts[2]

``walk`` follows the sizes; all else is read by numpy, a column at a time.  The rules are those of
``store.record_check``: a row is sound here if and only if ``check_record`` calls it a MESSAGE.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
from isal import isal_zlib

from hastore.message import PROPERTY_CRC32
from hastore.store.record_check import (
    CRC_MASK,
    HOST_SIZES,
    MESSAGE_MAGIC_CODE,
    MESSAGE_MAGIC_CODE_V2,
    PROP_CRC_SIZE,
    RECORD_SIZE_MIN,
    TEXT_SIZE_MAX,
    TOPIC_SIZE_MAX_V1,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

_SIZE_AND_MAGIC: Final = struct.Struct(">ii")
_PROP_CRC: Final = np.frombuffer(PROPERTY_CRC32.encode() + b"\x01", np.uint8)
_PAIR_END: Final = 2
_POWERS_OF_TEN: Final = 10 ** np.arange(10, dtype=np.int64)  # the least significant digit first
_crc32 = isal_zlib.crc32


def _head_type(born_size: int, store_size: int) -> np.dtype[Any]:
    return np.dtype(
        [
            ("size", ">i4"),
            ("magic", ">i4"),
            ("body_crc", ">i4"),
            ("queue_id", ">i4"),
            ("flag", ">i4"),
            ("queue_offset", ">i8"),
            ("stored_offset", ">i8"),
            ("sys_flag", ">i4"),
            ("born_ms", ">i8"),
            ("born_host", f"V{born_size + 4}"),
            ("store_ms", ">i8"),
            ("store_host", f"V{store_size + 4}"),
            ("reconsume_times", ">i4"),
            ("prepared_transaction_offset", ">i8"),
            ("body_size", ">i4"),
        ]
    )


# By sysFlag bits 5 and 4, as HOST_SIZES.
_HEADS: Final = tuple(_head_type(born, store) for born, store in HOST_SIZES)
_SYS_FLAG_POSITION: Final = 36
HEAD_FIELDS: Final = tuple(
    name for name in _HEADS[0].names or () if name not in {"born_host", "store_host"}
)


def walk(data: bytes, position: int, end: int) -> tuple[list[int], int]:
    """Give where whole records begin, from ``position`` on, and where none does any more.

    Begins no record at ``end`` or behind it.
    """
    unpack = _SIZE_AND_MAGIC.unpack_from
    starts: list[int] = []
    append = starts.append
    last = len(data)
    while position < end and position + 8 <= last:
        size, magic = unpack(data, position)
        if (
            magic not in (MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2)
            or size < RECORD_SIZE_MIN
            or position + size > last
        ):
            break
        append(position)
        position += size
    return starts, position


@final
class RecordBlock:
    """The records at ``starts``; all arrays have one value for each.

    ``count`` may be smaller than the number of starts: a record whose inner lengths do not agree
    ends the block, and ``end`` is where it begins.  ``physic_offset`` is that of ``data``'s begin.
    """

    def __init__(self, data: bytes, starts: list[int], end: int, physic_offset: int) -> None:
        self.data = data
        self._bytes = np.frombuffer(data, np.uint8)
        self.physic_offset = physic_offset
        self.starts = np.array(starts, np.int64)
        self._read_heads()
        self._measure()
        wrong = np.flatnonzero(~self._is_measured)
        if wrong.size:
            end = int(self.starts[wrong[0]])
            self._cut(int(wrong[0]))
        self.end = end

    @property
    def count(self) -> int:
        """How many records there are."""
        return len(self.starts)

    # -- heads -----------------------------------------------------------------------------------

    def _read_heads(self) -> None:
        count = len(self.starts)
        self.head: dict[str, Array] = {
            name: np.zeros(count, _HEADS[0].fields[name][0].newbyteorder("="))  # type: ignore[index]
            for name in HEAD_FIELDS
        }
        # (rows, born hosts, store hosts) of each layout that occurs
        self.hosts: list[tuple[Array, Array, Array]] = []
        self.body_starts = np.zeros(count, np.int64)
        if not count:
            return
        flags = self._bytes[self.starts + _SYS_FLAG_POSITION + 3]
        layouts = flags >> 4 & 3
        for layout in np.unique(layouts):
            head_type = _HEADS[layout]
            rows = np.flatnonzero(layouts == layout)
            starts = self.starts[rows]
            # A record of 91 bytes has no room for the head of an IPv6 host.
            fits = starts + head_type.itemsize <= len(self.data)
            heads = np.zeros(len(rows), head_type)
            heads[fits] = self._gather(starts[fits], head_type.itemsize).view(head_type)[:, 0]
            for name in HEAD_FIELDS:
                self.head[name][rows] = heads[name]
            self.head["body_size"][rows[~fits]] = -1
            self.hosts.append((rows, heads["born_host"], heads["store_host"]))
            self.body_starts[rows] = starts + head_type.itemsize

    def _gather(self, starts: Array, width: int) -> Array:
        """Copy ``width`` bytes from each start: a row each."""
        if not len(starts):
            return np.zeros((0, width), np.uint8)
        windows = np.lib.stride_tricks.sliding_window_view(self._bytes, width)
        return np.ascontiguousarray(windows[starts])

    def _measure(self) -> None:
        """Find topics and properties, and whether the lengths add up."""
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
        """Read one byte, and two, at each position; what is not ``good`` reads elsewhere."""
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
        """Whether each record says that it stands where it stands."""
        placed: Array = self.head["stored_offset"] == self.starts + self.physic_offset
        return placed

    def body_fits(self) -> Array:
        """Whether each body has the CRC that its record states."""
        crc = _crc32
        view = memoryview(self.data)
        starts = self.body_starts
        spans = zip(starts.tolist(), (starts + self.body_sizes).tolist(), strict=True)
        found = np.fromiter((crc(view[a:b]) for a, b in spans), np.uint32, self.count)
        fits: Array = (found & CRC_MASK).astype(np.int32) == self.head["body_crc"]
        return fits

    def prop_crc_fits(self) -> Array:
        """Whether each record has no ``__CRC32#``, or the right one.

        One with half its name damaged is known by the other half and its shape (``record_check``).
        """
        fits = np.ones(self.count, np.bool_)
        rows = np.flatnonzero(self.properties_sizes >= PROP_CRC_SIZE)
        stored = self._gather(self.ends[rows] - PROP_CRC_SIZE, PROP_CRC_SIZE)
        is_half_named = (stored[:, :4] == _PROP_CRC[:4]).all(1)
        is_half_named |= (stored[:, 4:9] == _PROP_CRC[4:9]).all(1)
        rows, stored = rows[is_half_named], stored[is_half_named]
        digits = stored[:, 9:19] - np.uint8(ord("0"))  # below "0" it wraps around
        is_shaped = (digits < len(_POWERS_OF_TEN)).all(1) & (stored[:, 19] == _PAIR_END)
        is_named = (stored[:, :9] == _PROP_CRC).all(1)
        crc = _crc32
        view = memoryview(self.data)
        spans = zip(
            self.starts[rows].tolist(), (self.ends[rows] - PROP_CRC_SIZE).tolist(), strict=True
        )
        found = np.fromiter((crc(view[a:b]) for a, b in spans), np.int64, len(rows)) & CRC_MASK
        is_right = is_named & is_shaped & (digits.astype(np.int64) @ _POWERS_OF_TEN == found)
        fits[rows[(is_named | is_shaped) & ~is_right]] = False
        return fits
