"""Selects the wanted rows of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterator


@final
@attrs.frozen(kw_only=True)
class RowFilter:
    """A row must meet every condition that is set; one without a value (damage) does not.

    ``end_offset`` is exclusive; times are in ms and both included.  ``damaged``: only damage.
    """

    start_offset: int | None = None
    end_offset: int | None = None
    start_time_ms: int | None = None
    end_time_ms: int | None = None
    topic: str | None = None
    queue_id: int | None = None
    damaged: bool = False

    def columns(self) -> Iterator[str]:
        """Yield the names of the columns that ``apply`` needs."""
        if self.start_offset is not None or self.end_offset is not None:
            yield "physic_offset"
        if self.start_time_ms is not None or self.end_time_ms is not None:
            yield "store_timestamp"
        if self.topic is not None:
            yield "topic"
        if self.queue_id is not None:
            yield "queue_id"
        if self.damaged:
            yield "record_ok"

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that meet every condition."""
        conditions = list(self._conditions(batch))
        if not conditions:
            return batch
        mask = conditions[0]
        for condition in conditions[1:]:
            mask = pc.and_(mask, condition)
        return batch.filter(mask)

    def _conditions(self, batch: pa.RecordBatch) -> Iterator[pa.Array]:
        if self.start_offset is not None:
            yield pc.greater_equal(batch["physic_offset"], self.start_offset)
        if self.end_offset is not None:
            yield pc.less(batch["physic_offset"], self.end_offset)
        if self.start_time_ms is not None:
            yield pc.greater_equal(batch["store_timestamp"], _time(self.start_time_ms))
        if self.end_time_ms is not None:
            yield pc.less_equal(batch["store_timestamp"], _time(self.end_time_ms))
        if self.topic is not None:
            yield pc.equal(batch["topic"], self.topic)
        if self.queue_id is not None:
            yield pc.equal(batch["queue_id"], pa.scalar(self.queue_id, pa.int32()))
        if self.damaged:
            yield pc.invert(batch["record_ok"])


def _time(ms: int) -> pa.Scalar:
    return pa.scalar(ms * 1000, pa.timestamp("us", tz="UTC"))
