"""The facts that a check joins: a row of numbers for each record.

    store_ms, prev_ms    when it and the intact record before it in this range were stored
    is_edge              the first or last intact record of its range: its neighbour is elsewhere
    queue_step           how many queue offsets it takes; 0: none (half a transaction)
    tags_code            of its unit in the consume queue; null: it has none
    key_hashes           of its entries in the index, in their order
    odd                  "severity kind: detail" of odd values that no checksum covers

A damaged place has only its offset, its size and its ``fault``; a filler has neither ``fault`` nor
topic.  The rules are those of ``store.record.derived_record``, ``store.tools.queue_continuity`` and
``store.tools.log_verify``, a column at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hastore.columnar.derived_columns import DerivedColumns
from hastore.columnar.range_decoder import RangeDecoder
from hastore.store.record.derived_record import has_unit
from hastore.store.record.layout import (
    INNER_BATCH_FLAG,
    NAME_END,
    PAIR_END,
    PROP_CRC_NAME,
    PROP_CRC_SIZE,
    SYS_FLAGS_KNOWN,
    TRANSACTION_PREPARED_TYPE,
    TRANSACTION_ROLLBACK_TYPE,
    TRANSACTION_TYPE_MASK,
)
from hastore.store.record.message_codec import inner_batch_count
from hastore.store.tools.log_finding import Severity
from hastore.store.tools.log_verify import check_properties, check_topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hastore.columnar.log_range import LogRange
    from hastore.env.interface import Disk
    from hastore.store.record.delay_levels import DelayLevels

    Array = NDArray[Any]

_READ: Final = (
    "store", "physic_offset", "size", "topic", "queue_id", "queue_offset", "sys_flag",
    "store_timestamp", "tags", "keys", "uniq_key", "properties_text", "record_ok", "fault",
)  # fmt: skip
_ASCII_MAX: Final = 127
FACTS: Final = pa.schema(
    [
        ("store", pa.string()),
        ("physic_offset", pa.int64()),
        ("size", pa.int32()),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("queue_step", pa.int32()),
        ("has_crc", pa.bool_()),
        ("store_ms", pa.int64()),
        ("prev_ms", pa.int64()),
        ("is_edge", pa.bool_()),
        ("tags_code", pa.int64()),
        ("key_hashes", pa.list_(pa.field("element", pa.int32()))),
        ("fault", pa.string()),
        ("odd", pa.list_(pa.field("element", pa.string()))),
    ]
)


@final
@attrs.frozen
class RecordFacts:
    """Reads the facts of ranges; ``with_keys`` if the index is checked."""

    disk: Disk
    delay_levels: DelayLevels
    with_keys: bool

    def read(self, log_range: LogRange) -> Iterator[pa.RecordBatch]:
        """Yield one batch for each chunk of the log.  Raises DiskError."""
        held: pa.RecordBatch | None = None
        last_ms: int | None = None
        is_first = True
        for batch in RangeDecoder(self.disk, _READ, fillers=True).decode(log_range):
            facts, intact_ms = self._facts(batch, last_ms, is_first=is_first)
            if not len(intact_ms):  # no message
                yield facts
                continue
            if held is not None:
                yield held
            held, last_ms, is_first = facts, int(intact_ms[-1]), False
        if held is not None:
            yield _with_last_edge(held)

    def _facts(
        self, batch: pa.RecordBatch, last_ms: int | None, *, is_first: bool
    ) -> tuple[pa.RecordBatch, Array]:
        is_filler = pc.and_(batch["record_ok"], pc.is_null(batch["topic"]))
        is_intact = pc.and_not(batch["record_ok"], is_filler).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(is_intact)
        intact = batch.take(pa.array(rows)) if len(rows) < batch.num_rows else batch
        text = _Texts(intact["properties_text"])
        flags = intact["sys_flag"].to_numpy()
        intact_ms = pc.fill_null(intact["store_timestamp"].cast(pa.int64()), 0).to_numpy() // 1000
        derived = self._derived_of(intact, flags, intact_ms, text)
        before = np.concatenate([[-1 if last_ms is None else last_ms], intact_ms[:-1]])
        edges = np.zeros(len(rows), np.bool_)
        if is_first and len(rows):
            edges[0] = True
        columns = {
            "queue_step": pa.array(_steps(flags, text), pa.int32()),
            "has_crc": pa.array(text.has_crc()),
            "store_ms": pa.array(intact_ms, pa.int64()),
            "prev_ms": pa.array(before[: len(rows)], pa.int64(), mask=edges),
            "is_edge": pa.array(edges),
            "tags_code": pa.array(
                derived.tags_codes(intact["tags"]), pa.int64(), mask=~has_unit(flags)
            ),
            "key_hashes": self._key_hashes(intact, derived),
            "odd": _odd(intact, flags, text),
        }
        if len(rows) < batch.num_rows:
            where = np.full(batch.num_rows, -1)
            where[rows] = np.arange(len(rows))
            taken = pa.array(where, mask=where < 0)
            columns = {name: array.take(taken) for name, array in columns.items()}
            columns |= _of_fillers(batch, is_filler, columns["odd"])
        arrays = [columns.get(name, batch[name] if name in _READ else None) for name in FACTS.names]
        return pa.RecordBatch.from_arrays(arrays, schema=FACTS), intact_ms

    def _derived_of(
        self, intact: pa.RecordBatch, flags: Array, store_ms: Array, text: _Texts
    ) -> DerivedColumns:
        topics = intact["topic"].dictionary_encode()
        return DerivedColumns(
            topics=topics.dictionary.to_pylist(),
            topic_codes=topics.indices.to_numpy(),
            sys_flags=flags,
            store_ms=store_ms,
            properties=text.__getitem__,
            delay_levels=self.delay_levels,
        )

    def _key_hashes(self, intact: pa.RecordBatch, derived: DerivedColumns) -> pa.Array:
        count, kind = intact.num_rows, FACTS.field("key_hashes").type
        if not self.with_keys:
            return pa.nulls(count, kind)
        rows, hashes = derived.key_hashes(intact["uniq_key"], intact["keys"], np.arange(count))
        offsets = np.zeros(count + 1, np.int32)
        np.cumsum(np.bincount(rows, minlength=count), out=offsets[1:])
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(hashes, pa.int32()), type=kind)


@final
class _Texts:
    """The property texts of a batch, in one buffer."""

    def __init__(self, texts: pa.BinaryArray) -> None:
        offsets = np.frombuffer(texts.buffers()[1], np.int32)
        offsets = offsets[texts.offset : texts.offset + len(texts) + 1]
        data = texts.buffers()[2]
        self.data = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        self.starts, self.ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
        self._texts = texts

    def __getitem__(self, row: int | np.integer[Any]) -> bytes:
        text: bytes = self._texts[int(row)].as_py()
        return text

    def has_crc(self) -> Array:
        """Whether each ends with a ``__CRC32#``."""
        has = self.ends - self.starts >= PROP_CRC_SIZE
        rows = np.flatnonzero(has)
        begin = self.ends[rows] - PROP_CRC_SIZE
        for index, byte in enumerate(PROP_CRC_NAME):
            has[rows] &= self.data[begin + index] == byte
        return has

    def are_plain(self) -> bool:
        """Whether all are ASCII pairs of a name and a value, each ended: 01 and 02 in turn."""
        if not len(self.starts):
            return True
        data = self.data[self.starts[0] : self.ends[-1]]
        ends = self.ends[self.ends > self.starts] - self.starts[0]
        if (data > _ASCII_MAX).any() or (data[ends - 1] != PAIR_END).any():
            return False
        marks = np.flatnonzero(data <= PAIR_END)  # NUL and the separators
        kinds = data[marks]
        if len(marks) % 2 or (kinds[::2] != NAME_END).any() or (kinds[1::2] != PAIR_END).any():
            return False
        before = np.concatenate([[-1], marks[1:-1:2]])[: len(marks) // 2]
        return bool((marks[::2] - before > 1).all())


def _steps(flags: Array, text: _Texts) -> Array:
    kind = flags & TRANSACTION_TYPE_MASK
    is_half = (kind == TRANSACTION_PREPARED_TYPE) | (kind == TRANSACTION_ROLLBACK_TYPE)
    steps = np.where(is_half, 0, 1)
    for row in np.flatnonzero((flags & INNER_BATCH_FLAG != 0) & ~is_half):
        steps[row] = inner_batch_count(text[row])
    return steps


def _of_fillers(batch: pa.RecordBatch, is_filler: pa.Array, odd: pa.Array) -> dict[str, pa.Array]:
    """Make the decoder's fault of a filler a warning: the filler is intact all the same."""
    if not pc.any(is_filler).as_py():
        return {}
    said = pc.if_else(is_filler, batch["fault"], None).to_pylist()
    of_all = [
        own if text is None else [f"warning {text}"]
        for own, text in zip(odd.to_pylist(), said, strict=True)
    ]
    return {
        "fault": pc.if_else(is_filler, None, batch["fault"]),
        "odd": pa.array(of_all, FACTS.field("odd").type),
    }


def _odd(intact: pa.RecordBatch, flags: Array, text: _Texts) -> pa.Array:
    """Return the odd values of each record as a list; null for nearly all records."""
    odd: dict[int, list[str]] = {}
    for row in np.flatnonzero(flags & ~SYS_FLAGS_KNOWN != 0):
        detail = f"sysFlag {int(flags[row]) & 0xFFFFFFFF:08x} has unknown bits"
        odd.setdefault(int(row), []).append(f"warning sys-flag: {detail}")
    topics = intact["topic"].dictionary_encode()
    for code, topic in enumerate(topics.dictionary.to_pylist()):
        found = check_topic(topic.encode())
        if "\ufffd" in topic:  # the decoder's replacement for bytes that are not UTF-8
            found = Severity.DAMAGE, f"topic {topic!r} is not text"
        if found is not None:
            for row in np.flatnonzero(topics.indices.to_numpy() == code):
                odd.setdefault(int(row), []).append(f"{found[0].value} topic: {found[1]}")
    if not text.are_plain():
        for row in np.flatnonzero(~text.has_crc() & (text.ends > text.starts)):
            found = check_properties(text[row])
            if found is not None:
                odd.setdefault(int(row), []).append(f"{found[0].value} properties: {found[1]}")
    kind = FACTS.field("odd").type
    if not odd:
        return pa.nulls(intact.num_rows, kind)
    return pa.array([odd.get(row) for row in range(intact.num_rows)], kind)


def _with_last_edge(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Mark the last intact record."""
    edges = batch["is_edge"].to_pylist()
    row = max(index for index, edge in enumerate(edges) if edge is not None)
    edges[row] = True
    at = FACTS.get_field_index("is_edge")
    return batch.set_column(at, FACTS.field(at), pa.array(edges, pa.bool_()))
