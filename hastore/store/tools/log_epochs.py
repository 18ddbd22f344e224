"""Compares a log's epochs with its records: offsets, bytes, messages and times of each epoch."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import attrs

from hastore.store.epoch_file import EPOCH_FILE, EpochFile
from hastore.store.record.record_check import INTACT_KINDS, RecordKind
from hastore.store.tools.log_diff import read_side
from hastore.store.tools.log_walker import LogWalker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hastore.env.interface import Disk
    from hastore.epoch_history import EpochHistory
    from hastore.store.record.record_check import RecordCheck
    from hastore.store.tools.log_directory import LogDirectory


@attrs.define(kw_only=True)
class EpochInfo:
    """One epoch's part of the log: offsets, end exclusive, and the messages that begin there.

    ``end_offset`` is None if the epoch begins after the log's end.
    """

    epoch: int
    start_offset: int
    end_offset: int | None
    size: int = 0  # in bytes, without those in deleted files
    messages: int = 0
    first_store_timestamp_ms: int | None = None
    last_store_timestamp_ms: int | None = None
    # Whether a record begins there, or the log ends there; None: expired, or the log is damaged.
    begins_at_record: bool | None = None


@attrs.frozen(kw_only=True)
class LogEpochs:
    """The epochs of a log, oldest first.

    ``path`` is the file that was read: RocketMQ's backup if the epoch file itself cannot be read,
    None if there is none.
    """

    path: str | None
    min_offset: int
    max_offset: int
    epochs: tuple[EpochInfo, ...]
    damaged_at: int | None  # where the log's first damage begins; a torn tail is none

    @property
    def faults(self) -> Iterator[str]:
        """Yield each contradiction between the epochs and the log."""
        first = self.epochs[0] if self.epochs else None
        if first is not None and first.start_offset > self.min_offset:
            yield (
                f"the log begins at {self.min_offset}, its first epoch at {first.start_offset}:"
                " the bytes between have no epoch"
            )
        for epoch in self.epochs:
            name = f"epoch {epoch.epoch} begins at {epoch.start_offset}"
            if epoch.end_offset is None:
                yield f"{name}, after the log's end at {self.max_offset}"
            elif epoch.begins_at_record is False:
                yield f"{name}, where no record begins"


def read_epochs(
    disk: Disk, log: LogDirectory, *, on_progress: Callable[[int], None] | None = None
) -> LogEpochs:
    """Walk over a log that has epochs once.  Raises EpochFileError, or DiskError."""
    file = None if log.root is None else EpochFile(disk, f"{log.root}/{EPOCH_FILE}")
    history = None if file is None else file.load()
    if file is None or history is None or not history.entries:
        return LogEpochs(
            path=None if file is None else file.loaded_from,
            min_offset=log.min_offset,
            max_offset=read_side(disk, log).max_offset,
            epochs=(),
            damaged_at=None,
        )
    walker = LogWalker(disk, log, check_crc=False, scan_zeros=False, on_progress=on_progress)
    epochs, damage = _walk(walker, history, log.min_offset)
    _measure(epochs, history, log.min_offset, walker.end_offset)
    return LogEpochs(
        path=file.loaded_from,
        min_offset=log.min_offset,
        max_offset=walker.end_offset,
        epochs=tuple(epochs),
        damaged_at=_damaged_at(damage, walker.end_offset),
    )


def _damaged_at(damage: tuple[int, RecordCheck] | None, end_offset: int) -> int | None:
    """Return where the first damage begins, unless it is a torn tail.

    With what looks like records in it, it is none: RocketMQ leaves such bytes behind a cut.
    """
    if damage is None or (damage[0] == end_offset and not damage[1].unconfirmed):
        return None
    return damage[0]


def _walk(
    walker: LogWalker, history: EpochHistory, min_offset: int
) -> tuple[list[EpochInfo], tuple[int, RecordCheck] | None]:
    """Count the messages of each epoch; also return the first damage, and where it begins."""
    epochs = [
        EpochInfo(epoch=epoch, start_offset=start, end_offset=None)
        for epoch, start in history.entries
    ]
    by_number = {info.epoch: info for info in epochs}
    to_come = deque(epochs)
    damage = None
    for offset, check in walker.walk():
        is_intact = check.kind in INTACT_KINDS
        while to_come and to_come[0].start_offset < offset + check.size:
            begun = to_come.popleft()
            if is_intact and begun.start_offset >= min_offset:
                begun.begins_at_record = begun.start_offset == offset
        if not is_intact and damage is None:
            damage = offset, check
        entry = history.at(offset)
        if check.kind is RecordKind.MESSAGE and entry is not None:
            info = by_number[entry.epoch]
            info.messages += 1
            info.last_store_timestamp_ms = check.store_timestamp_ms
            if info.first_store_timestamp_ms is None:
                info.first_store_timestamp_ms = check.store_timestamp_ms
    return epochs, damage


def _measure(
    epochs: list[EpochInfo], history: EpochHistory, min_offset: int, end_offset: int
) -> None:
    """Set where each epoch ends, and the size of what is left of it."""
    spans = {span.epoch: span for span in history.spans(end_offset)}
    for info in epochs:
        span = spans.get(info.epoch)
        if span is None:
            continue
        info.end_offset = span.end_offset
        info.size = max(0, span.end_offset - max(span.start_offset, min_offset))
        if info.start_offset == end_offset:
            info.begins_at_record = True
