"""Where a rebuild's rows are written to: consume queues, and index files, each by one task.

    DIR/rebuild.tmp/parts/3f2a…/consumequeue/TOPIC/QUEUE/…    what one attempt at a task wrote
    DIR/rebuild.tmp/parts/3f2a…/index/20261121…
    DIR/rebuild.tmp/parts/queues.json, index.json             attempts that count, of each sink
    DIR/rebuild.tmp/consumequeue, DIR/rebuild.tmp/index       moved here by the driver

An attempt that failed, or was not needed, is named nowhere and removed with the rest.
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
_COMMIT_SIZE: Final = 1024 * 1024  # of units
PARTS_DIR: Final = "parts"
QUEUES: Final = "queues"
INDEX: Final = "index"


@attrs.frozen(kw_only=True)
class SinkOptions:
    """What is written; ``work``: DIR/rebuild.tmp."""

    kind: str
    work: str
    queue_file_size: int
    index_slots: int
    index_entries: int


def write_rows(rows: DataFrame, options: SinkOptions) -> None:
    """Have rows written by the tasks in which they are, in their order."""
    rows.sparkSession.dataSource.register(RebuildSink)
    text = json.dumps(attrs.asdict(options))
    rows.write.format(_FORMAT).option("sink", text).mode("append").save()


@final
class RebuildSink(DataSource):
    """The sink; used by ``write_rows`` only."""

    @classmethod
    def name(cls) -> str:
        """Return what ``format`` is told."""
        return _FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002, FBT001 - Spark's signature
        """Make the writer that is pickled into each task."""
        return RebuildWriter(SinkOptions(**json.loads(self.options["sink"])))


@attrs.frozen
class Written(WriterCommitMessage):
    """What one attempt at a task has written."""

    attempt: str
    count: int


@final
class RebuildWriter(DataSourceArrowWriter):
    """Writes one task's share, and says in the end whose share counts."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write queue after queue, or index file after index file."""
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
        """Name the attempts that count."""
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
    """Write consume queues below ``folder``, durably, as a node's dispatch would; gives how many.

    Rows come queue by queue, in the log's order.  Raises DiskError.
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
    """Put units whose queue offsets count up: one by one until one is taken at the queue's end.

    The others follow it then, as the next ones would have been taken.
    """
    last_offset, last_size, _ = UNIT.unpack_from(data, len(data) - UNIT.size)
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
                queue.tail += rest
                queue.next_offset += len(rest) // UNIT.size
                queue.max_physic_offset = last_offset + last_size
            return


def take_parts(disk: Disk, work: str, kind: str) -> int:
    """Move what counts to its place below ``work``; gives how many queues or files there are.

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
    """Copy the queues of which nothing was built; gives how many.  Raises DiskError."""
    from hastore.store.tools.rebuild import copy_queue  # noqa: PLC0415 - in the driver

    kept = 0
    for queue in found.queues:
        if not disk.exists(f"{new_root}/{queue.topic}/{queue.queue_id}"):
            copy_queue(disk, queue, root, new_root, found.file_size)
            kept += 1
    return kept
