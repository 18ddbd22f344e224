"""Lists ``consumequeue/``: which files belong to queues and can be used.  Read-only.

    consumequeue/TOPIC/QUEUE_ID/%020d    one size, without a gap; the front may be gone
    consumequeue/.deleted-N/QUEUE_ID/…   a deleted topic's queues, which are being removed

Other names are ignored; a node's store logs them.  A file of another size, or one after a gap,
cannot be used, nor can the files after it.  An empty last file is ignored: a crash came before its
size was set.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Final

import attrs

from hastore.store.log.mapped_file_queue import is_file_name
from hastore.store.queue.file import ConsumeQueueFile
from hastore.store.queue.unit import UNIT_SIZE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.env.interface import Disk, FileStat

CONSUME_QUEUE_DIR: Final = "consumequeue"
DELETED_PREFIX: Final = ".deleted-"
_QUEUE_ID_MAX: Final = 2**31 - 1


@attrs.frozen(kw_only=True)
class QueueFiles:
    """One queue's directory: its usable files, the names of ``unusable`` ones, and the reason."""

    topic: str
    queue_id: int
    files: tuple[ConsumeQueueFile, ...]
    unusable: tuple[str, ...]
    reason: str


@attrs.frozen(kw_only=True)
class QueueDirectories:
    """All queues that have a file, the size of their files, and the names that are ignored."""

    queues: tuple[QueueFiles, ...]
    file_size: int
    foreign: tuple[str, ...]


def find_queues(disk: Disk, root: str, file_size_wanted: int | None) -> QueueDirectories:
    """List all queues.  Raises DiskError if a directory cannot be read.

    ``file_size_wanted`` is the configured size; None if no configuration is known.
    """
    foreign: list[str] = []
    found: list[tuple[str, int, list[FileStat]]] = []
    for topic in disk.list_dir(root):
        if topic.name.startswith(DELETED_PREFIX):
            continue
        if not topic.is_dir or topic.name == "lost+found":
            foreign.append(topic.name)
            continue
        for queue in disk.list_dir(f"{root}/{topic.name}"):
            if not queue.is_dir or not _is_queue_id(queue.name):
                foreign.append(f"{topic.name}/{queue.name}")
                continue
            files = []
            for entry in disk.list_dir(f"{root}/{topic.name}/{queue.name}"):
                if entry.is_dir or not is_file_name(entry.name):
                    foreign.append(f"{topic.name}/{queue.name}/{entry.name}")
                else:
                    files.append(entry)
            if files and not files[-1].size:
                files.pop()
            if files:
                found.append((topic.name, int(queue.name), files))
    file_size = _file_size([files for _, _, files in found], file_size_wanted)
    queues = tuple(_validate(topic, queue_id, files, file_size) for topic, queue_id, files in found)
    return QueueDirectories(queues=queues, file_size=file_size, foreign=tuple(foreign))


def _is_queue_id(name: str) -> bool:
    is_number = name.isascii() and name.isdecimal() and len(name) <= len(str(_QUEUE_ID_MAX))
    return is_number and str(int(name)) == name and int(name) <= _QUEUE_ID_MAX


def _file_size(queues: Sequence[Sequence[FileStat]], wanted: int | None) -> int:
    """Return the wanted size, unless no file has it and most have another valid one."""
    sizes = collections.Counter(file.size for files in queues for file in files)
    if wanted is None:
        wanted = UNIT_SIZE
    elif sizes[wanted]:
        return wanted
    if not sizes:
        return wanted
    size = sizes.most_common(1)[0][0]
    starts = [int(file.name) for files in queues for file in files if file.size == size]
    if size % UNIT_SIZE or any(start % size for start in starts):
        return wanted
    return size


def _validate(topic: str, queue_id: int, files: list[FileStat], file_size: int) -> QueueFiles:
    usable: list[ConsumeQueueFile] = []
    reason = ""
    for file in files:
        start = int(file.name)
        if file.size != file_size:
            reason = f"file {file.name} has {file.size} bytes, not {file_size}"
        elif start % file_size:
            reason = f"file {file.name} does not start at a multiple of {file_size}"
        elif usable and start != usable[-1].start + file_size:
            reason = f"a file is missing before {file.name}"
        if reason:
            break
        usable.append(ConsumeQueueFile(start, is_made=True))
    return QueueFiles(
        topic=topic,
        queue_id=queue_id,
        files=tuple(usable),
        unusable=tuple(file.name for file in files[len(usable) :]),
        reason=reason,
    )
