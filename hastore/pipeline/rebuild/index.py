"""Which task writes which index file, and one index file from the keys that are its own.

    keys of the log    0 ………………………………………… 1 … … … … … … … 2 … … …       by number
    buckets            |    |    |    |    |    |    |    |    |           of the log's bytes
    files              |      file 0       |      file 1       | file 2

A file holds a fixed number of keys, so once the keys of each bucket are counted it is known where
each file begins, and every file can be written by itself, of the rows of the buckets that reach
into it.  Of the file before it only the last key counts: a header starts with its time and offset.
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
    """What was counted of one bucket of the log."""

    bucket: int
    keys: int


class FileShare(NamedTuple):
    """A bucket whose keys, or some of them, a file needs; the first of them is ``first_number``."""

    bucket: int
    file_number: int
    name: str
    first_number: int


class KeyChunk(NamedTuple):
    """Keys that follow each other; ``first_number`` is that of its bucket's first key."""

    bucket: int
    first_number: int
    keys: Sequence[tuple[int, int, int]]  # hash, physic_offset, store_ms


@attrs.frozen(kw_only=True)
class IndexPlan:
    """The files, and what goes into each."""

    names: tuple[str, ...]
    shares: tuple[FileShare, ...]
    keys: int


def bucket_size(log_size: int) -> int:
    """Return the bytes of a bucket: so many buckets that a driver can hold their counts."""
    return max(-(-log_size // BUCKETS_MAX), _BUCKET_SIZE_MIN)


def plan_index(
    env: Env,
    layout: IndexLayout,
    counts: Iterable[BucketKeys],
    *,
    has_records: bool,
    ends_without_keys: bool,
) -> IndexPlan:
    """Say which files there will be; ``counts`` in the log's order.

    ``ends_without_keys``: a record follows behind the last one with keys.  It asks for a file
    before anybody looks for its keys, so behind a full file it makes an empty one.
    """
    a_file = layout.entry_count - 1
    firsts: list[tuple[BucketKeys, int]] = []
    total = 0
    for count in counts:
        if count.keys:
            firsts.append((count, total))
            total += count.keys
    file_count = max(-(-total // a_file), 1 if has_records else 0)
    if total and total % a_file == 0 and ends_without_keys:
        file_count += 1
    names = _names(env, file_count)
    shares = []
    for count, first in firsts:
        # Key number n goes into file n // a_file; the one right before a file's first is needed.
        last = first + count.keys - 1
        reaching = range(first // a_file, min((last + 1) // a_file, file_count - 1) + 1)
        shares += [FileShare(count.bucket, number, names[number], first) for number in reaching]
    return IndexPlan(names=names, shares=tuple(shares), keys=total)


def _names(env: Env, count: int) -> tuple[str, ...]:
    """Return names as a node would, each behind the one before."""
    now_ms = env.wall_clock.now_ms()
    names: list[str] = []
    for number in range(count):
        name = env.wall_clock.local_name(now_ms + number)
        if names and name <= names[-1]:  # summer ends right now
            name = f"{int(names[-1]) + 1:0{FILE_NAME_DIGITS}d}"
        names.append(name)
    return tuple(names)


def write_index_file(
    disk: Disk, path: str, layout: IndexLayout, file_number: int, chunks: Iterable[KeyChunk]
) -> IndexFile:
    """Write a file's keys, durably; blocks.  Raises DiskError.

    ``chunks``: all of the file's buckets, in the log's order; what is not the file's is left out.
    """
    a_file = layout.entry_count - 1
    begin, end = file_number * a_file, (file_number + 1) * a_file
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
    """Return as much of the file before as the next one's header starts with."""
    return IndexFile(disk, "", layout, time_ms, time_ms, offset, offset, 0, 1)
