"""Notices a disk that hangs: nothing of what waits for it was synced for too long."""

from __future__ import annotations

from typing import final

import attrs


@final
@attrs.define(eq=False)
class FlushWatch:
    """Looks at one log again and again; times are seconds of one clock."""

    _unflushed: tuple[int, float] | None = attrs.field(default=None, init=False)  # offset, since

    def hangs(self, now: float, *, flushed: int, end: int, limit_s: float) -> bool:
        """Return whether nothing was flushed for ``limit_s``, while something waited.

        ``flushed`` and ``end`` are offsets of the log, as they are now.
        """
        if flushed >= end:
            self._unflushed = None
        elif self._unflushed is None or self._unflushed[0] != flushed:
            self._unflushed = flushed, now
        return self._unflushed is not None and now - self._unflushed[1] > limit_s

    def forget(self) -> None:
        """Begin again: it is another log, or the hanging was dealt with."""
        self._unflushed = None
