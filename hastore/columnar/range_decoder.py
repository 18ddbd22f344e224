"""A range of a log as Arrow batches: its messages, and a row for each damaged place.

    | record | record | ?????? | record | BLANK |          rows: message, message, damage, message
              fast path └ log_walker └ fast path           a BLANK has one only with ``fillers``

Intact records take the fast path (``record_block``).  For everything else ``log_walker`` decides
what it is and where reading resumes, so a table, ``log verify`` and ``log cat`` agree.  Records
behind damage that nothing confirms (``store.queue.confirmed_records``) are part of the damage; with
``unconfirmed`` they are rows with all columns that say so in ``fault``, and none is ``record_ok``.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, final

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from isal import isal_zlib

from hastore.columnar.log_schema import arrow_schema
from hastore.columnar.record_block import RecordBlock, walk
from hastore.columnar.record_columns import record_batch, with_decoded_bodies
from hastore.columnar.record_reader import CHUNK_SIZE, RecordReader
from hastore.columnar.row_filter import RowFilter
from hastore.errors import LogDamagedError
from hastore.store.queue.confirmed_records import ConfirmedRecords
from hastore.store.record.record_check import MEASURED_KINDS, RecordKind
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.log_walker import UNCONFIRMED, LogWalker

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from hastore.columnar.log_range import LogRange
    from hastore.env.interface import Disk
    from hastore.store.tools.log_directory import LogDirectory

_INT32_MAX: Final = 2**31 - 1
# A chunk with at most this many records is freed before the next one is read, which then reuses
# memory that is still in the core's caches.  With more records glibc returns the larger tables to
# the kernel: 1,700 page faults a chunk of 100-byte bodies, a third of the speed.
_FREED_EARLY_MAX: Final = 3_500


@final
@attrs.define(eq=False)
class RangeDecoder:
    """Decodes ranges into the wanted columns.

    ``fail_fast``: raise LogDamagedError at the first damaged row instead of yielding it.
    ``fillers``: a BLANK is a row too: intact, without a topic; its ``fault`` says where it holds
    bytes other than 0.  ``unconfirmed``: records behind damage that nothing confirms are rows, too.
    ``raw_bodies``: compressed bodies stay so.
    """

    disk: Disk
    columns: Sequence[str] | None = None
    row_filter: RowFilter = attrs.field(factory=RowFilter)
    fail_fast: bool = False
    fillers: bool = False
    unconfirmed: bool = False
    raw_bodies: bool = False
    _schema: pa.Schema = attrs.field(init=False)
    _read_schema: pa.Schema = attrs.field(init=False)
    _decodes_bodies: bool = attrs.field(default=False, init=False)
    _log: tuple[str, LogDirectory, ConfirmedRecords] | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        """Determine which columns the filter and ``fail_fast`` need in addition."""
        self._schema = arrow_schema(self.columns)
        extra = set(self.row_filter.columns())
        if self.fail_fast:
            extra |= {"record_ok", "fault", "physic_offset"}
        if not self.raw_bodies and not {"body", "body_fault"}.isdisjoint(self._schema.names):
            self._decodes_bodies = True
            extra |= {"sys_flag", "body", "body_fault"}
        names = [*self._schema.names, *sorted(extra.difference(self._schema.names))]
        self._read_schema = arrow_schema(names)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches."""
        return self._schema

    def decode(self, log_range: LogRange) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a range, one for each chunk that was read, or more if it is large.

        Raises DiskError; LogDamagedError with ``fail_fast``.
        """
        for batch in self._batches(log_range):
            if self.fail_fast:
                _refuse_damage(log_range, batch)
            batch = self.row_filter.apply(batch)  # noqa: PLW2901 - memory is for one batch
            if batch.num_rows and self._decodes_bodies:
                for decoded in with_decoded_bodies(batch):
                    yield decoded.select(self._schema.names)
                    del decoded
            elif batch.num_rows:
                yield batch.select(self._schema.names)
            del batch

    def _batches(self, log_range: LogRange) -> Iterator[pa.RecordBatch]:
        missing = log_range.missing_before
        if missing:
            start = log_range.start_offset - missing
            file_size = self._log_of(log_range.store)[0].mapped_file_size or missing
            of_file = attrs.evolve(log_range, segment=f"{start - start % file_size:020d}")
            yield self._missing(of_file, start, missing, "no file has them")
        base = log_range.file_offset
        at = log_range.start_offset
        with RecordReader(self.disk, log_range.path, log_range.file_size) as reader:
            while at < log_range.end_offset:
                block = reader.read_block(at - base, at, log_range.end_offset)
                if block.end:
                    if at + block.end > log_range.keep_from and not self._is_passed_over(block):
                        yield self._message_batch(log_range, block)
                    at += block.end
                else:
                    at = yield from self._damage_batches(log_range, at)
                if block.count <= _FREED_EARLY_MAX:
                    del block

    def _is_passed_over(self, block: RecordBlock) -> bool:
        """Whether only damage is wanted and the block has none: then no column is made."""
        return self.row_filter.damaged and bool(block.is_intact().all())

    def _message_batch(self, log_range: LogRange, block: RecordBlock) -> pa.RecordBatch:
        keep_from = log_range.keep_from - block.physic_offset
        batch = record_batch(
            block,
            self._read_schema,
            store=log_range.store,
            segment=log_range.segment,
            available=log_range.file_offset + log_range.file_size - block.physic_offset,
        )
        if keep_from > 0:
            batch = batch.slice(int(block.starts.searchsorted(keep_from)))
        return batch

    def _log_of(self, store: str) -> tuple[LogDirectory, ConfirmedRecords]:
        """Return what is read of a store but its records, once for all of its ranges."""
        if self._log is None or self._log[0] != store:
            log = find_log(self.disk, store)
            self._log = (store, log, ConfirmedRecords(self.disk, log.root))
        return self._log[1:]

    def _damage_batches(self, log_range: LogRange, at: int) -> Generator[pa.RecordBatch, None, int]:
        """Yield the damage and fillers from ``at`` on; return where reading resumes."""
        log, confirmed = self._log_of(log_range.store)
        file_end = log_range.file_offset + log_range.file_size
        is_listed = any(file.physic_offset == log_range.file_offset for file in log.files)
        if not is_listed or not self.disk.exists(log_range.path):
            end = min(file_end, log_range.end_offset)
            first = max(at, log_range.keep_from)
            yield self._missing(log_range, first, end - first, "its file went while it was read")
            return file_end
        walker = LogWalker(
            self.disk,
            log,
            from_offset=at,
            at_record=True,
            confirmed=confirmed,
            unconfirmed=self.unconfirmed,
        )
        for offset, check in walker.walk():
            if offset >= file_end:
                break
            # The fast path decodes such a record with all its columns.
            if check.kind in MEASURED_KINDS or offset >= log_range.end_offset:
                return offset
            is_blank = check.kind is RecordKind.BLANK
            if check.kind is RecordKind.UNCONFIRMED and offset >= log_range.keep_from:
                data = walker.read(offset, check.size)
                yield self._unconfirmed_batch(log_range, offset, data)
                continue
            if offset >= log_range.keep_from and (not is_blank or self.fillers):
                fault: str | None = f"{check.kind.value}: {check.detail}"
                if is_blank:
                    fault = f"filler: {check.detail}" if check.detail else None
                yield self._damage(log_range, offset, check.size, fault, is_intact=is_blank)
        return file_end

    def _unconfirmed_batch(self, log_range: LogRange, offset: int, data: bytes) -> pa.RecordBatch:
        starts, end = walk(data, 0, 1)
        block = RecordBlock(data, starts, end, offset)
        batch = self._message_batch(attrs.evolve(log_range, keep_from=0), block)
        known = {"record_ok": False, "fault": f"{RecordKind.UNCONFIRMED.value}: {UNCONFIRMED}"}
        arrays = [
            pa.array([known[field.name]], field.type)
            if field.name in known
            else batch.column(field.name)
            for field in self._read_schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._read_schema)

    def _missing(self, log_range: LogRange, offset: int, size: int, reason: str) -> pa.RecordBatch:
        return self._damage(log_range, offset, size, f"missing: {reason}", has_bytes=False)

    def _damage(
        self,
        log_range: LogRange,
        offset: int,
        size: int,
        fault: str | None,
        *,
        is_intact: bool = False,
        has_bytes: bool = True,
    ) -> pa.RecordBatch:
        """Return one row without a message: of damage, or of a filler, which is intact."""
        known: dict[str, Any] = {
            "store": log_range.store,
            "physic_offset": offset,
            "size": min(size, _INT32_MAX),
            "segment": log_range.segment,
            "record_ok": is_intact,
            "fault": fault,
        }
        if "digest" in self._read_schema.names and has_bytes:
            known["digest"] = self._digest(log_range, offset, size)
        arrays = [pa.array([known.get(field.name)], field.type) for field in self._read_schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._read_schema)

    def _digest(self, log_range: LogRange, offset: int, size: int) -> int:
        """Return the CRC32 of ``size`` bytes of the file, as a signed number."""
        position, digest = offset - log_range.file_offset, 0
        end = position + size
        with contextlib.closing(self.disk.open_file(log_range.path, writable=False)) as file:
            for start in range(position, end, CHUNK_SIZE):
                data = file.pread(min(CHUNK_SIZE, end - start), start)
                digest = isal_zlib.crc32(data, digest)
        return digest - (digest >> 31 << 32)


def _refuse_damage(log_range: LogRange, batch: pa.RecordBatch) -> None:
    wrong = batch.filter(pc.invert(batch["record_ok"]))
    if wrong.num_rows:
        offset, fault = wrong["physic_offset"][0].as_py(), wrong["fault"][0].as_py()
        raise LogDamagedError(
            f"{log_range.path} is damaged at offset {offset}: {fault}",
            path=log_range.path,
            physic_offset=offset,
            hint="read with mode=PERMISSIVE to have damage as rows, or hastore log repair",
        )
