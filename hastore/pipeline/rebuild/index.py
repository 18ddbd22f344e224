"""Plan which keys go into which index file, and write one index file.

    keys of the log    0 ………………………………………… 1 … … … … … … … 2 … … …       by number
    buckets            |    |    |    |    |    |    |    |    |           of the log's bytes
    files              |      file 0       |      file 1       | file 2

A file holds a fixed number of keys.  So the counts of keys per bucket determine where each file
begins, and one task can write a file from the buckets that overlap it.  It also needs the last key
of the file before, whose time and offset begin its header.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

from hastore.store.index.file import IndexFile
from hastore.store.index.layout import FILE_NAME_DIGITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hastore.env.interface import Disk, Env
    from hastore.store.index.layout import IndexLayout

BUCKETS_MAX: Final = 4096
_BUCKET_SIZE_MIN: Final = 1024 * 1024


class BucketKeys(NamedTuple):
    """The number of keys in one bucket of the log."""

    bucket: int
    keys: int


class FileShare(NamedTuple):
    """A bucket of which a file needs some or all keys."""

    bucket: int
    file_number: int
    name: str  # of the file
    first_number: int  # of the bucket's first key, in the log


class KeyChunk(NamedTuple):
    """Consecutive keys of a bucket."""

    bucket: int
    first_number: int  # of the bucket's first key, in the log
    keys: Sequence[tuple[int, int, int]]  # hash, physic_offset, store_ms


@attrs.frozen(kw_only=True)
class IndexPlan:
    """The index files, and the buckets that each needs."""

    names: tuple[str, ...]  # of the files, in the log's order
    shares: tuple[FileShare, ...]
    keys: int  # in all files


def bucket_size(log_size: int) -> int:
    """Return a bucket's size in bytes, such that a driver can hold the counts of all buckets."""
    return max(-(-log_size // BUCKETS_MAX), _BUCKET_SIZE_MIN)


def plan_index(
    env: Env,
    layout: IndexLayout,
    counts: Iterable[BucketKeys],
    *,
    has_records: bool,
    ends_without_keys: bool,
) -> IndexPlan:
    """Return the files to write; ``counts`` are in the log's order.

    ``ends_without_keys``: a record follows the last one with keys.  As on a node, it opens a file
    before its keys are read, so after a full file it makes an empty one.
    """
    keys_per_file = layout.entry_count - 1
    firsts: list[tuple[BucketKeys, int]] = []
    total = 0
    for count in counts:
        if count.keys:
            firsts.append((count, total))
            total += count.keys
    file_count = max(-(-total // keys_per_file), 1 if has_records else 0)
    if total and total % keys_per_file == 0 and ends_without_keys:
        file_count += 1
    names = _names(env, file_count)
    shares = []
    for count, first in firsts:
        # Key n goes into file n // keys_per_file.  A file also needs the key before its first.
        last = first + count.keys - 1
        last_file = min((last + 1) // keys_per_file, file_count - 1)
        files = range(first // keys_per_file, last_file + 1)
        shares += [FileShare(count.bucket, number, names[number], first) for number in files]
    return IndexPlan(names=names, shares=tuple(shares), keys=total)


def _names(env: Env, count: int) -> tuple[str, ...]:
    """Return names as a node would choose them, in ascending order."""
    now_ms = env.wall_clock.now_ms()
    names: list[str] = []
    for number in range(count):
        name = env.wall_clock.local_name(now_ms + number)
        if names and name <= names[-1]:  # summer time ends right now
            name = f"{int(names[-1]) + 1:0{FILE_NAME_DIGITS}d}"
        names.append(name)
    return tuple(names)


def write_index_file(
    disk: Disk, path: str, layout: IndexLayout, file_number: int, chunks: Iterable[KeyChunk]
) -> IndexFile:
    """Write a file's keys, durably; blocks.  Raises DiskError.

    ``chunks`` are all of the file's buckets, in the log's order; keys of other files are skipped.
    """
    keys_per_file = layout.entry_count - 1
    begin, end = file_number * keys_per_file, (file_number + 1) * keys_per_file
    file: IndexFile | None = None
    before: IndexFile | None = None
    bucket, number = -1, 0
    for chunk in chunks:
        if chunk.bucket != bucket:
            bucket, number = chunk.bucket, chunk.first_number
        if number <= begin - 1 < number + len(chunk.keys):
            _, physic_offset, store_ms = chunk.keys[begin - 1 - number]
            before = _ending_at(disk, layout, physic_offset, store_ms)
        own = chunk.keys[max(begin - number, 0) : max(end - number, 0)]
        number += len(chunk.keys)
        if own:
            file = file or IndexFile.new(disk, path, layout, before)
            for key_hash, physic_offset, store_ms in own:
                file.put(key_hash, physic_offset, store_ms)
            file.commit()
    file = file or IndexFile.new(disk, path, layout, before)
    try:
        flush = file.begin_flush(first_mark=None, mark=None)
        flush.sync()
        file.end_flush(flush)
    finally:
        file.close()
    return file


def _ending_at(disk: Disk, layout: IndexLayout, offset: int, time_ms: int) -> IndexFile:
    """Return a stand-in for the file before, with the fields that the next header starts from."""
    return IndexFile(
        disk=disk,
        path="",
        layout=layout,
        begin_timestamp_ms=time_ms,
        end_timestamp_ms=time_ms,
        begin_physic_offset=offset,
        end_physic_offset=offset,
        used_slots=0,
        index_count=1,
    )
