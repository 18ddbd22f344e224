"""What a node of a replica group has of the group's log, for those who decide on a failover.

``GroupLog`` is what two logs are compared by; ``count_messages`` says what a range of a log is
worth, or at least is.  Both only read, also beside a node that writes.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Self, final

import attrs

from hastore.epoch_history import EpochEntry, EpochHistory, fault_of
from hastore.errors import ProtocolError
from hastore.quantities import read_integer
from hastore.store.epoch_file import EPOCH_FILE, EpochFile
from hastore.store.record.layout import HEAD_READ_SIZE, RECORD_SIZE_MIN
from hastore.store.record.record_check import RecordKind, is_one_begun
from hastore.store.recovery.log_cut import LogCut, kept_cuts
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.log_walker import LogWalker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hastore.env.interface import Disk

SCHEMA: Final = "hastore.group-log/1"
_OFFSET_BITS: Final = 64  # with a sign
CUTS_MAX: Final = 1_000  # of one answer: the newest
COUNTED_SIZE_MAX: Final = 32 * 2**20  # bytes that one request walks: some tenths of a second


@final
@attrs.frozen(kw_only=True)
class GroupLog:
    """The epochs and the ends of a node's log, and what it has cut off.

    Everything below ``confirm_offset`` was on every member of the SyncStateSet, as far as this node
    knows; None: it knows nothing.
    """

    epochs: EpochHistory
    min_offset: int
    end_offset: int
    confirm_offset: int | None
    cuts: tuple[LogCut, ...]  # those that ``trimmed/`` has, the oldest first

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "schema": SCHEMA,
            "epochs": [list(entry) for entry in self.epochs.entries],
            "min": self.min_offset,
            "end": self.end_offset,
            "confirm": self.confirm_offset,
            "cuts": [cut.to_json() for cut in self.cuts],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what ``to_json`` returned.  Raises ProtocolError."""
        try:
            entries = tuple(EpochEntry(_whole(at), _whole(start)) for at, start in value["epochs"])
            fault = fault_of(entries)
            if fault is not None:
                raise ValueError(fault)
            confirm = value["confirm"]
            return cls(
                epochs=EpochHistory(entries),
                min_offset=_whole(value["min"]),
                end_offset=_whole(value["end"]),
                confirm_offset=None if confirm is None else _whole(confirm),
                cuts=tuple(LogCut.from_json(cut) for cut in value["cuts"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            msg = f"what a node says of its log cannot be understood: {error!r:.200}"
            raise ProtocolError(msg) from error


def _whole(value: object) -> int:
    """Return a 64-bit integer.  Raises ValueError."""
    number = read_integer(value)
    if number is None or number.bit_length() >= _OFFSET_BITS:
        raise ValueError(f"{value!r:.40} is not an offset or an epoch")
    return number


def read_group_log(
    disk: Disk, data_dir: str, *, min_offset: int, end_offset: int, confirm_offset: int | None
) -> GroupLog:
    """Read epochs and cuts of a store's directory; blocks.  Raises EpochFileError, DiskError."""
    return GroupLog(
        epochs=EpochFile(disk, f"{data_dir}/{EPOCH_FILE}").load(),
        min_offset=min_offset,
        end_offset=end_offset,
        confirm_offset=confirm_offset,
        cuts=tuple(kept_cuts(disk, data_dir)[-CUTS_MAX:]),
    )


@final
@attrs.frozen(kw_only=True)
class MessageCounts:
    """The whole messages of a range of a log, by topic.

    ``next_offset`` is where to go on; the range's end once all are counted.  ``unread_from``: the
    first offset where a part of the range could not be read, because it is damaged, or its file is
    gone; there may be more messages then.  None: all are counted.
    """

    messages: Mapping[str, int]
    next_offset: int
    unread_from: int | None = None


def count_messages(
    disk: Disk, data_dir: str, begin: int, end: int, *, size_max: int = COUNTED_SIZE_MAX
) -> MessageCounts:
    """Count the whole messages in [begin, end), at most in about the first ``size_max`` bytes.

    ``begin`` is a record's start.  Blocks.  Raises DiskError, NotAStoreError.
    """
    counts: Counter[str] = Counter()
    position, next_offset = begin, end
    unread: list[int] = []
    begun: int | None = None  # where damage is that may be a message that has only begun
    walker = LogWalker(
        disk,
        find_log(disk, data_dir),
        from_offset=begin,
        at_record=True,
        check_crc=False,
        scan_zeros=False,
    )
    for offset, check in walker.walk():
        if offset > position:
            unread.append(position)  # its file has just expired
        position = offset
        if offset >= end:
            break
        if begun is not None:
            unread.append(begun)
            begun = None
        if offset - begin >= size_max:
            next_offset = offset
            break
        if check.kind is RecordKind.MESSAGE:
            if offset + check.size <= end:
                counts[check.topic.decode(errors="replace")] += 1
        elif check.kind is not RecordKind.BLANK:
            is_there = check.kind is not RecordKind.MISSING
            if is_there and is_one_begun(_head_at(walker, offset), offset, end):
                begun = offset
            else:
                unread.append(offset)
        position = offset + check.size
    if begun is None and next_offset - position >= RECORD_SIZE_MIN:
        unread.append(position)  # the walk ended early
    return MessageCounts(
        messages=counts, next_offset=next_offset, unread_from=min(unread, default=None)
    )


def _head_at(walker: LogWalker, physic_offset: int) -> bytes:
    """Return the head of what a walk has just found; zeros follow the end of its file."""
    return walker.read(physic_offset, HEAD_READ_SIZE).ljust(HEAD_READ_SIZE, b"\0")
