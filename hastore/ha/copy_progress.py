"""When a slave says that it copies, and when that it is in step with its master.

::

    link ── full batches: "copying …" after 1 s, then every 5 s ── a batch that was all: "in step"
                 └───────── full batches only, for 10 s ──────────────────┘

A master sends all it has: a frame that is no full batch was the end of its log, and so is silence,
of which the second heartbeat in a row tells.  Nothing is said of a link on which nothing comes.

What a full batch is, the sizes of the frames tell (``FrameSizes``)::

    32 KiB │ 64 KiB │ 128 KiB │ 17 003   a master that had more filled its batch, but not the last

A full batch is a multiple of ``ha_transfer_batch_size`` as it is here (a master doubles it while a
slave lags), or as large as the one before, or twice that (RocketMQ's, or another setting), or ends
with a file.  Taken for all by mistake are the first frame of a link whose other side has batches
that are no multiple of ours, and frames that a flow control cuts to another size each time.

Pure.
"""

from __future__ import annotations

import enum
from typing import Final, final

import attrs

FIRST_LINE_AFTER_S: Final = 1.0
LINE_EVERY_S: Final = 5.0
BEHIND_AFTER_S: Final = 10.0
_HEARTBEATS_AT_END: Final = 2  # the first may come before whatever the master has


class News(enum.Enum):
    """What is to be said now."""

    COPYING = "copying"
    IN_STEP = "in step"


@final
@attrs.define(eq=False)
class FrameSizes:
    """The frames of one link that hold log bytes."""

    batch_size: int  # bytes of a full batch as it is here
    file_size: int  # bytes of a mapped file
    # Whether the newest frame held all that the master had; False before the first.
    was_all: bool = attrs.field(default=False, init=False)
    _size_before: int = attrs.field(default=0, init=False)  # bytes of the newest frame

    def note(self, end: int, size: int) -> None:
        """Judge the newest frame, which ends at ``end``."""
        is_full = size % self.batch_size == 0 or size in {self._size_before, 2 * self._size_before}
        self.was_all = not is_full and end % self.file_size > 0
        self._size_before = size


@final
@attrs.define(eq=False)
class CopyProgress:
    """One link, from its begin on."""

    began: float  # when the link's first report left; trio's time, as all times here
    # Whether "in step" was said last; it stays so for BEHIND_AFTER_S of full batches.
    is_in_step: bool = attrs.field(default=False, init=False)
    _all_time: float = attrs.field(default=0.0, init=False)  # when it last had all
    _next_line: float = attrs.field(init=False)  # when "copying" is due again: > began
    _heartbeats: int = attrs.field(default=0, init=False)  # in a row

    def __attrs_post_init__(self) -> None:
        """A short copy is not worth a line."""
        self._next_line = self.began + FIRST_LINE_AFTER_S

    def note(self, now: float, *, brought_bytes: bool, was_all: bool) -> News | None:
        """Take what one read brought, and give what is to be said.

        ``was_all``: the newest frame that held bytes was all that the master had.
        """
        self._heartbeats = 0 if brought_bytes else self._heartbeats + 1
        if was_all or self._heartbeats >= _HEARTBEATS_AT_END:
            self._all_time = now
            if self.is_in_step:
                return None
            self.is_in_step = True
            return News.IN_STEP
        if self.is_in_step and now - self._all_time >= BEHIND_AFTER_S:
            self.is_in_step = False
            self._next_line = now
        if self.is_in_step or not brought_bytes or now < self._next_line:
            return None
        self._next_line = now + LINE_EVERY_S
        return News.COPYING
