"""Write a segment as Parquet files, one per topic and day, and restore it from them.

    data/topic=orders/date=2026-11-21/00000000001073741824-9f86d081-0.parquet
                                      └ segment            └ of its SHA-256, so that a segment
                                                             that has grown has other names

Memory: rows of ``_CHUNK_SIZE`` bytes and one row group.  Every file is read again and compared with
the log before the manifest names it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
from typing import TYPE_CHECKING, Any, Final, final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hastore.errors import DiskError, DiskFullError, LogDamagedError
from hastore.pipeline.archive.rows import FILE_SCHEMA, RAW_COLUMNS, segment_rows
from hastore.store.archive.file_digest import digest_and_end, file_digest
from hastore.store.archive.manifest import ArchivedFile, ArchivedSegment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.columnar.log_range import LogRange
    from hastore.env.interface import Disk, DiskFile
    from hastore.store.queue.confirmed_records import ConfirmedRecords
    from hastore.store.tools.log_directory import LogDirectory

STAGED_ENTRY: Final = "segment.json"
_CHUNK_SIZE: Final = 64 * 1024 * 1024
_READ_SIZE: Final = 4 * 1024 * 1024
# With more topics and days than writers, each chunk gets files of its own: with 128 writers, 500
# topics in 6 chunks made 3,000 files.  512 cost 30 MB more, and half of a process's descriptors.
_WRITERS_MAX: Final = 512
_NAME_SIZE_MAX: Final = 200
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_BODY_COLUMNS: Final = ("physic_offset", "size", RAW_COLUMNS[0], "body", RAW_COLUMNS[1])
_DICTIONARIES: Final = ["segment", "queue_id", "tags", "flag", "sys_flag", "born_host"]
_STATISTICS: Final = ["physic_offset", "queue_id", "queue_offset", "store_timestamp"]
_UNSAFE: Final = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(32)}


def partition_name(value: str | None) -> str:
    """Return a value escaped for a path as Spark does it, so that Spark reads it back.

    A value too long for a file system is cut and gets a hash; RocketMQ cannot store such a topic.
    """
    if not value:
        return _NO_VALUE
    text = "".join(f"%{ord(char):02X}" if char in _UNSAFE else char for char in value)
    if len(text.encode()) > _NAME_SIZE_MAX:
        digest = hashlib.sha256(value.encode()).hexdigest()[:16]
        text = f"{text.encode()[:100].decode(errors='ignore')}~{digest}"
    return text


def _changed(path: str, position: int) -> DiskError:
    return DiskError(
        f"{path} changed at position {position} while it was archived",
        path=path,
        hint="archive segments that are complete, or a log that no node writes",
    )


@contextlib.contextmanager
def _disk_errors(folder: str) -> Iterator[None]:
    """Turn the OSErrors of pyarrow, which writes files itself, into DiskErrors."""
    try:
        yield
    except OSError as error:
        msg = f"cannot write below {folder}: {str(error).partition(chr(10))[0]}"
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            hint = "free space there, and run it again: archived segments are kept"
            raise DiskFullError(msg, path=folder, hint=hint) from error
        raise DiskError(msg, path=folder, hint="make the archive writable") from error


# -- archive ---------------------------------------------------------------------------------------


def archive_segment(
    disk: Disk,
    log: LogDirectory,
    log_range: LogRange,
    folder: str,
    *,
    confirmed: ConfirmedRecords,
    entry: dict[str, Any],
) -> ArchivedSegment:
    """Write a segment's files below ``folder``, then its manifest entry, and return the entry.

    ``entry`` has the fields of the entry that the caller knows.  Raises DiskError, also if the
    segment changes meanwhile, and LogDamagedError if rows do not cover all of its bytes.
    """
    sha256, end = digest_and_end(disk, log_range.path, log_range.file_size)
    writer = _PartitionedWriter(disk, folder, f"{log_range.segment}-{sha256[:8]}")
    with _disk_errors(folder), contextlib.closing(writer):
        for table in _chunks(segment_rows(disk, log, log_range, confirmed)):
            writer.write(table)
    files = tuple(_finished(disk, folder, path, rows) for path, rows in writer.files.items())
    with contextlib.closing(disk.open_file(log_range.path, writable=False)) as source:
        found = sum(
            _compare(f"{folder}/{file.path}", source, log_range.file_offset) for file in files
        )
        wanted = _count_written(source, end)
    if file_digest(disk, log_range.path, log_range.file_size) != sha256:
        raise _changed(log_range.path, end)
    if found != wanted:  # rows do not overlap, so bytes are missing
        raise LogDamagedError(
            f"{log_range.path} is not archived: its rows have {found} of {wanted} bytes that are"
            " not 0",
            path=log_range.path,
            physic_offset=log_range.file_offset,
            hint="keep the file, and report this with it",
        )
    segment = ArchivedSegment(
        segment=log_range.segment,
        size=log_range.file_size,
        sha256=sha256,
        end=end,
        rows=sum(file.rows for file in files),
        messages=writer.messages,
        damaged=writer.damaged,
        files=files,
        **entry,
    )
    disk.write_file(f"{folder}/{STAGED_ENTRY}", json.dumps(attrs.asdict(segment)).encode())
    return segment


def _chunks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Combine batches into chunks, so that a row group has many rows of a topic."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= _CHUNK_SIZE:
            yield pa.Table.from_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


@final
class _PartitionedWriter:
    """Writes one file per topic and day, with at most ``_WRITERS_MAX`` of them open."""

    def __init__(self, disk: Disk, folder: str, stem: str) -> None:
        self._disk = disk
        self._folder = folder
        self._stem = stem
        self._open: dict[str, tuple[str, pq.ParquetWriter]] = {}  # by directory
        self._numbers: dict[str, int] = {}
        self.files: dict[str, int] = {}  # row count by path
        self.messages = self.damaged = 0

    def write(self, table: pa.Table) -> None:
        self.messages += pc.sum(pc.is_valid(table["body"])).as_py() or 0
        self.damaged += pc.sum(pc.invert(table["record_ok"])).as_py() or 0
        topics = table["topic"].combine_chunks().dictionary_encode(null_encoding="encode")
        dates = table["date"].combine_chunks().dictionary_encode(null_encoding="encode")
        dates_count = len(dates.dictionary)
        codes = topics.indices.to_numpy().astype(np.int64) * dates_count + dates.indices.to_numpy()
        columns = table.select(FILE_SCHEMA.names)
        for code in np.unique(codes):
            topic = topics.dictionary[int(code) // dates_count].as_py()
            date = dates.dictionary[int(code) % dates_count].as_py()
            path = f"data/topic={partition_name(topic)}/date={partition_name(date)}"
            rows = columns.take(pa.array(np.flatnonzero(codes == code)))
            self._append(path, rows)

    def _append(self, path: str, rows: pa.Table) -> None:
        if path not in self._open:
            if len(self._open) >= _WRITERS_MAX:
                self._close(next(iter(self._open)))
            self._disk.make_dirs(f"{self._folder}/{path}")
            number = self._numbers.get(path, 0)
            self._numbers[path] = number + 1
            name = f"{path}/{self._stem}-{number}.parquet"
            self._open[path] = (name, _parquet_writer(f"{self._folder}/{name}"))
        name, writer = self._open.pop(path)
        self._open[path] = (name, writer)  # the least recently used one is closed first
        writer.write_table(rows)
        self.files[name] = self.files.get(name, 0) + rows.num_rows

    def _close(self, path: str) -> None:
        _, writer = self._open.pop(path)
        writer.close()

    def close(self) -> None:
        """Close all files, which completes them."""
        while self._open:
            self._close(next(iter(self._open)))


def _parquet_writer(path: str) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        path,
        FILE_SCHEMA,
        compression="zstd",
        use_dictionary=_DICTIONARIES,
        write_statistics=_STATISTICS,
        store_schema=False,
    )


def _finished(disk: Disk, folder: str, path: str, rows: int) -> ArchivedFile:
    """Sync a file and its directory, and return its entry."""
    whole = f"{folder}/{path}"
    with contextlib.closing(disk.open_file(whole, writable=False)) as file:
        file.sync()
        size = file.size
    disk.sync_dir(whole.rpartition("/")[0])
    return ArchivedFile(path=path, rows=rows, size=size, sha256=file_digest(disk, whole, size))


def _compare(path: str, source: DiskFile, file_offset: int) -> int:
    """Return how many bytes of the rows are not 0.  Raises DiskError if the log has other bytes."""
    nonzero = 0
    for offset, data in file_runs(path):
        position = offset - file_offset
        if source.pread(len(data), position) != data:
            raise _changed(source.path, position)
        nonzero += _count_nonzero(data)
    return nonzero


def _count_written(source: DiskFile, end: int) -> int:
    positions = range(0, end, _READ_SIZE)
    return sum(_count_nonzero(source.pread(min(_READ_SIZE, end - at), at)) for at in positions)


def _count_nonzero(data: bytes) -> int:
    return int(np.count_nonzero(np.frombuffer(data, np.uint8)))


# -- restore ---------------------------------------------------------------------------------------


def file_runs(path: str) -> Iterator[tuple[int, bytes]]:
    """Yield the offset in the log and the bytes of each contiguous run of a Parquet file's rows.

    Raises LogDamagedError if the file cannot be read.
    """
    try:
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                yield from _runs(file.read_row_group(group, columns=list(_BODY_COLUMNS)))
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise LogDamagedError(
            f"{path} cannot be read: {reason}",
            path=path,
            physic_offset=0,
            hint="restore the file from a copy of the archive",
        ) from error


def _runs(rows: pa.Table) -> Iterator[tuple[int, bytes]]:
    if not rows.num_rows:
        return
    empty = pa.scalar(b"", pa.binary())
    parts = [pc.coalesce(rows[name], empty) for name in (RAW_COLUMNS[0], "body", RAW_COLUMNS[1])]
    joined = pc.binary_join_element_wise(*parts, empty)
    done = 0
    for chunk in joined.chunks:
        starts = np.frombuffer(chunk.buffers()[1], np.int32)[chunk.offset :][: len(chunk) + 1]
        data = memoryview(chunk.buffers()[2]) if chunk.buffers()[2] is not None else memoryview(b"")
        offsets = rows["physic_offset"].slice(done, len(chunk)).to_numpy()
        ends = offsets + np.diff(starts)
        firsts = np.flatnonzero(np.append(True, offsets[1:] != ends[:-1]))
        lasts = np.append(firsts[1:], len(chunk))
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            yield int(offsets[first]), bytes(data[starts[first] : starts[last]])
        done += len(chunk)


def restore_segment(disk: Disk, archive: str, segment: ArchivedSegment, path: str) -> None:
    """Write the segment's bytes to a new file at ``path``, durably, and check them.

    The directory must be there: a run that failed may have removed it while this task still works.
    Raises LogDamagedError if a file of the archive is missing or has changed, DiskError.
    """
    for file in segment.files:
        _check_file(disk, archive, file)
    opened = disk.open_sparse_file(path, segment.size, make_dirs=False)
    with contextlib.closing(opened) as target:
        for file in segment.files:
            for offset, data in file_runs(f"{archive}/{file.path}"):
                position = offset - segment.physic_offset
                if not 0 <= position <= segment.size - len(data):
                    raise _rows_differ(archive, segment)
                target.pwrite(data, position)
        target.sync()
    if file_digest(disk, path, segment.size) != segment.sha256:
        raise _rows_differ(archive, segment)


def _check_file(disk: Disk, archive: str, file: ArchivedFile) -> None:
    path = f"{archive}/{file.path}"
    fault = None
    if not disk.exists(path):
        fault = "is missing"
    else:
        with contextlib.closing(disk.open_file(path, writable=False)) as opened:
            size = opened.size
        if size != file.size:
            fault = f"has {size} bytes, not {file.size}"
        elif file_digest(disk, path, size) != file.sha256:
            fault = "has changed: its SHA-256 differs from the manifest's"
    if fault is not None:
        raise LogDamagedError(
            f"{path} {fault}",
            path=path,
            physic_offset=0,
            hint="restore the file from a copy of the archive",
        )


def _rows_differ(archive: str, segment: ArchivedSegment) -> LogDamagedError:
    return LogDamagedError(
        f"{archive}: the rows of segment {segment.segment} differ from its bytes",
        path=archive,
        physic_offset=segment.physic_offset,
        hint="restore the archive from a copy",
    )
