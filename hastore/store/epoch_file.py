"""A log's epochs on disk: ``DIR/epochFileCheckpoint``, in RocketMQ 5's format.

::

    2             the number of entries
    1485490322    CRC32 of the lines below with their line feeds, & 0x7FFFFFFF; 0: not checked
    1-0           epoch-startOffset
    2-47859

RocketMQ (``CheckpointFile``) copies the file to ``.bak`` and then overwrites it, so where its
process was killed the ``.bak`` is whole and counts.  hastore replaces the file atomically and
removes the ``.bak``: it must never stand in, out of date, for a file that the disk has damaged.

Invariant: a crash leaves the epochs that were stored last, or, during ``store``, perhaps the ones
before.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.epoch_history import ENTRIES_MAX, EpochEntry, EpochHistory, fault_of
from hastore.errors import EpochFileError
from hastore.store.reserve_file import write_beside_reserve
from hastore.trace import logger

if TYPE_CHECKING:
    from hastore.env.interface import Disk

EPOCH_FILE: Final = "epochFileCheckpoint"
_BACKUP_SUFFIX: Final = ".bak"
_CRC_MASK: Final = 0x7FFF_FFFF
_UNCHECKED: Final = 0
_FILE_SIZE_MAX: Final = 64 * 1024
# The two numbers of an entry have at most 10 and 19 digits, and no sign.
_ENTRY_LINE: Final = re.compile(rb"([0-9]{1,10})-([0-9]{1,19})")
_NUMBER_LINE: Final = re.compile(rb"[0-9]{1,10}")

_log = logger("store")


def encode_epochs(history: EpochHistory) -> bytes:
    """Return the file's bytes."""
    lines = "".join(f"{entry}\n" for entry in history.entries).encode()
    return b"%d\n%d\n%s" % (len(history), zlib.crc32(lines) & _CRC_MASK, lines)


def decode_epochs(data: bytes) -> EpochHistory | str:
    """Return the history in a file's bytes, or why it cannot be read."""
    if len(data) > _FILE_SIZE_MAX:
        return f"it has {len(data)} bytes, more than {ENTRIES_MAX} epochs take"
    count_line, _, rest = data.partition(b"\n")
    crc_line, line_feed, body = rest.partition(b"\n")
    numbers = _NUMBER_LINE.fullmatch(count_line) and _NUMBER_LINE.fullmatch(crc_line)
    if not (numbers and line_feed):
        return "it does not begin with a number of epochs and a checksum, each on its own line"
    lines = body.split(b"\n")
    if lines.pop() != b"":
        return "its last line does not end with a line feed"
    if int(count_line) != len(lines):
        return f"it announces {int(count_line)} epochs and has {len(lines)}"
    crc = int(crc_line)
    if crc not in {_UNCHECKED, zlib.crc32(body) & _CRC_MASK}:
        return f"its checksum should be {zlib.crc32(body) & _CRC_MASK}, and is {crc}"
    entries = []
    for line in lines[: ENTRIES_MAX + 1]:
        found = _ENTRY_LINE.fullmatch(line)
        if found is None:
            return f"{line[:40]!r} is not EPOCH-OFFSET"
        entries.append(EpochEntry(int(found[1]), int(found[2])))
    return fault_of(entries) or EpochHistory(tuple(entries))


@final
@attrs.define(eq=False)
class EpochFile:
    """The file in a store's directory; ``load`` and ``store`` block, and never run side by side."""

    disk: Disk
    path: str
    # The file that ``load`` has read; None before it, or if there was none.
    loaded_from: str | None = attrs.field(default=None, init=False)

    def load(self) -> EpochHistory:
        """Return the epochs; none if there is no file.

        ``loaded_from`` is the file or its backup then.  Raises EpochFileError for a damaged file,
        DiskError for one that the disk does not return.
        """
        self.loaded_from = None
        found, why = self._read(self.path)
        if found is not None:
            self.loaded_from = self.path
            return found
        backup = self.path + _BACKUP_SUFFIX
        former, why_not = self._read(backup)
        if former is not None:
            _log.warning("epoch_backup_used", path=backup, reason=why or "there is no other")
            self.loaded_from = backup
            return former
        if why is None and why_not is None:
            return EpochHistory()
        msg = f"{self.path}: {why or f'it is missing, and of {backup}: {why_not}'}"
        hint = "copy the file from another node of the group that holds the same bytes"
        raise EpochFileError(msg, path=self.path, hint=hint)

    def _read(self, path: str) -> tuple[EpochHistory | None, str | None]:
        """Return the epochs, or why they cannot be read (None and None: no such file)."""
        if not self.disk.exists(path):
            return None, None
        found = decode_epochs(self.disk.read_file(path))
        return (None, found) if isinstance(found, str) else (found, None)

    def store(self, history: EpochHistory) -> None:
        """Replace the file durably.  Raises DiskError."""
        write_beside_reserve(self.disk, self.path, encode_epochs(history))
        self.disk.remove(self.path + _BACKUP_SUFFIX)
