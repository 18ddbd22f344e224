"""Whether a link's newest frame was all that its master had, told by its size.

::

    32 KiB │ 64 KiB │ 128 KiB │ 17 003   a master that had more filled its batch, but not the last

A full batch is a multiple of ``ha_transfer_batch_size`` as it is here (a master doubles it while a
slave lags), or as large as the one before, or twice that (RocketMQ's, or another setting), or ends
with a file.  Taken for all by mistake are the first frame of a link whose other side has batches
that are no multiple of ours, and frames that a flow control cuts to another size each time.  Pure.
"""

from __future__ import annotations

from typing import final

import attrs


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
