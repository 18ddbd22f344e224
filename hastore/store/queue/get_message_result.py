"""What a read of a queue gives: a status, where to go on, and where the messages' bytes are."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs

if TYPE_CHECKING:
    from hastore.status import GetMessageStatus


@final
@attrs.frozen(kw_only=True)
class GetMessageResult:
    """``ranges`` are the records' physic offsets and sizes, in the queue's order.

    ``records`` are their bytes where a filter had to read them, else None: then they may be sent
    from the files as they are.  ``min_offset`` and ``max_offset`` are the queue's.
    """

    status: GetMessageStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    ranges: tuple[tuple[int, int], ...] = ()
    records: tuple[bytes, ...] | None = None

    @property
    def size(self) -> int:
        """Bytes of all records."""
        return sum(size for _, size in self.ranges)
