"""Pack the units and keys of a log's records, many records per row.

    kind      physic_offset  last_offset  end_offset  topic queue_id queue_offset  count    data
    RECORDS   of the first   of the last  after it                                 records
    UNITS     of the first                            of a queue,    of the first  units    units
    KEYS      of the first   of the last                                           keys     KEY each
    NO_RECORD of the place                                                         places

The queue offsets of a row's units count up by one.  A row is from one block of the log, so sorting
rows by ``physic_offset`` sorts their units and keys in the log's order.  Checksums are not checked.
The rules are those of a node's dispatch, applied column by column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hastore.columnar.key_hashes import hashes_of_names, values_of, words_of
from hastore.columnar.property_columns import property_pairs
from hastore.columnar.record_block import RecordBlock
from hastore.columnar.text_columns import binary_take
from hastore.columnar.unit_files import UNIT_TYPE
from hastore.message import (
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
)
from hastore.pipeline.archive.segment_pieces import pieces
from hastore.store.index.layout import topic_hash
from hastore.store.record.delay_levels import parse_level
from hastore.store.record.java_hash import tags_code
from hastore.store.record.layout import (
    INNER_BATCH_FLAG,
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_ROLLBACK_TYPE,
    TRANSACTION_TYPE_MASK,
)
from hastore.store.record.message_codec import decode_properties
from hastore.topic import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hastore.columnar.log_range import LogRange
    from hastore.env.interface import Disk
    from hastore.store.record.delay_levels import DelayLevels
    from hastore.store.tools.log_directory import LogDirectory

    Array = NDArray[Any]

RECORDS: Final = "records"
UNITS: Final = "units"
KEYS: Final = "keys"
NO_RECORD: Final = "no record"
ROWS: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("physic_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("end_offset", pa.int64()),
        ("topic", pa.binary()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("count", pa.int32()),
        ("data", pa.binary()),
    ]
)
KEY: Final = np.dtype([("key_hash", "<i4"), ("physic_offset", "<i8"), ("store_ms", "<i8")])
_REPLACED: Final = "\ufffd"  # stands in a column for invalid UTF-8


@final
@attrs.frozen
class RebuildRecords:
    """Reads ranges, and packs their units, keys or both."""

    disk: Disk
    log: LogDirectory
    delay_levels: DelayLevels
    with_units: bool
    with_keys: bool

    def read(self, log_range: LogRange) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range.  Raises DiskError."""
        if log_range.missing_before:
            yield _no_record(log_range.start_offset - log_range.missing_before, 1)
        for piece in pieces(self.disk, self.log, log_range):
            if isinstance(piece, RecordBlock):
                yield self._rows(piece)
            elif piece.faults:
                yield _no_record(piece.start_offset, piece.faults)

    def _rows(self, block: RecordBlock) -> pa.RecordBatch:
        in_place = np.flatnonzero(block.is_in_place())
        offsets = block.starts + block.physic_offset
        rows: list[dict[str, Any]] = []
        if len(in_place) < block.count:
            places = block.count - len(in_place)
            rows.append({"kind": NO_RECORD, "physic_offset": int(offsets[0]), "count": places})
        if len(in_place):
            first, last = in_place[0], in_place[-1]
            rows.append(
                {
                    "kind": RECORDS,
                    "physic_offset": int(offsets[first]),
                    "last_offset": int(offsets[last]),
                    "end_offset": int(block.ends[last] + block.physic_offset),
                    "count": len(in_place),
                }
            )
            facts = _BlockFacts(block)
            if self.with_units:
                rows += self._units(facts, in_place)
            if self.with_keys:
                rows += _keys(facts, in_place)
        return pa.RecordBatch.from_pylist(rows, ROWS)

    def _units(self, facts: _BlockFacts, in_place: Array) -> Iterator[dict[str, Any]]:
        """Yield a row for each run of units of one queue."""
        head, kind = facts.block.head, facts.transaction_type
        has_unit = (kind == 0) | (kind == TRANSACTION_COMMIT_TYPE)
        rows = in_place[(has_unit & ~facts.is_inner_batch)[in_place]]
        if not len(rows):
            return
        codes = self._tags_codes(facts)
        topic, queue_id = facts.topic_codes[rows], head["queue_id"][rows]
        order = np.lexsort((queue_id, topic))  # stable: in the log's order within a queue
        rows, topic, queue_id = rows[order], topic[order], queue_id[order]
        queue_offset = head["queue_offset"][rows]
        units = np.empty(len(rows), UNIT_TYPE)
        units["physic_offset"] = facts.offsets[rows]
        units["size"] = head["size"][rows]
        units["tags_code"] = codes[rows]
        begins = np.flatnonzero(
            np.append(
                True,
                (topic[1:] != topic[:-1])
                | (queue_id[1:] != queue_id[:-1])
                | (queue_offset[1:] != queue_offset[:-1] + 1),
            )
        ).tolist()
        for begin, end in zip(begins, [*begins[1:], len(rows)], strict=True):
            yield {
                "kind": UNITS,
                "physic_offset": int(units["physic_offset"][begin]),
                "topic": facts.topics[topic[begin]],
                "queue_id": int(queue_id[begin]),
                "queue_offset": int(queue_offset[begin]),
                "count": end - begin,
                "data": units[begin:end].tobytes(),
            }

    def _tags_codes(self, facts: _BlockFacts) -> Array:
        block = facts.block
        column = facts.pairs.column(PROPERTY_TAGS)
        tags = column.dictionary_encode()
        of_tag = pa.array([tags_code(tag) for tag in tags.dictionary.to_pylist()], pa.int64())
        codes: Array = pc.fill_null(of_tag.take(tags.indices), 0).to_numpy().copy()
        for row in _rows_with(column, _REPLACED):
            codes[row] = tags_code(facts.properties(row).get(PROPERTY_TAGS))
        names = facts.topic_names
        if SCHEDULE_TOPIC in names:
            is_delayed = facts.topic_codes == names.index(SCHEDULE_TOPIC)
            for row in np.flatnonzero(is_delayed).tolist():
                level = parse_level(facts.properties(row).get(PROPERTY_DELAY_TIME_LEVEL))
                if level > 0:
                    store_ms = int(block.head["store_ms"][row])
                    codes[row] = self.delay_levels.deliver_time_ms(level, store_ms)
        return codes


@final
class _BlockFacts:
    """The columns of a block that both units and keys need."""

    def __init__(self, block: RecordBlock) -> None:
        self.block = block
        self.offsets = block.starts + block.physic_offset
        starts = block.topic_starts
        topics = binary_take(block.data, starts, starts + block.topic_sizes).dictionary_encode()
        self.topics: list[bytes] = topics.dictionary.to_pylist()
        self.topic_names = [topic.decode(errors="surrogateescape") for topic in self.topics]
        self.topic_codes: Array = topics.indices.to_numpy()
        flags = block.head["sys_flag"]
        self.transaction_type: Array = flags & TRANSACTION_TYPE_MASK
        self.is_inner_batch: Array = flags & INNER_BATCH_FLAG != 0
        self.pairs = property_pairs(block)

    def properties(self, row: int) -> dict[str, str]:
        """Read one record's properties."""
        start = int(self.block.properties_starts[row])
        return decode_properties(
            self.block.data[start : start + int(self.block.properties_sizes[row])]
        )


def _keys(facts: _BlockFacts, in_place: Array) -> Iterator[dict[str, Any]]:
    """Yield one row with all keys, ordered by record and within each record."""
    has_keys = np.zeros(facts.block.count, np.bool_)
    has_keys[in_place] = True
    has_keys &= (facts.transaction_type != TRANSACTION_ROLLBACK_TYPE) & ~facts.is_inner_batch
    unique = values_of(facts.pairs.column(PROPERTY_UNIQ_KEY))
    words = words_of(facts.pairs.column(PROPERTY_KEYS))
    begun_of_topic = [topic_hash(name) for name in facts.topic_names]
    begun = np.array(begun_of_topic, np.int64)[facts.topic_codes]
    odd = np.union1d(unique.odd_rows(), words.odd_rows())
    plain = has_keys.copy()
    plain[odd] = False
    found = []  # rows, places within a row, hashes
    for place, some in enumerate((unique, words)):
        kept = plain[some.rows]
        found.append((some.rows[kept], place + some.starts[kept] * place, some.hashes(begun)[kept]))
    for row in odd[has_keys[odd]].tolist():
        properties = facts.properties(row)
        names = [properties.get(PROPERTY_UNIQ_KEY, "")]
        names += properties.get(PROPERTY_KEYS, "").split(" ")
        exact = hashes_of_names(begun_of_topic[facts.topic_codes[row]], names)
        found.append((np.full(len(exact), row), np.arange(len(exact)), np.array(exact)))
    rows, places, hashes = (np.concatenate(parts) for parts in zip(*found, strict=True))
    if not len(rows):
        return
    order = np.lexsort((places, rows))
    rows = rows[order].astype(np.int64)
    keys = np.empty(len(rows), KEY)
    keys["key_hash"] = hashes[order]
    keys["physic_offset"] = facts.offsets[rows]
    keys["store_ms"] = facts.block.head["store_ms"][rows]
    yield {
        "kind": KEYS,
        "physic_offset": int(keys["physic_offset"][0]),
        "last_offset": int(keys["physic_offset"][-1]),
        "count": len(keys),
        "data": keys.tobytes(),
    }


def _rows_with(column: pa.StringArray, text: str) -> list[int]:
    has = pc.fill_null(pc.match_substring(column, text), fill_value=False)
    rows: list[int] = np.flatnonzero(has.to_numpy(zero_copy_only=False)).tolist()
    return rows


def _no_record(offset: int, places: int) -> pa.RecordBatch:
    row = {"kind": NO_RECORD, "physic_offset": offset, "count": places}
    return pa.RecordBatch.from_pylist([row], ROWS)
