"""What a record gives to its consume queue and to the index, as numbers: a row each.

    physic_offset size topic queue_id queue_offset store_ms     of the record
    tags_code     of its unit; null: it has none
    key_hashes    of its entries in the index, in their order; null: it has none

What is no record is a row with nothing but ``physic_offset``.  Checksums are not looked at.  The
rules are those of ``store.derived_record``, a column at a time; texts that are no UTF-8 go there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hastore.columnar.property_columns import PropertyPairs
from hastore.columnar.record_block import RecordBlock
from hastore.columnar.text_columns import binary_take
from hastore.message import (
    INNER_BATCH_FLAG,
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    TRANSACTION_TYPE_MASK,
)
from hastore.pipeline.segment_pieces import pieces
from hastore.store.delay_levels import SCHEDULE_TOPIC, parse_level
from hastore.store.index_format import key_hash, topic_hash
from hastore.store.java_hash import tags_code
from hastore.store.message_codec import (
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_ROLLBACK_TYPE,
    decode_properties,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hastore.columnar.log_range import LogRange
    from hastore.env.interface import Disk
    from hastore.store.delay_levels import DelayLevels
    from hastore.store.log_directory import LogDirectory

    Array = NDArray[Any]

ROWS: Final = pa.schema(
    [
        ("physic_offset", pa.int64()),
        ("size", pa.int32()),
        ("topic", pa.binary()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("store_ms", pa.int64()),
        ("tags_code", pa.int64()),
        ("key_hashes", pa.list_(pa.field("element", pa.int32()))),
    ]
)
_REPLACED: Final = "\ufffd"  # what the columns have for bytes that are no UTF-8


@final
@attrs.frozen
class RebuildRecords:
    """Reads ranges; what is not asked for is null."""

    disk: Disk
    log: LogDirectory
    delay_levels: DelayLevels
    with_units: bool
    with_keys: bool

    def read(self, log_range: LogRange) -> Iterator[pa.RecordBatch]:
        """Give the rows of a range, in the log's order.  Raises DiskError."""
        if log_range.missing_before:
            yield _unreadable(log_range.start_offset - log_range.missing_before, 1)
        for piece in pieces(self.disk, self.log, log_range):
            if not isinstance(piece, RecordBlock):
                if piece.faults:
                    yield _unreadable(piece.start_offset, piece.faults)
                continue
            batch = self._rows(piece)
            in_place = piece.is_in_place()
            if not in_place.all():
                offsets = batch["physic_offset"].filter(pa.array(~in_place))
                yield _of_offsets(offsets)
                batch = batch.filter(pa.array(in_place))
            yield batch

    def _rows(self, block: RecordBlock) -> pa.RecordBatch:
        head, starts = block.head, block.topic_starts
        topics = binary_take(block.data, starts, starts + block.topic_sizes)
        codes = topics.dictionary_encode()
        names = [name.decode(errors="surrogateescape") for name in codes.dictionary.to_pylist()]
        texts = _Texts(block)
        of_topic = codes.indices.to_numpy()
        nothing = pa.nulls(block.count, pa.int64())
        columns = {
            "physic_offset": pa.array(block.starts + block.physic_offset),
            "size": pa.array(head["size"]),
            "topic": topics,
            "queue_id": pa.array(head["queue_id"]),
            "queue_offset": pa.array(head["queue_offset"]),
            "store_ms": pa.array(head["store_ms"]),
            "tags_code": self._tags_codes(block, texts, of_topic, names)
            if self.with_units
            else nothing,
            "key_hashes": _key_hashes(block, texts, of_topic, names)
            if self.with_keys
            else pa.nulls(block.count, ROWS.field("key_hashes").type),
        }
        return pa.RecordBatch.from_arrays([columns[name] for name in ROWS.names], schema=ROWS)

    def _tags_codes(
        self, block: RecordBlock, texts: _Texts, of_topic: Array, names: list[str]
    ) -> pa.Array:
        tags = texts.column(PROPERTY_TAGS)
        of_tag = {tag: tags_code(tag) for tag in set(tags)}
        found = np.array([of_tag[tag] for tag in tags], np.int64)
        if SCHEDULE_TOPIC in names:
            delays = texts.column(PROPERTY_DELAY_TIME_LEVEL)
            for row in np.flatnonzero(of_topic == names.index(SCHEDULE_TOPIC)):
                level = parse_level(delays[row])
                if level > 0:
                    store_ms = int(block.head["store_ms"][row])
                    found[row] = self.delay_levels.deliver_time_ms(level, store_ms)
        flags = block.head["sys_flag"]
        kind = flags & TRANSACTION_TYPE_MASK
        has_none = (kind != 0) & (kind != TRANSACTION_COMMIT_TYPE) | (flags & INNER_BATCH_FLAG != 0)
        return pa.array(found, pa.int64(), mask=has_none)


@final
class _Texts:
    """Properties of a block's records, as ``decode_properties`` reads them."""

    def __init__(self, block: RecordBlock) -> None:
        self._block = block
        self._pairs = PropertyPairs(block)

    def column(self, name: str) -> list[str | None]:
        """Give one property of each record."""
        column = self._pairs.column(name)
        values: list[str | None] = column.to_pylist()
        odd = pc.fill_null(pc.match_substring(column, _REPLACED), fill_value=False)
        for row in np.flatnonzero(odd.to_numpy(zero_copy_only=False)):
            start = int(self._block.properties_starts[row])
            raw = self._block.data[start : start + int(self._block.properties_sizes[row])]
            values[row] = decode_properties(raw).get(name)
        return values


def _key_hashes(block: RecordBlock, texts: _Texts, of_topic: Array, names: list[str]) -> pa.Array:
    flags = block.head["sys_flag"]
    has_none = flags & TRANSACTION_TYPE_MASK == TRANSACTION_ROLLBACK_TYPE
    has_none |= flags & INNER_BATCH_FLAG != 0
    begun = [topic_hash(name) for name in names]
    hashes: list[list[int] | None] = []
    uniq_keys, all_keys = texts.column(PROPERTY_UNIQ_KEY), texts.column(PROPERTY_KEYS)
    rows = zip(of_topic.tolist(), has_none.tolist(), uniq_keys, all_keys, strict=True)
    for topic, is_out, uniq_key, keys in rows:
        if is_out or not (uniq_key or keys):
            hashes.append(None)
            continue
        of_record = [uniq_key] if uniq_key else []
        if keys:
            of_record += [key for key in keys.split(" ") if key]
        start = begun[topic]
        hashes.append([key_hash(start, key) for key in of_record] or None)
    return pa.array(hashes, ROWS.field("key_hashes").type)


def _unreadable(offset: int, count: int) -> pa.RecordBatch:
    return _of_offsets(pa.array([offset] * count, pa.int64()))


def _of_offsets(offsets: pa.Array) -> pa.RecordBatch:
    arrays = [
        offsets if field.name == "physic_offset" else pa.nulls(len(offsets), field.type)
        for field in ROWS
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ROWS)
