"""Reads RocketMQ's ConsumeQueueExt, to which a unit's ``tags_code`` may point.

    consumequeue_ext/TOPIC/QUEUE_ID/%020d    files of one size (48 MiB), named by start offset

    | size 2 | tags_code 8 | store_timestamp_ms 8 | bitmap_size 2 | bitmap |      size: all of it
    | -1 2   | the rest of the file has no unit

With ``enableConsumeQueueExt`` the tags_code of a consume queue's unit is the offset of such a unit
plus the least 64-bit number; hash codes are 32-bit numbers, so every lower number is an address.
RocketMQ does not keep these files in step with the queues: if a unit is missing, the tags are
unknown.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple, final

from hastore.store.log.mapped_file_queue import is_file_name

if TYPE_CHECKING:
    from hastore.env.interface import Disk

CONSUME_QUEUE_EXT_DIR: Final = "consumequeue_ext"
ADDRESS_MAX: Final = -(2**31) - 1
_ADDRESS_BASE: Final = -(2**63)
_HEAD: Final = struct.Struct(">hqqh")


class ExtUnit(NamedTuple):
    """One unit: the real tags code, the message's store time, and RocketMQ's filter bitmap."""

    tags_code: int
    store_timestamp_ms: int
    bitmap: bytes


def is_ext_address(tags_code: int) -> bool:
    """Whether a consume queue's tags_code is an address in the ext files."""
    return tags_code <= ADDRESS_MAX


@final
class ConsumeQueueExt:
    """The ext files of one queue, if there are any."""

    def __init__(self, disk: Disk, data_dir: str, topic: str, queue_id: int) -> None:
        self._disk = disk
        self._path = f"{data_dir.rstrip('/')}/{CONSUME_QUEUE_EXT_DIR}/{topic}/{queue_id}"
        self._files: dict[int, int] | None = None  # start offset: size

    def get(self, address: int) -> ExtUnit | None:
        """Return the unit at an address; None if it is no address, or there is no whole unit.

        Raises DiskError if a file cannot be read.
        """
        if not is_ext_address(address):
            return None
        offset = address - _ADDRESS_BASE
        found = self._find(offset)
        if found is None:
            return None
        start, file_size = found
        disk_file = self._disk.open_file(f"{self._path}/{start:020d}", writable=False)
        try:
            position = offset - start
            head = disk_file.pread(min(_HEAD.size, file_size - position), position)
            if len(head) < _HEAD.size:
                return None
            size, tags_code, store_timestamp_ms, bitmap_size = _HEAD.unpack(head)
            if bitmap_size < 0 or size != _HEAD.size + bitmap_size:
                return None
            bitmap = disk_file.pread(bitmap_size, position + _HEAD.size) if bitmap_size else b""
        finally:
            disk_file.close()
        return (
            ExtUnit(tags_code, store_timestamp_ms, bitmap) if len(bitmap) == bitmap_size else None
        )

    def _find(self, offset: int) -> tuple[int, int] | None:
        """Find the file that holds an offset; list the directory again if no known file does."""
        for is_known in (True, False):
            if self._files is None or not is_known:
                self._files = {
                    int(entry.name): entry.size
                    for entry in self._disk.list_dir(self._path)
                    if not entry.is_dir and is_file_name(entry.name)
                }
            for start, size in self._files.items():
                if start <= offset < start + size:
                    return start, size
        return None
