"""Searches a log for messages: walks over it and keeps those that match.

The fields that the record's check has read (topic, queue, time, properties) are compared first;
only a record that matches so far is read whole and decoded.  Reads the log's files only, neither
consume queues nor index, so it works on any readable log, in use or not.

A time window leaves out the files that were full before it began, and the search ends
``CLOCK_SLACK_MS`` after it: store times rise along a log, unless a clock was set back.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import attrs

from hastore.message import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY
from hastore.store.record.layout import RECORD_SIZE_MIN, SIZE, claimed_size
from hastore.store.record.message_codec import decode, decode_properties
from hastore.store.record.record_check import RecordKind, check_record
from hastore.store.tools.log_finding import Finding, Severity, find_in_record
from hastore.store.tools.log_walker import LogWalker
from hastore_cli.app.times import ALWAYS, TimeWindow
from hastore_cli.messages.printer import unpacked

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterator

    from hastore.env.interface import Disk
    from hastore.message import StoredMessage
    from hastore.store.record.record_check import RecordCheck
    from hastore.store.tools.log_directory import LogDirectory, LogFile

# How far store times may be out of order.
CLOCK_SLACK_MS: Final = 10 * 60_000


@attrs.frozen(kw_only=True)
class MessageFilter:
    """The conditions on a message; None: no condition.

    ``key`` is one of the KEYS, or the UNIQ_KEY.  ``body`` may occur anywhere in the body.
    """

    key: str | None = None
    tag: str | None = None
    topic: str | None = None
    queue_id: int | None = None
    body: re.Pattern[bytes] | None = None
    properties: tuple[tuple[str, str], ...] = ()
    window: TimeWindow = ALWAYS

    def fits_record(self, check: RecordCheck) -> bool:
        """Whether a record matches all conditions but ``body``."""
        if self.topic is not None and check.topic != self.topic.encode(errors="surrogateescape"):
            return False
        if self.queue_id is not None and check.queue_id != self.queue_id:
            return False
        if not self.window.holds(check.store_timestamp_ms):
            return False
        if self.key is None and self.tag is None and not self.properties:
            return True
        properties = decode_properties(check.properties)
        if self.tag is not None and properties.get(PROPERTY_TAGS) != self.tag:
            return False
        if self.key is not None and not _has_key(properties, self.key):
            return False
        return all(properties.get(name) == value for name, value in self.properties)

    def fits_body(self, body: bytes) -> bool:
        """Whether a body matches ``body``."""
        return self.body is None or self.body.search(body) is not None


def _has_key(properties: dict[str, str], key: str) -> bool:
    # RocketMQ's clients join several keys by spaces.
    keys = properties.get(PROPERTY_KEYS, "")
    return key == properties.get(PROPERTY_UNIQ_KEY) or key == keys or key in keys.split(" ")


def search(
    disk: Disk,
    log: LogDirectory,
    wanted: MessageFilter,
    *,
    from_offset: int = 0,
    to_offset: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Iterator[StoredMessage | Finding]:
    """Yield the messages of ``[from_offset, to_offset)`` that match, and any damage there.

    Raises DiskError if the log cannot be read.
    """
    begin_ms, end_ms = wanted.window.begin_ms, wanted.window.end_ms
    if begin_ms is not None:
        from_offset = max(from_offset, start_of_window(disk, log, begin_ms))
    walker = LogWalker(
        disk, log, from_offset=from_offset, scan_zeros=False, on_progress=on_progress
    )
    for offset, check in walker.walk():
        if offset < from_offset:
            continue
        if to_offset is not None and offset >= to_offset:
            return
        if check.kind is RecordKind.MESSAGE:
            if end_ms is not None and check.store_timestamp_ms >= end_ms + CLOCK_SLACK_MS:
                return
            if wanted.fits_record(check):
                message = decode(walker.read(offset, check.size))
                if wanted.body is None or wanted.fits_body(unpacked(message).body):
                    yield message
        elif check.kind is not RecordKind.BLANK:
            yield find_in_record(Severity.DAMAGE, check.kind.value, offset, check, check.detail)


def start_of_window(disk: Disk, log: LogDirectory, begin_ms: int) -> int:
    """Return the start of the last file whose first message is older than ``begin_ms``.

    Of the log's first file if there is none, or if that is unknown.
    """
    start = log.min_offset
    for file in log.files:
        first_ms = _first_store_timestamp(disk, file)
        if first_ms is None or first_ms >= begin_ms:
            break
        start = file.physic_offset
    return start


def _first_store_timestamp(disk: Disk, file: LogFile) -> int | None:
    """Return the store time of a file's first message; None if it does not begin with one."""
    data = _record_at(disk, file, 0)
    check = check_record(data, 0, file.size, file.physic_offset, check_crc=False)
    return check.store_timestamp_ms if check.kind is RecordKind.MESSAGE else None


def message_at(disk: Disk, log: LogDirectory, physic_offset: int) -> StoredMessage | None:
    """Return the message that begins at an offset; None if none does.

    Its file is walked up to there: a producer can write a whole record into a body.
    """
    file = log.file_at(physic_offset)
    if file is None or not _is_reached(disk, log, physic_offset):
        return None
    position = physic_offset - file.physic_offset
    data = _record_at(disk, file, position)
    check = check_record(data, 0, file.size - position, physic_offset)
    return decode(data) if check.kind is RecordKind.MESSAGE else None


def _is_reached(disk: Disk, log: LogDirectory, physic_offset: int) -> bool:
    """Whether a walk from the start of its file comes to an offset."""
    walker = LogWalker(disk, log, from_offset=physic_offset, check_crc=False, scan_zeros=False)
    for offset, _ in walker.walk():
        if offset >= physic_offset:
            return offset == physic_offset
    return False


def _record_at(disk: Disk, file: LogFile, position: int) -> bytes:
    """Read as many bytes as the record at a position claims; b"" if it cannot be that long."""
    with contextlib.closing(disk.open_file(file.path, writable=False)) as disk_file:
        size = claimed_size(disk_file.pread(SIZE.size, position))
        if not RECORD_SIZE_MIN <= size <= file.size - position:
            return b""
        return disk_file.pread(size, position)
