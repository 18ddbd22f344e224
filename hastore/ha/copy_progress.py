"""When a slave logs "copying", and when "in step" with its master.

::

    link ── full batches: "copying …" after 1 s, then every 5 s ── a partial batch: "in step"
                 └───────── full batches only, for 10 s ──────────────────┘

A master sends all that it has, so the end of its log is reached with a frame that is no full batch,
or with the second heartbeat in a row.  Nothing is logged while nothing arrives.

The sizes of the frames show which batches are full (``FrameSizes``)::

    32 KiB │ 64 KiB │ 128 KiB │ 17 003   the last one is not: the master had no more

A full batch is a multiple of our ``ha_transfer_batch_size`` (a master doubles it while a slave
lags), as large as the one before or twice that (RocketMQ's, or another setting), or ends with a
file.  Two kinds of full batches are not recognized: the first on a link if the master's batch size
is no multiple of ours, and those that flow control cuts to a different size each time.

Pure: no clock, no I/O.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, final

import attrs

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

FIRST_LINE_AFTER_S: Final = 1.0
LINE_EVERY_S: Final = 5.0
BEHIND_AFTER_S: Final = 10.0
_HEARTBEATS_AT_END: Final = 2  # the first may precede the first bytes


class CopyEvent(enum.Enum):
    """What to log now."""

    COPYING = "copying"
    IN_STEP = "in step"


@final
@attrs.define(eq=False)
class FrameSizes:
    """The sizes of the frames with log bytes on one link."""

    batch_size: int  # our ha_transfer_batch_size, in bytes
    file_size: int  # bytes of a mapped file
    # Where frames end although the log goes on, besides the ends of files: the epochs' ends.
    epoch_ends: AbstractSet[int] = frozenset()
    # Whether the newest frame reached the end of the master's log; False before any.
    reached_end: bool = attrs.field(default=False, init=False)
    _size_before: int = attrs.field(default=0, init=False)  # bytes of the newest frame

    def record(self, end: int, size: int) -> None:
        """Record a frame of ``size`` bytes that ends at ``end``."""
        is_full = size % self.batch_size == 0 or size in {self._size_before, 2 * self._size_before}
        self.reached_end = not is_full and end % self.file_size > 0 and end not in self.epoch_ends
        self._size_before = size


@final
@attrs.define(eq=False)
class CopyProgress:
    """The progress of one link.  Times are trio's."""

    began: float  # when the first report was queued
    # Whether "in step" was logged last; BEHIND_AFTER_S of full batches end it.
    is_in_step: bool = attrs.field(default=False, init=False)
    _all_time: float = attrs.field(default=0.0, init=False)  # when the end was last reached
    _next_line: float = attrs.field(init=False)  # when "copying" is due again: > began
    _heartbeats: int = attrs.field(default=0, init=False)  # in a row

    def __attrs_post_init__(self) -> None:
        """Wait before the first line: a short copy is not worth one."""
        self._next_line = self.began + FIRST_LINE_AFTER_S

    def record(self, now: float, *, brought_bytes: bool, reached_end: bool) -> CopyEvent | None:
        """Record what one read brought and return what to log; ``reached_end``: see FrameSizes."""
        self._heartbeats = 0 if brought_bytes else self._heartbeats + 1
        if reached_end or self._heartbeats >= _HEARTBEATS_AT_END:
            self._all_time = now
            if self.is_in_step:
                return None
            self.is_in_step = True
            return CopyEvent.IN_STEP
        if self.is_in_step and now - self._all_time >= BEHIND_AFTER_S:
            self.is_in_step = False
            self._next_line = now
        if self.is_in_step or not brought_bytes or now < self._next_line:
            return None
        self._next_line = now + LINE_EVERY_S
        return CopyEvent.COPYING
