"""The bytes of an index file, and the hash of a key.

::

    0        header    40   beginTimestamp i64   endTimestamp i64      store times, ms
                            beginPhyOffset i64   endPhyOffset i64      of the first, the last record
                            hashSlotCount i32    indexCount i32        slots in use; entries + 1
    40       slots     4 × slot_count     the newest entry of a chain, 0 for none
    …        entry 0   20   never used by RocketMQ; hastore's mark while the file is not closed
    …        entry n   20   keyHash i32 | phyOffset i64 | timeDiff i32 | prevIndex i32

A key's text is ``topic#key``, its hash the absolute value of Java's ``hashCode``, its slot the hash
modulo the number of slots.  Entry n is the n-th key; ``prevIndex`` is the slot's earlier value, so
a slot begins a chain, newest first.  ``timeDiff`` is in whole seconds from the file's begin; for
entry 1 from the *previous* file's end, because the begin is only set after it.

The mark says how much of the index is known to be on disk: entries below ``index_count`` of this
file with their slots, and all earlier files.  Together they hold every key up to the record that
begins at ``seen_offset``, including it::

    index_count i32 | seen_offset i64 | magic i32 | CRC32 u32 of the 16 bytes before

Source: RocketMQ ``IndexFile``, ``IndexHeader``; the mark is hastore's.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

from hastore.store.record.java_hash import java_hash_code

FILE_NAME_DIGITS: Final = 17  # yyyyMMddHHmmssSSS

HEADER: Final = struct.Struct(">4q2i")
# Name, and format as ``struct`` writes it.
ENTRY_FIELDS: Final = (
    ("key_hash", "i"), ("physic_offset", "q"), ("time_diff_s", "i"), ("previous", "i")
)  # fmt: skip
ENTRY: Final = struct.Struct(">" + "".join(code for _, code in ENTRY_FIELDS))
SLOT: Final = struct.Struct(">i")
HEADER_SIZE: Final = HEADER.size
ENTRY_SIZE: Final = ENTRY.size
SLOT_SIZE: Final = SLOT.size
# A key to be put: its hash, its record's physic offset and store time (ms), in the machine's order.
PACKED_KEY: Final = struct.Struct("=3q")
_MARK: Final = struct.Struct(">iqi")
_MARK_MAGIC: Final = 0x68615374


class IndexHeader(NamedTuple):
    """The first 40 bytes of a file."""

    begin_timestamp_ms: int
    end_timestamp_ms: int
    begin_physic_offset: int
    end_physic_offset: int
    used_slots: int
    index_count: int  # number of the next entry; 1 in an empty file (on disk perhaps 0)


class IndexEntry(NamedTuple):
    """One key of one record."""

    key_hash: int
    physic_offset: int
    time_diff_s: int
    previous: int


class IndexMark(NamedTuple):
    """How much of the index is known to be on disk."""

    index_count: int
    seen_offset: int


class IndexLayout(NamedTuple):
    """The positions in a file with these numbers of slots and entries (entry 0 counts)."""

    slot_count: int
    entry_count: int

    @property
    def mark_position(self) -> int:
        """Where entry 0 lies."""
        return HEADER_SIZE + SLOT_SIZE * self.slot_count

    @property
    def file_size(self) -> int:
        """Bytes of a file."""
        return self.mark_position + ENTRY_SIZE * self.entry_count

    def entry_position(self, number: int) -> int:
        """Where an entry lies."""
        return self.mark_position + ENTRY_SIZE * number

    def holds(self, header: IndexHeader) -> bool:
        """Whether a header is possible in a file of this layout."""
        return (
            1 <= header.index_count <= self.entry_count
            and 0 <= header.used_slots <= min(self.slot_count, header.index_count)
            and 0 <= header.begin_physic_offset <= header.end_physic_offset
        )


def unpack_header(data: bytes) -> IndexHeader:
    """Read a header; a count of 0 is that of an empty file."""
    header = IndexHeader._make(HEADER.unpack(data))
    return header if header.index_count > 0 else header._replace(index_count=1)


def pack_mark(mark: IndexMark) -> bytes:
    """Return the 20 bytes of a mark."""
    sealed = _MARK.pack(mark.index_count, mark.seen_offset, _MARK_MAGIC)
    return sealed + zlib.crc32(sealed).to_bytes(4, "big")


def unpack_mark(data: bytes) -> IndexMark | None:
    """Read a mark; None if there is no valid one."""
    sealed = data[: _MARK.size]
    if len(data) != ENTRY_SIZE or zlib.crc32(sealed).to_bytes(4, "big") != data[_MARK.size :]:
        return None
    count, seen_offset, magic = _MARK.unpack(sealed)
    return IndexMark(count, seen_offset) if magic == _MARK_MAGIC and count > 0 else None


def topic_hash(topic: str) -> int:
    """Return the hash of ``topic#``, the prefix of a topic's keys."""
    return java_hash_code(f"{topic}#")


def key_hash(hash_of_topic: int, key: str) -> int:
    """Return ``abs(hashCode(topic + "#" + key))``, 0 for MIN_VALUE, which Java cannot negate."""
    return to_key_hash(java_hash_code(key, hash_of_topic))


def to_key_hash(java_hash: int) -> int:
    """Return the key hash of a text's Java hash: its absolute value, 0 for MIN_VALUE."""
    if java_hash >= 0:
        return java_hash
    return -java_hash if java_hash > -0x80000000 else 0
