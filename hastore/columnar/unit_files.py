"""Consume queues as Arrow columns: a row for each unit that was written, blanks included."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import attrs
import numpy as np
import pyarrow as pa

from hastore.store.log.mapped_file_queue import file_name
from hastore.store.queue.directory import CONSUME_QUEUE_DIR, find_queues
from hastore.store.queue.unit import UNIT_FIELDS, UNIT_SIZE, file_size_of
from hastore.store.tools.log_finding import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hastore.env.interface import Disk

    Array = NDArray[Any]

UNITS: Final = pa.schema(
    [
        ("store", pa.string()),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("unit_offset", pa.int64()),
        ("unit_size", pa.int32()),
        ("unit_tags_code", pa.int64()),
    ]
)
UNIT_TYPE: Final = np.dtype([(name, f">{code}") for name, code in UNIT_FIELDS])
_READ_SIZE: Final = 200_000 * UNIT_SIZE


@attrs.frozen(kw_only=True)
class UnitFile:
    """One file of one queue; ``start`` is the position of its first byte in the queue."""

    store: str
    path: str
    topic: str
    queue_id: int
    start: int
    size: int


@attrs.frozen(kw_only=True)
class UnitFiles:
    """A store's unit files, and findings about unusable ones; ``is_there``: has consumequeue/."""

    is_there: bool
    queue_count: int
    files: tuple[UnitFile, ...]
    findings: tuple[Finding, ...]


def find_unit_files(disk: Disk, store: str, root: str, size_wanted: int) -> UnitFiles:
    """List a store's unit files; ``size_wanted`` is the configured size.  Raises DiskError."""
    path = f"{root}/{CONSUME_QUEUE_DIR}"
    found = find_queues(disk, path, file_size_of(size_wanted))
    files = tuple(
        UnitFile(
            store=store,
            path=f"{path}/{queue.topic}/{queue.queue_id}/{file_name(file.start)}",
            topic=queue.topic,
            queue_id=queue.queue_id,
            start=file.start,
            size=found.file_size,
        )
        for queue in found.queues
        for file in queue.files
    )
    findings = tuple(
        Finding(
            severity=Severity.DAMAGE,
            kind="queue-files",
            physic_offset=0,
            next_offset=0,
            detail=f"{queue.topic}/{queue.queue_id}: {queue.reason}; a start drops it"
            " and builds it again",
            topic=queue.topic,
            queue_id=queue.queue_id,
        )
        for queue in found.queues
        if queue.unusable
    )
    return UnitFiles(
        is_there=disk.exists(path),
        queue_count=len(found.queues),
        files=files,
        findings=findings,
    )


def read_units(disk: Disk, file: UnitFile) -> Iterator[pa.RecordBatch]:
    """Yield the units of a file.  Raises DiskError."""
    with contextlib.closing(disk.open_file(file.path, writable=False)) as disk_file:
        position = 0
        while position < file.size:
            position = disk_file.next_data(position)
            position -= position % UNIT_SIZE  # a hole ends where a page begins
            data = disk_file.pread(min(_READ_SIZE, file.size - position), position)
            units = np.frombuffer(data, UNIT_TYPE, len(data) // UNIT_SIZE)
            if not len(units):
                return
            written = np.flatnonzero((units["size"] > 0) & (units["physic_offset"] >= 0))
            if len(written):
                yield _batch(file, (file.start + position) // UNIT_SIZE + written, units[written])
            position += len(units) * UNIT_SIZE


def _batch(file: UnitFile, numbers: Array, units: Array) -> pa.RecordBatch:
    count = len(units)
    topic = file.topic.encode(errors="surrogateescape").decode(errors="replace")
    arrays = [
        pa.repeat(pa.scalar(file.store), count),
        pa.repeat(pa.scalar(topic), count),
        pa.repeat(pa.scalar(file.queue_id, pa.int32()), count),
        pa.array(numbers, pa.int64()),
        pa.array(units["physic_offset"].astype(np.int64)),
        pa.array(units["size"].astype(np.int32)),
        pa.array(units["tags_code"].astype(np.int64)),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=UNITS)
