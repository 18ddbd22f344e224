"""A Spark sink that writes consume queues and index files, each in one task.

    DIR/rebuild.tmp/parts/3f2a…/consumequeue/TOPIC/QUEUE/…    the files of one attempt at a task
    DIR/rebuild.tmp/parts/3f2a…/index/20261121…
    DIR/rebuild.tmp/parts/queues.json, index.json             the committed attempts of each kind
    DIR/rebuild.tmp/consumequeue, DIR/rebuild.tmp/index       moved here by the driver

Attempts that failed, or were not needed, are not committed, and are removed with the rest.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any, Final, final

import attrs
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from hastore.store.queue.unit import UNIT

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from hastore.env.interface import Disk
    from hastore.store.queue.consume_queue_store import ConsumeQueueStore
    from hastore.store.queue.directory import QueueDirectories

_FORMAT: Final = "hastore_rebuilt"
_COMMIT_SIZE: Final = 1024 * 1024  # bytes of units between two commits
PARTS_DIR: Final = "parts"
QUEUES: Final = "queues"
INDEX: Final = "index"


@attrs.frozen(kw_only=True)
class SinkOptions:
    """What to write, and where."""

    kind: str  # QUEUES or INDEX
    work: str  # DIR/rebuild.tmp
    queue_file_size: int
    index_slots: int
    index_entries: int


def write_rows(rows: DataFrame, options: SinkOptions) -> None:
    """Write each partition's rows, in order, in one task."""
    rows.sparkSession.dataSource.register(RebuildSink)
    text = json.dumps(attrs.asdict(options))
    rows.write.format(_FORMAT).option("sink", text).mode("append").save()


@final
class RebuildSink(DataSource):
    """The sink; only ``write_rows`` uses it."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return _FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002, FBT001 - Spark's signature
        """Return the writer, which Spark pickles into each task."""
        return RebuildWriter(SinkOptions(**json.loads(self.options["sink"])))


@attrs.frozen
class Written(WriterCommitMessage):
    """The result of one attempt at a task."""

    attempt: str  # its unique name
    count: int  # of queues or index files


@final
class RebuildWriter(DataSourceArrowWriter):
    """Writes one task's rows; in the driver, commits the attempts that succeeded."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write queue by queue, or index file by index file."""
        from hastore.env.real import real_env  # noqa: PLC0415 - in the task

        disk = real_env().disk
        attempt = uuid.uuid4().hex
        folder = f"{self.options.work}/{PARTS_DIR}/{attempt}"
        if self.options.kind == QUEUES:
            count = write_queues(disk, folder, self.options.queue_file_size, iterator)
        else:
            count = self._write_index(disk, folder, iterator)
        return Written(attempt, count)

    def _write_index(self, disk: Disk, folder: str, iterator: Iterator[pa.RecordBatch]) -> int:
        from itertools import groupby  # noqa: PLC0415 - see above

        import numpy as np  # noqa: PLC0415

        from hastore.pipeline.rebuild.index import KeyChunk, write_index_file  # noqa: PLC0415
        from hastore.pipeline.rebuild.records import KEY  # noqa: PLC0415
        from hastore.store.index.layout import IndexLayout  # noqa: PLC0415

        layout = IndexLayout(self.options.index_slots, self.options.index_entries)
        count = 0
        rows = (
            row for batch in iterator for row in zip(*_lists(batch, _INDEX_COLUMNS), strict=True)
        )
        for (number, name), of_file in groupby(rows, key=lambda row: (row[0], row[1])):
            disk.make_dirs(f"{folder}/{INDEX}")
            chunks = (
                KeyChunk(bucket, first_number, np.frombuffer(data, KEY).tolist())
                for _, _, bucket, first_number, data in of_file
            )
            write_index_file(disk, f"{folder}/{INDEX}/{name}", layout, number, chunks)
            count += 1
        return count

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Record the attempts that succeeded."""
        from hastore.env.real import real_env  # noqa: PLC0415 - in Spark's own Python process

        attempts = [[m.attempt, m.count] for m in messages if isinstance(m, Written)]
        path = f"{self.options.work}/{PARTS_DIR}/{self.options.kind}.json"
        real_env().disk.make_dirs(path.rpartition("/")[0])
        real_env().disk.write_file(path, json.dumps(attempts).encode())


_INDEX_COLUMNS: Final = (
    "file_number", "name", "bucket", "first_number", "data",
)  # fmt: skip
_QUEUE_COLUMNS: Final = (
    "topic", "queue_id", "queue_offset", "data",
)  # fmt: skip


def _lists(batch: pa.RecordBatch, names: tuple[str, ...]) -> list[list[Any]]:
    return [batch[name].to_pylist() for name in names]


def write_queues(disk: Disk, folder: str, file_size: int, batches: Iterator[pa.RecordBatch]) -> int:
    """Write consume queues below ``folder``, durably, as dispatch would, and return their count.

    Rows are grouped by queue, in the log's order.  Raises DiskError.
    """
    from hastore.store.queue.consume_queue_store import ConsumeQueueStore  # noqa: PLC0415 - see above

    store = ConsumeQueueStore.load(disk, folder, file_size)
    try:
        size = 0
        for batch in batches:
            for topic, queue_id, queue_offset, data in zip(
                *_lists(batch, _QUEUE_COLUMNS), strict=True
            ):
                name = topic.decode(errors="surrogateescape")
                _put_units(store, name, queue_id, queue_offset, data)
                size += len(data)
                if size >= _COMMIT_SIZE:
                    store.commit()
                    size = 0
        store.settle()
        return len(store)
    finally:
        store.close()


def _put_units(
    store: ConsumeQueueStore, topic: str, queue_id: int, queue_offset: int, data: bytes
) -> None:
    """Put units with consecutive queue offsets: one by one, until one is appended to the queue.

    The others can then be appended all at once.
    """
    for position in range(0, len(data), UNIT.size):
        physic_offset, size, tags_code = UNIT.unpack_from(data, position)
        store.put(topic, queue_id, queue_offset, physic_offset, size, tags_code)
        queue_offset += 1
        queue = store.find(topic, queue_id)
        if (
            queue is not None
            and queue.next_offset == queue_offset
            and queue.max_physic_offset == physic_offset + size
        ):
            rest = data[position + UNIT.size :]
            if rest:
                queue.append_units(rest)
            return


def take_parts(disk: Disk, work: str, kind: str) -> int:
    """Move the committed queues or files to their place below ``work``, and return their count.

    Raises DiskError.
    """
    count = 0
    folder = "consumequeue" if kind == QUEUES else INDEX
    attempts = json.loads(disk.read_file(f"{work}/{PARTS_DIR}/{kind}.json"))
    for attempt, of_attempt in attempts:
        count += of_attempt
        part = f"{work}/{PARTS_DIR}/{attempt}/{folder}"
        for entry in disk.list_dir(part):
            if not entry.is_dir:
                disk.rename(f"{part}/{entry.name}", f"{work}/{folder}/{entry.name}")
                continue
            disk.make_dirs(f"{work}/{folder}/{entry.name}")
            for queue in disk.list_dir(f"{part}/{entry.name}"):
                name = f"{entry.name}/{queue.name}"
                disk.rename(f"{part}/{name}", f"{work}/{folder}/{name}")
    return count


def keep_queues(disk: Disk, root: str, new_root: str, found: QueueDirectories) -> int:
    """Copy the queues that were not built, and return their count.  Raises DiskError."""
    from hastore.store.tools.rebuild import copy_queue  # noqa: PLC0415 - in the driver

    kept = 0
    for queue in found.queues:
        if not disk.exists(f"{new_root}/{queue.topic}/{queue.queue_id}"):
            copy_queue(disk, queue, root, new_root, found.file_size)
            kept += 1
    return kept
