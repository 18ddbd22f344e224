"""Summarises a log directory by a quick walk that checks lengths and offsets, but no checksum."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

import attrs

from hastore.store.record.record_check import RecordKind
from hastore.store.store_lock import ABORT_FILE
from hastore.store.tools.log_walker import LogWalker

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.env.interface import Disk
    from hastore.store.tools.log_directory import LogDirectory, LogFile


@attrs.frozen(kw_only=True)
class FileInfo:
    """One file of ``size`` bytes; the first ``used`` bytes hold records."""

    name: str
    physic_offset: int
    size: int
    used: int
    messages: int


@attrs.frozen(kw_only=True)
class TopicInfo:
    """One topic; ``size`` is the bytes of its records."""

    name: str
    messages: int
    queues: int
    size: int


@attrs.frozen(kw_only=True)
class LogInfo:
    """A summary; ``abort`` is whether that file exists, None without a store around the log."""

    path: str
    files: tuple[FileInfo, ...]
    mapped_file_size: int | None
    min_offset: int
    max_offset: int
    size: int
    messages: int
    uncovered_messages: int
    first_store_timestamp_ms: int | None
    last_store_timestamp_ms: int | None
    topics: tuple[TopicInfo, ...]
    damaged_places: int
    abort: bool | None
    strays: tuple[str, ...]


def read_info(
    disk: Disk, log: LogDirectory, *, on_progress: Callable[[int], None] | None = None
) -> LogInfo:
    """Walk over the log once.  Raises DiskError if it cannot be read."""
    walker = LogWalker(disk, log, check_crc=False, scan_zeros=False, on_progress=on_progress)
    messages_of: collections.Counter[tuple[bytes, int]] = collections.Counter()
    size_of: collections.Counter[bytes] = collections.Counter()
    message_offsets: collections.Counter[int] = collections.Counter()
    uncovered = damaged = 0
    first_ms = last_ms = None
    files = iter(log.files)
    file: LogFile | None = next(files, None)
    for offset, check in walker.walk():
        while file is not None and offset >= file.next_offset:
            file = next(files, None)
        if check.kind is not RecordKind.MESSAGE:
            damaged += check.kind is not RecordKind.BLANK
            continue
        if file is not None:
            message_offsets[file.physic_offset] += 1
        messages_of[check.topic, check.queue_id] += 1
        size_of[check.topic] += check.size
        uncovered += not check.has_prop_crc
        if first_ms is None:
            first_ms = check.store_timestamp_ms
        last_ms = check.store_timestamp_ms
    return LogInfo(
        path=log.path,
        files=tuple(
            FileInfo(
                name=file.name,
                physic_offset=file.physic_offset,
                size=file.size,
                used=max(0, min(file.size, walker.end_offset - file.physic_offset)),
                messages=message_offsets[file.physic_offset],
            )
            for file in log.files
        ),
        mapped_file_size=log.mapped_file_size,
        min_offset=log.min_offset,
        max_offset=walker.end_offset,
        size=log.size,
        messages=messages_of.total(),
        uncovered_messages=uncovered,
        first_store_timestamp_ms=first_ms,
        last_store_timestamp_ms=last_ms,
        topics=_topic_infos(messages_of, size_of),
        damaged_places=damaged,
        abort=None if log.root is None else disk.exists(f"{log.root}/{ABORT_FILE}"),
        strays=log.strays,
    )


def _topic_infos(
    messages_of: collections.Counter[tuple[bytes, int]], size_of: collections.Counter[bytes]
) -> tuple[TopicInfo, ...]:
    """Sum up the queues of each topic, in the order of their names."""
    queues: collections.defaultdict[bytes, list[int]] = collections.defaultdict(list)
    for (topic, _), messages in messages_of.items():
        queues[topic].append(messages)
    return tuple(
        TopicInfo(
            name=topic.decode(errors="surrogateescape"),
            messages=sum(counts),
            queues=len(counts),
            size=size_of[topic],
        )
        for topic, counts in sorted(queues.items())
    )
