"""What a store directory may hold, and which files of ``commitlog/`` are the log.

    DIR/commitlog/%020d  files of one size, named by their start offset, without a gap
    DIR/lock, DIR/abort  see store_lock
    DIR/trimmed/         bytes cut off the log
    DIR/cut.json         see recovery/log_cut
    DIR/…                the rest of a RocketMQ store

Read-only.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import attrs

from hastore.config import (
    DEFAULT_MAPPED_FILE_SIZE,
    MAPPED_FILE_SIZE_MAX,
    MAPPED_FILE_SIZE_MIN,
)
from hastore.errors import FileSizeMismatchError, LogDamagedError, NotAStoreError
from hastore.store.log.mapped_file_queue import file_name, is_file_name

if TYPE_CHECKING:
    from hastore.env.interface import Disk, FileStat

COMMIT_LOG_DIR: Final = "commitlog"
CUT_FILE: Final = "cut.json"  # exists while a cut of the log is not finished
TRIMMED_DIR: Final = "trimmed"
DELAY_OFFSET_FILE: Final = "config/delayOffset.json"
TOPICS_FILE: Final = "config/topics.json"
# RocketMQ's tables, which operators edit and tools write, and the objects in them.
TABLE_FILES: Final = {
    TOPICS_FILE: ("topicConfigTable", "deletedTopics"),
    "config/subscriptionGroup.json": ("subscriptionGroupTable", "deletedGroups"),
    "config/consumerOffset.json": ("offsetTable", "masterOffsetTable"),
    DELAY_OFFSET_FILE: ("offsetTable",),
}
CLOCK_FILE: Final = "config/clock.json"  # when the wall clock was trusted last
TLS_PEERS_FILE: Final = "config/tlsPeers.json"  # which client ports have completed a TLS handshake
# Entries of a store without a commitlog/: hastore's, RocketMQ's, and lost+found.
_STORE_ENTRIES: Final = frozenset(
    {
        "abort",
        "batchconsumequeue",
        "checkpoint",
        "compaction",
        "config",
        "consumequeue",
        "consumequeue_ext",
        CUT_FILE,
        "epochFileCheckpoint",
        "identity.json",
        "index",
        "lock",
        "lost+found",
        "node.json",
        "refused_slaves.json",
        "reserve",
        "timerlog",
        "timerwheel",
        TRIMMED_DIR,
    }
)


@attrs.frozen(kw_only=True)
class LogFiles:
    """The start offsets of a log's files, and the other names among them.

    ``unfinished`` is a last file whose creation was interrupted: it has no bytes of the log.
    ``empty_offset`` is where a log without files begins and ends.
    """

    offsets: tuple[int, ...]
    file_size: int
    unfinished: FileStat | None
    foreign: tuple[str, ...]
    empty_offset: int = 0

    def kept_empty(self) -> LogFiles:
        """Return the same, with the offset that an unfinished file names if it is the only one."""
        offset = 0 if self.unfinished is None else int(self.unfinished.name)
        is_start = not self.offsets and offset % self.file_size == 0
        return attrs.evolve(self, empty_offset=offset) if is_start else self


def check_is_store(disk: Disk, data_dir: str) -> None:
    """Raise NotAStoreError if a directory holds anything but a store."""
    entries = disk.list_dir(data_dir)
    if any(entry.name == COMMIT_LOG_DIR for entry in entries):
        return
    for entry in entries:
        name = entry.name.removesuffix(".tmp").removesuffix(".bak").removesuffix(".torn")
        if name not in _STORE_ENTRIES:
            raise NotAStoreError(
                f"{data_dir} is not empty and is not a store:"
                f" it holds {entry.name!r} but no commitlog/",
                path=data_dir,
                hint="use an empty or new directory, or one that a store wrote",
            )


def find_log_files(disk: Disk, data_dir: str, file_size_wanted: int | None) -> LogFiles:
    """List the log's files, checking names, sizes and order.

    Raises FileSizeMismatchError if sizes differ, LogDamagedError if a file is missing,
    NotAStoreError if ``commitlog/`` holds only other things.
    """
    path = f"{data_dir}/{COMMIT_LOG_DIR}"
    files, foreign = [], []
    for entry in disk.list_dir(path):
        if entry.is_dir:
            if entry.name != "lost+found":
                foreign.append(f"{entry.name}/")
        elif is_file_name(entry.name):
            files.append(entry)
        else:
            foreign.append(entry.name)
    if foreign and not files:
        raise NotAStoreError(
            f"{path} holds {foreign[0]!r} and no log file", path=path, hint="use another directory"
        )
    unfinished = _pop_unfinished(disk, path, files, file_size_wanted or DEFAULT_MAPPED_FILE_SIZE)
    file_size = _check_sizes(path, files, file_size_wanted)
    offsets = tuple(int(entry.name) for entry in files)
    _check_contiguous(path, offsets, file_size)
    return LogFiles(
        offsets=offsets, file_size=file_size, unfinished=unfinished, foreign=tuple(foreign)
    )


def _pop_unfinished(
    disk: Disk, path: str, files: list[FileStat], first_size: int
) -> FileStat | None:
    """Take the last file out if it is empty, or shorter than the others and all zeros.

    A crash while a file is made leaves one like that: its size grows as blocks are allocated.  A
    single file of zeros must have ``first_size``, else the store would keep its odd size for good.
    """
    if not files:
        return None
    last = files[-1]
    if last.size == 0:
        return files.pop()
    if len(files) > 1:
        is_whole = last.size >= files[-2].size
    else:
        is_whole = last.size == first_size or int(last.name) % first_size != 0
    if is_whole:
        return None
    with contextlib.closing(disk.open_file(f"{path}/{last.name}", writable=False)) as disk_file:
        position = 0
        while (position := disk_file.next_data(position)) < last.size:
            data = disk_file.pread(min(1024 * 1024, last.size - position), position)
            if not data or data.count(0) != len(data):
                return None
            position += len(data)
    return files.pop()


def _check_sizes(path: str, files: list[FileStat], file_size_wanted: int | None) -> int:
    if not files:
        return file_size_wanted or DEFAULT_MAPPED_FILE_SIZE
    file_size = files[0].size
    for entry in files:
        if entry.size != file_size:
            raise FileSizeMismatchError(
                f"{path}/{entry.name} has {entry.size} bytes, {files[0].name} has {file_size}:"
                f" all files of a log have one size",
                path=f"{path}/{entry.name}",
                size_found=entry.size,
                size_wanted=file_size,
                hint=f"hastore log info {path.removesuffix('/' + COMMIT_LOG_DIR)}",
            )
    if not MAPPED_FILE_SIZE_MIN <= file_size <= MAPPED_FILE_SIZE_MAX:
        raise NotAStoreError(
            f"{path}/{files[0].name} has {file_size} bytes; a log's files have"
            f" {MAPPED_FILE_SIZE_MIN} to {MAPPED_FILE_SIZE_MAX}",
            path=f"{path}/{files[0].name}",
            hint="use another directory",
        )
    if file_size_wanted is not None and file_size_wanted != file_size:
        raise FileSizeMismatchError(
            f"the files in {path} have {file_size} bytes, {file_size_wanted} were asked for",
            path=path,
            size_found=file_size,
            size_wanted=file_size_wanted,
            hint=f"leave out --mapped-file-size, or say {file_size}",
        )
    return file_size


def _check_contiguous(path: str, offsets: tuple[int, ...], file_size: int) -> None:
    data_dir = path.removesuffix(f"/{COMMIT_LOG_DIR}")
    for index, offset in enumerate(offsets):
        expected = offsets[0] + index * file_size
        if offset != expected:
            raise LogDamagedError(
                f"{path} has a gap: {file_name(offset)} follows"
                f" {file_name(offsets[index - 1])}, {file_name(expected)} is missing",
                path=path,
                physic_offset=expected,
                hint=f"put the file back, or: hastore log repair {data_dir} --from-replica DIR",
            )
    if offsets and offsets[0] % file_size:
        raise LogDamagedError(
            f"{path}/{file_name(offsets[0])} does not start at a multiple of"
            f" the file size {file_size}",
            path=path,
            physic_offset=offsets[0],
            hint=f"hastore log verify {data_dir}",
        )
