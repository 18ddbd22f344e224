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
from hastore.store.queue.confirmed_records import ConfirmedRecords
from hastore.store.record.body_compression import decoded
from hastore.store.record.layout import RECORD_SIZE_MIN, SIZE, claimed_size
from hastore.store.record.message_codec import decode, decode_properties
from hastore.store.record.record_check import RecordKind, check_record
from hastore.store.tools.log_finding import Finding, Severity, find_in_record
from hastore.store.tools.log_walker import LogWalker
from hastore_cli.app.times import ALWAYS, TimeWindow

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterator

    from hastore.env.interface import Disk
    from hastore.message import StoredMessage
    from hastore.store.record.record_check import RecordCheck
    from hastore.store.tools.log_directory import LogDirectory, LogFile

_SHOWN_KINDS: Final = frozenset({RecordKind.MESSAGE, RecordKind.UNCONFIRMED})
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


@attrs.frozen
class UnconfirmedMessage:
    """What looks like a message behind damage; a producer may have planted it in a body."""

    message: StoredMessage


def search(
    disk: Disk,
    log: LogDirectory,
    wanted: MessageFilter,
    *,
    from_offset: int = 0,
    to_offset: int | None = None,
    unconfirmed: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> Iterator[StoredMessage | UnconfirmedMessage | Finding]:
    """Yield the messages of ``[from_offset, to_offset)`` that match, and any damage there.

    With ``unconfirmed`` also what looks like messages in that damage.  Raises DiskError if the log
    cannot be read.
    """
    begin_ms, end_ms = wanted.window.begin_ms, wanted.window.end_ms
    if begin_ms is not None:
        from_offset = max(from_offset, start_of_window(disk, log, begin_ms))
    walker = LogWalker(
        disk,
        log,
        from_offset=from_offset,
        scan_zeros=False,
        unconfirmed=unconfirmed,
        on_progress=on_progress,
    )
    for offset, check in walker.walk():
        if offset < from_offset:
            continue
        if to_offset is not None and offset >= to_offset:
            return
        if check.kind in _SHOWN_KINDS:
            is_confirmed = check.kind is RecordKind.MESSAGE
            if (
                is_confirmed
                and end_ms is not None
                and check.store_timestamp_ms >= end_ms + CLOCK_SLACK_MS
            ):
                return
            if wanted.fits_record(check):
                message = decode(walker.read(offset, check.size))
                if wanted.body is None or wanted.fits_body(decoded(message).body):
                    yield message if is_confirmed else UnconfirmedMessage(message)
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

    A body may hold what looks like a message.  So either the unit of its queue must name it, or the
    walk from the start of its file must come by.
    """
    file = log.file_at(physic_offset)
    if file is None:
        return None
    position = physic_offset - file.physic_offset
    data = _record_at(disk, file, position)
    check = check_record(data, 0, file.size - position, physic_offset)
    if check.kind is not RecordKind.MESSAGE:
        return None
    if not ConfirmedRecords(disk, log.root).names(physic_offset, check):
        walker = LogWalker(
            disk, log, from_offset=file.physic_offset, check_crc=False, scan_zeros=False
        )
        walked = next((item for item in walker.walk() if item[0] >= physic_offset), None)
        if walked is None or walked[0] != physic_offset or walked[1].kind is not check.kind:
            return None
    return decode(data)


def _record_at(disk: Disk, file: LogFile, position: int) -> bytes:
    """Read as many bytes as the record at a position claims; b"" if it cannot be that long."""
    with contextlib.closing(disk.open_file(file.path, writable=False)) as disk_file:
        size = claimed_size(disk_file.pread(SIZE.size, position))
        if not RECORD_SIZE_MIN <= size <= file.size - position:
            return b""
        return disk_file.pread(size, position)
