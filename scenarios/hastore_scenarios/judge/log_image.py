"""Reads a node's log directory for the checker: its records, its end, its damage, its differences.

It only reads files, with the store's own tools, so it works on a directory after any crash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hastore.message import PROPERTY_UNIQ_KEY
from hastore.store.log.store_directory import find_log_files
from hastore.store.record.layout import BODY_CRC_POSITION
from hastore.store.record.message_codec import decode_properties
from hastore.store.record.record_check import RecordKind, check_record
from hastore.store.recovery.log_cut import kept_cuts
from hastore.store.tools.log_diff import diff_logs
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.log_finding import Severity
from hastore.store.tools.log_verify import verify_log
from hastore.store.tools.log_walker import LogWalker
from hastore_scenarios.judge.checker import LogRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.env.interface import Disk, DiskFile
    from hastore.store.tools.log_directory import LogDirectory, LogFile


@attrs.frozen
class Damage:
    """The first damage that `log verify` finds in a log, at ``physic_offset``.

    ``is_torn_end``: no intact record follows it.  A crash or a cut link may leave that, a clean
    stop may not.
    """

    text: str
    physic_offset: int
    is_torn_end: bool


def read_records(disk: Disk, path: str) -> Iterator[LogRecord]:
    """Yield every intact message in the order of the offsets."""
    log = _find(disk, path)
    if log is None:
        return
    crcs = _BodyCrcs(disk, log.files)
    try:
        for physic_offset, check in LogWalker(disk, log).walk():
            if check.kind is RecordKind.MESSAGE:
                properties = decode_properties(check.properties)
                yield LogRecord(
                    physic_offset=physic_offset,
                    next_offset=physic_offset + check.size,
                    topic=check.topic.decode(errors="replace"),
                    queue_id=check.queue_id,
                    queue_offset=check.queue_offset,
                    key=properties.get(PROPERTY_UNIQ_KEY),
                    body_crc=crcs.read(physic_offset),
                )
    finally:
        crcs.close()


def read_cut_keys(disk: Disk, path: str) -> Iterator[str]:
    """Yield the UNIQ_KEYs of the whole messages that all cuts of a log have kept."""
    cuts = kept_cuts(disk, path)
    file_size = find_log_files(disk, path, None).file_size if cuts else 1
    for cut in cuts:
        kept = b"".join(disk.read_file(f"{path}/{saved}") for saved in cut.saved_paths)
        position = 0
        while position < len(kept):
            offset = cut.physic_offset + position
            check = check_record(kept, position, file_size - offset % file_size, offset)
            if check.kind is RecordKind.MESSAGE:
                key = decode_properties(check.properties).get(PROPERTY_UNIQ_KEY)
                if key is not None:
                    yield key
            elif check.kind is not RecordKind.BLANK:
                break  # half a message at the log's end
            position += check.size


def find_damage(disk: Disk, path: str) -> Damage | None:
    """Return the first damage of a log, None if it is intact."""
    log = _find(disk, path)
    if log is None:
        return None
    report = verify_log(disk, log)
    damage = [finding for finding in report.findings if finding.severity is Severity.DAMAGE]
    if not damage:
        return None
    first = damage[0]
    return Damage(
        f"{first.kind} at {first.physic_offset}: {first.detail}",
        first.physic_offset,
        first.physic_offset >= report.max_offset,
    )


def first_difference(disk: Disk, left: str, right: str) -> int | None:
    """Return the first offset at which two logs hold different bytes, None if there is none."""
    left_log, right_log = _find(disk, left), _find(disk, right)
    if left_log is None or right_log is None:
        return None
    return diff_logs(disk, left_log, right_log).first_difference


def log_end(disk: Disk, path: str) -> int:
    """Return the end of the last intact record; 0 without a log."""
    log = _find(disk, path)
    if log is None:
        return 0
    # The last file may be prepared and still empty, and the one before it just begun.
    recent = log.files[-3].physic_offset if len(log.files) >= 3 else log.min_offset
    walker = LogWalker(disk, log, from_offset=recent, check_crc=False, scan_zeros=False)
    for _ in walker.walk():
        pass
    return walker.end_offset


def _find(disk: Disk, path: str) -> LogDirectory | None:
    """Return the log in a directory, None if nothing was ever stored there."""
    return find_log(disk, path) if disk.exists(f"{path}/commitlog") else None


class _BodyCrcs:
    """Reads a record's stored body CRC, which the walker has checked against the body."""

    def __init__(self, disk: Disk, files: tuple[LogFile, ...]) -> None:
        self._disk = disk
        self._files = list(reversed(files))
        self._current: LogFile | None = None
        self._file: DiskFile | None = None

    def read(self, physic_offset: int) -> int:
        while self._current is None or physic_offset >= self._current.next_offset:
            self.close()
            self._current = self._files.pop()
            self._file = self._disk.open_file(self._current.path, writable=False)
        assert self._file is not None
        position = physic_offset - self._current.physic_offset + BODY_CRC_POSITION
        return int.from_bytes(self._file.pread(4, position), "big")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
