"""Pack the units and keys of a log's records, many records per row.

    kind      physic_offset  last_offset  end_offset  topic queue_id queue_offset  count    data
    RECORDS   of the first   of the last  after it                                 records
    UNITS     of the first                            of a queue,    of the first  units    units
    KEYS      of the first   of the last                                           keys     KEY each
    NO_RECORD of the place                                                         places
    SET_ASIDE of the place                after it                                 records

The queue offsets of a row's units count up by one.  A row is from one block of the log, so sorting
rows by ``physic_offset`` sorts their units and keys in the log's order.  SET_ASIDE has the bytes
that damage hides, and counts the unconfirmed records in them (``SetAside``).  Checksums are not
checked.  The rules are those of a node's dispatch, applied column by column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import attrs
import numpy as np
import pyarrow as pa

from hastore.columnar.derived_columns import DerivedColumns
from hastore.columnar.property_columns import property_pairs
from hastore.columnar.record_block import RecordBlock
from hastore.columnar.text_columns import binary_take
from hastore.columnar.unit_files import UNIT_TYPE
from hastore.message import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY
from hastore.pipeline.archive.segment_pieces import pieces
from hastore.store.queue.confirmed_records import ConfirmedRecords
from hastore.store.record.derived_record import has_unit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hastore.columnar.log_range import LogRange
    from hastore.env.interface import Disk
    from hastore.store.record.delay_levels import DelayLevels
    from hastore.store.tools.log_directory import LogDirectory
    from hastore.store.tools.log_finding import SetAside

    Array = NDArray[Any]

RECORDS: Final = "records"
UNITS: Final = "units"
KEYS: Final = "keys"
NO_RECORD: Final = "no record"
SET_ASIDE: Final = "set aside"
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


@final
@attrs.frozen
class RebuildRecords:
    """Reads ranges, and packs their units, keys or both."""

    disk: Disk
    log: LogDirectory
    delay_levels: DelayLevels
    with_units: bool
    with_keys: bool
    _confirmed: ConfirmedRecords = attrs.field(init=False)

    @_confirmed.default
    def _confirmed_by_queues(self) -> ConfirmedRecords:
        return ConfirmedRecords(self.disk, self.log.root)

    def read(self, log_range: LogRange) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range.  Raises DiskError."""
        if log_range.missing_before:
            yield _no_record(log_range.start_offset - log_range.missing_before, 1)
        for piece in pieces(self.disk, self.log, log_range, self._confirmed):
            if isinstance(piece, RecordBlock):
                yield self._rows(piece)
            elif piece.faults:
                yield _no_record(piece.start_offset, piece.faults)
                yield _set_aside(piece.start_offset, piece.set_aside)

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
            facts = _BlockFacts(block, self.delay_levels)
            if self.with_units:
                rows += self._units(facts, in_place)
            if self.with_keys:
                rows += _keys(facts, in_place)
        return pa.RecordBatch.from_pylist(rows, ROWS)

    def _units(self, facts: _BlockFacts, in_place: Array) -> Iterator[dict[str, Any]]:
        """Yield a row for each run of units of one queue."""
        head, derived = facts.block.head, facts.derived
        rows = in_place[has_unit(head["sys_flag"][in_place])]
        if not len(rows):
            return
        codes = derived.tags_codes(facts.pairs.column(PROPERTY_TAGS))
        topic, queue_id = derived.topic_codes[rows], head["queue_id"][rows]
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


@final
class _BlockFacts:
    """The columns of a block that both units and keys need."""

    def __init__(self, block: RecordBlock, delay_levels: DelayLevels) -> None:
        self.block = block
        self.offsets = block.starts + block.physic_offset
        starts = block.topic_starts
        topics = binary_take(block.data, starts, starts + block.topic_sizes).dictionary_encode()
        self.topics: list[bytes] = topics.dictionary.to_pylist()
        self.pairs = property_pairs(block)
        self.derived = DerivedColumns(
            topics=[topic.decode(errors="surrogateescape") for topic in self.topics],
            topic_codes=topics.indices.to_numpy(),
            sys_flags=block.head["sys_flag"],
            store_ms=block.head["store_ms"],
            properties=self._properties,
            delay_levels=delay_levels,
        )

    def _properties(self, row: int) -> bytes:
        start = int(self.block.properties_starts[row])
        return self.block.data[start : start + int(self.block.properties_sizes[row])]


def _keys(facts: _BlockFacts, in_place: Array) -> Iterator[dict[str, Any]]:
    """Yield one row with all keys, ordered by record and within each record."""
    unique, words = (facts.pairs.column(name) for name in (PROPERTY_UNIQ_KEY, PROPERTY_KEYS))
    rows, hashes = facts.derived.key_hashes(unique, words, in_place)
    if not len(rows):
        return
    keys = np.empty(len(rows), KEY)
    keys["key_hash"] = hashes
    keys["physic_offset"] = facts.offsets[rows]
    keys["store_ms"] = facts.block.head["store_ms"][rows]
    yield {
        "kind": KEYS,
        "physic_offset": int(keys["physic_offset"][0]),
        "last_offset": int(keys["physic_offset"][-1]),
        "count": len(keys),
        "data": keys.tobytes(),
    }


def _set_aside(offset: int, found: SetAside) -> pa.RecordBatch:
    row = {
        "kind": SET_ASIDE,
        "physic_offset": offset,
        "end_offset": offset + found.size,
        "count": found.records,
    }
    return pa.RecordBatch.from_pylist([row], ROWS)


def _no_record(offset: int, places: int) -> pa.RecordBatch:
    row = {"kind": NO_RECORD, "physic_offset": offset, "count": places}
    return pa.RecordBatch.from_pylist([row], ROWS)
