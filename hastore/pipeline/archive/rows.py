"""Turn a segment of a log into rows for Parquet, from which the same bytes can be restored.

    record:   | head: sizes, offsets, times, hosts | body | tail: topic, properties |
    column      record_head                          body   record_tail

A row covers ``size`` bytes from ``physic_offset`` on: the three columns, joined.  The other columns
are for queries.  The filler at a file's end, and damage, have their bytes in ``record_head`` and no
topic.  Bytes that no row covers are 0.

Invariant: rows do not overlap, so they may be written back in any order.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from hastore.columnar.log_schema import COLUMNS
from hastore.columnar.record_block import RecordBlock
from hastore.columnar.record_columns import record_batch
from hastore.columnar.text_columns import binary_take
from hastore.pipeline.archive.segment_pieces import pieces

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.columnar.log_range import LogRange
    from hastore.env.interface import Disk
    from hastore.pipeline.archive.segment_pieces import Gap
    from hastore.store.queue.confirmed_records import ConfirmedRecords
    from hastore.store.tools.log_directory import LogDirectory

RAW_SIZE_MAX: Final = 256 * 1024  # of a row of filler or damage
_DECODED: Final = (
    "segment",
    "physic_offset",
    "size",
    "queue_id",
    "queue_offset",
    "tags",
    "keys",
    "uniq_key",
    "flag",
    "sys_flag",
    "born_timestamp",
    "store_timestamp",
    "born_host",
    "store_host",
    "reconsume_times",
    "prepared_transaction_offset",
    "body_crc",
    "record_ok",
    "fault",
    "body",
)
PARTITION_COLUMNS: Final = ("topic", "date")
RAW_COLUMNS: Final = ("record_head", "record_tail")
_DAY_MS: Final = 86_400_000
_DAYS_MAX: Final = 2_932_897  # from 1970 to the year 10000
_READ_SCHEMA: Final = pa.schema([(name, COLUMNS[name]) for name in (*_DECODED, "topic")])
# The columns of a file; ``topic`` and ``date`` are in its path.
FILE_SCHEMA: Final = pa.schema(
    [(name, COLUMNS[name]) for name in _DECODED] + [(name, pa.binary()) for name in RAW_COLUMNS]
)
ROW_SCHEMA: Final = pa.schema([*FILE_SCHEMA, ("topic", pa.string()), ("date", pa.string())])


def segment_rows(
    disk: Disk, log: LogDirectory, log_range: LogRange, confirmed: ConfirmedRecords
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one whole segment, with ``topic`` and ``date``.  Raises DiskError."""
    with contextlib.closing(disk.open_file(log_range.path, writable=False)) as file:
        for piece in pieces(disk, log, log_range, confirmed):
            if isinstance(piece, RecordBlock):
                yield _records(piece, log_range)
                continue
            for offset in range(piece.start_offset, piece.end_offset, RAW_SIZE_MAX):
                size = min(RAW_SIZE_MAX, piece.end_offset - offset)
                data = file.pread(size, offset - log_range.file_offset)
                if data.count(0) != len(data):
                    yield _raw(piece, log_range, offset, data)


def _records(block: RecordBlock, log_range: LogRange) -> pa.RecordBatch:
    available = log_range.file_offset + log_range.file_size - block.physic_offset
    decoded = record_batch(
        block, _READ_SCHEMA, store=log_range.store, segment=log_range.segment, available=available
    )
    head = binary_take(block.data, block.starts, block.body_starts)
    tail = binary_take(block.data, block.body_starts + block.body_sizes, block.ends)
    columns: dict[str, Any] = {name: decoded[name] for name in _READ_SCHEMA.names}
    columns |= {"record_head": head, "record_tail": tail, "date": _dates(block.head["store_ms"])}
    return pa.RecordBatch.from_arrays(
        [columns[name] for name in ROW_SCHEMA.names], ROW_SCHEMA.names
    )


def _dates(store_ms: Any) -> pa.Array:
    """Return the days (UTC) of store times as text; null outside 1970 to 9999."""
    days = store_ms // _DAY_MS
    different, inverse = np.unique(days, return_inverse=True)
    texts = [_date(int(day)) for day in different]
    return pa.array(texts, pa.string()).take(pa.array(inverse))


def _date(day: int) -> str | None:
    is_known = 0 <= day < _DAYS_MAX
    return str(np.datetime64(day, "D")) if is_known else None


def _raw(gap: Gap, log_range: LogRange, offset: int, data: bytes) -> pa.RecordBatch:
    known = {
        "segment": log_range.segment,
        "physic_offset": offset,
        "size": len(data),
        "record_ok": False if gap.faults else None,
        "fault": "no record" if gap.faults else None,
        "record_head": data,
    }
    arrays = [pa.array([known.get(field.name)], field.type) for field in ROW_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=ROW_SCHEMA)
