"""The outcome of an append.  A NamedTuple, because one is made for every message."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hastore.message import offset_message_ids

if TYPE_CHECKING:
    from hastore.status import AppendMessageStatus


class AppendMessageResult(NamedTuple):
    """The range of the appended records, one or a batch.

    If ``status`` is not PUT_OK, nothing was appended: both offsets are the log's end, and
    ``message_count`` is 0.
    """

    status: AppendMessageStatus
    physic_offset: int
    next_offset: int
    queue_offset: int
    message_count: int
    store_timestamp_ms: int
    store_host: bytes  # address and 4-byte port, as in a record
    batch_offsets: tuple[int, ...] | None = None  # of each record, for a batch

    @property
    def message_id(self) -> str:
        """RocketMQ's offsetMsgId; for a batch, its records' ids joined by commas."""
        return offset_message_ids(self.store_host, self.batch_offsets or (self.physic_offset,))
