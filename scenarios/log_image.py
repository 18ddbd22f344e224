"""What the checker reads of a node's log directory: its records, its end, its first damage.

Reads files only, with the store's own walker, so a directory may be looked at after any crash.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.message import PROPERTY_UNIQ_KEY
from hastore.store.log_directory import find_log
from hastore.store.log_walker import LogWalker
from hastore.store.message_codec import decode_properties
from hastore.store.record_check import RecordKind
from scenarios.checker import LogRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.env.interface import Disk
    from hastore.store.log_directory import LogDirectory, LogFile

_BODY_CRC_AT: Final = 8  # its position in a record
_COMPARED_AT_ONCE: Final = 1024 * 1024


@final
@attrs.define(eq=False)
class LogImage:
    """One node's log; ``damage`` and ``end_offset`` are right once ``records`` is exhausted.

    ``torn_end`` says that the damage is the very end of the log: what a crash or a cut link leaves,
    not what a node that stopped cleanly may have.
    """

    disk: Disk
    path: str
    damage: str | None = attrs.field(default=None, init=False)
    torn_end: bool = attrs.field(default=False, init=False)
    end_offset: int = attrs.field(default=0, init=False)

    def records(self) -> Iterator[LogRecord]:
        """Yield every message in the order of the offsets."""
        log = _find(self.disk, self.path)
        if log is None:
            return
        walker = LogWalker(self.disk, log)
        crcs = _BodyCrcs(log.files)
        try:
            for physic_offset, check in walker.walk():
                if self.damage is not None:
                    self.torn_end = False  # something stands behind it
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
                elif check.kind is not RecordKind.BLANK and self.damage is None:
                    self.damage = f"{check.kind.value} at {physic_offset}: {check.detail}"
                    self.torn_end = True
        finally:
            crcs.close()
        self.end_offset = walker.end_offset


def log_end(disk: Disk, path: str) -> int:
    """Give the end of the last good record; 0 where there is no log."""
    log = _find(disk, path)
    if log is None:
        return 0
    # The last file may be prepared and empty, and the one before it just begun.
    recent = log.files[-3].physic_offset if len(log.files) >= 3 else log.min_offset
    walker = LogWalker(disk, log, from_offset=recent, check_crc=False, scan_zeros=False)
    for _ in walker.walk():
        pass
    return walker.end_offset


def first_difference(disk: Disk, left: str, right: str, end_offset: int) -> int | None:
    """Give the first offset below ``end_offset`` at which two logs hold unlike bytes.

    Only offsets that both have files for are compared.
    """
    left_log, right_log = _find(disk, left), _find(disk, right)
    if left_log is None or right_log is None:
        return None
    right_files = {file.physic_offset: file for file in right_log.files}
    for left_file in left_log.files:
        right_file = right_files.get(left_file.physic_offset)
        if right_file is not None and left_file.physic_offset < end_offset:
            size = min(left_file.size, right_file.size, end_offset - left_file.physic_offset)
            position = _first_difference(Path(left_file.path), Path(right_file.path), size)
            if position is not None:
                return left_file.physic_offset + position
    return None


def _first_difference(left: Path, right: Path, size: int) -> int | None:
    with left.open("rb") as left_file, right.open("rb") as right_file:
        for start in range(0, size, _COMPARED_AT_ONCE):
            wanted = min(_COMPARED_AT_ONCE, size - start)
            left_bytes, right_bytes = left_file.read(wanted), right_file.read(wanted)
            if left_bytes != right_bytes:
                pairs = zip(left_bytes, right_bytes, strict=True)
                return start + next(i for i, (one, other) in enumerate(pairs) if one != other)
    return None


def _find(disk: Disk, path: str) -> LogDirectory | None:
    """A directory in which nothing was ever stored is an empty log."""
    return find_log(disk, path) if Path(path, "commitlog").is_dir() else None


class _BodyCrcs:
    """Reads a record's stored body CRC, which the walker has checked against the body."""

    def __init__(self, files: tuple[LogFile, ...]) -> None:
        self._files = list(reversed(files))
        self._current: LogFile | None = None
        self._descriptor: int | None = None

    def read(self, physic_offset: int) -> int:
        while self._current is None or physic_offset >= self._current.next_offset:
            self.close()
            self._current = self._files.pop()
            self._descriptor = os.open(self._current.path, os.O_RDONLY)
        assert self._descriptor is not None
        position = physic_offset - self._current.physic_offset + _BODY_CRC_AT
        return int.from_bytes(os.pread(self._descriptor, 4, position), "big")

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
