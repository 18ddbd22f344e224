"""All consume queues of a store: ``consumequeue/TOPIC/QUEUE_ID/%020d``.

    put, put, put …       adds units in memory, once a message
    commit                writes them, once a queue and pass, and makes them readable
    dirty_files           returns files for the flush service to sync, in another thread

A queue can always be rebuilt from the log, so no damage to one keeps the store from opening:
unusable files are dropped, named in ``damaged``, and rebuilt when the log is dispatched again from
``rebuild_from``.

A deleted topic's records are still in the log.  ``deleted`` names the topics, and where in the log
each was deleted: a record before that place gets no unit, however often it is dispatched, and units
that it has already are dropped.

Invariants: a unit's index is its record's queue offset; units that a commit could not write are
kept for the next one; at most ``OPEN_FILES_MAX`` files are open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from hastore.errors import DiskError
from hastore.store.queue.consume_queue import ConsumeQueue
from hastore.store.queue.directory import CONSUME_QUEUE_DIR, DELETED_PREFIX, find_queues
from hastore.store.queue.file import ConsumeQueueFiles
from hastore.store.queue.recovery import recover
from hastore.store.queue.unit import UNIT, UNIT_SIZE, file_size_of
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from hastore.env.interface import Disk, DiskFile
    from hastore.store.queue.directory import QueueFiles
    from hastore.store.queue.stale_units import StaleUnit
    from hastore.wire.config_tables import DeletedTopic

# Queue offsets that one put may skip: 20 MB of blanks.  A larger gap is a damaged field.
GAP_UNITS_MAX: Final = 1_000_000
_QUEUE_OFFSET_MAX: Final = 2**62 // UNIT_SIZE
_TOPIC_SIZE_MAX: Final = 255  # bytes of a directory's name
_DAMAGED_MAX: Final = 1_000
_WARNED_MAX: Final = 1_000
_FOREIGN_NAMED_MAX: Final = 5
# Limits of one step of a commit: half a millisecond on an ordinary disk.
FILES_A_STEP: Final = 4  # opened or made
QUEUES_A_STEP: Final = 64
_pack = UNIT.pack

_log = logger("store")


@final
class ConsumeQueueStore:
    """The consume queues in ``data_dir``; ``load``, then ``recover``, then everything else.

    ``path`` is the directory of all queues.
    ``deleted`` has the deletions in force, by topic; ``delete_topics`` sets it.
    ``max_physic_offset`` is the end of the last record up to which all units are committed, 0
    without any.  ``damaged`` names what was dropped or skipped, one line each; ``rebuild_from`` is
    the offset from which the log must be dispatched again to repair that, None if it need not be.
    ``stale_from`` is the lowest offset that a stale unit named, None if there was none: the log was
    cut there or before, and the index was not.
    """

    def __init__(self, disk: Disk, root: str, file_size: int) -> None:
        self.max_physic_offset = 0
        self.damaged: list[str] = []
        self.rebuild_from: int | None = None
        self.stale_from: int | None = None
        self.path = root
        self.deleted: Mapping[str, DeletedTopic] = {}
        self._files = ConsumeQueueFiles(disk, file_size)
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._unusable: dict[ConsumeQueue, QueueFiles] = {}
        self._moved = 0  # directories of deleted topics
        self._undeleted: set[str] = set()  # deleted topics whose queues are still there
        self._trees: dict[str, None] = {}  # moved, and still to be removed
        self._waiting: dict[ConsumeQueue, None] = {}  # with something to write
        self._grown: dict[ConsumeQueue, None] = {}  # in the commit that is under way
        self._written_physic_offset = 0  # max_physic_offset after that commit
        self._warned: set[tuple[str, int]] = set()  # queues whose bad puts were logged
        self._unlogged = 0  # bad puts since the last line
        self._returned_dirs: dict[str, int] = {}  # of dirty_dirs, with their counts of new files

    # -- opening ---------------------------------------------------------------------------------

    @classmethod
    def load(cls, disk: Disk, data_dir: str, file_size: int) -> ConsumeQueueStore:
        """List the queues; no file is opened.

        ``file_size`` is rounded up to whole units.  If all existing files have one other size, that
        is kept: a changed setting must not cost the queues.
        """
        root = f"{data_dir.rstrip('/')}/{CONSUME_QUEUE_DIR}"
        disk.make_dirs(root)
        for directory in disk.list_dir(root):
            if directory.is_dir and directory.name.startswith(DELETED_PREFIX):
                disk.remove_tree(f"{root}/{directory.name}")
        wanted = file_size_of(file_size)
        found = find_queues(disk, root, wanted)
        if found.foreign:
            names = ", ".join(found.foreign[:_FOREIGN_NAMED_MAX])
            _log.warning("foreign_files_ignored", path=root, count=len(found.foreign), names=names)
        if found.file_size != wanted:
            size = found.file_size
            _log.warning(
                "consume_queue_file_size_kept", path=root, file_size=size, configured=wanted
            )
        store = cls(disk, root, found.file_size)
        for entry in found.queues:
            queue = ConsumeQueue(store._files, root, entry.topic, entry.queue_id)
            queue.files.extend(entry.files)
            store._queues[entry.topic, entry.queue_id] = queue
            if entry.unusable:
                store._unusable[queue] = entry
        return store

    def recover(
        self, *, last_exit_ok: bool = False, before_drop: Callable[[], None] = lambda: None
    ) -> None:
        """Find each queue's end, and drop unusable files and units.  Raises DiskError.

        ``last_exit_ok``: trust the files of a clean stop, which is much quicker if they are large.
        ``before_drop`` is called before files are dropped whose units may be of old records.
        """
        for key, queue in list(self._queues.items()):
            entry = self._unusable.pop(queue, None)
            try:
                is_cut = recover(
                    queue, self._files, last_exit_ok=last_exit_ok, before_drop=before_drop
                )
            except DiskError as error:
                if not error.is_unreadable:
                    raise
                before_drop()
                queue.destroy()
                self._record_damage(queue, str(error))
                is_cut = False
            if entry is not None:
                before_drop()
                for name in reversed(entry.unusable):
                    self._files.disk.remove(f"{queue.path}/{name}")
                self._record_damage(queue, entry.reason)
            elif is_cut:
                self._record_damage(queue, "units after its last valid one were dropped")
            if queue.is_empty:
                del self._queues[key]
        self._find_max_physic_offset()

    def _find_max_physic_offset(self) -> None:
        offsets = (queue.max_physic_offset for queue in self._queues.values())
        self.max_physic_offset = self._written_physic_offset = max(offsets, default=0)

    def _record_damage(
        self, queue: ConsumeQueue, what: str, dispatched_to: int | None = None
    ) -> None:
        """Have the log dispatched again from an offset, by default from the end of the queue."""
        if len(self.damaged) < _DAMAGED_MAX:
            self.damaged.append(f"{queue.topic}/{queue.queue_id}: {what}")
        offset = queue.max_physic_offset if dispatched_to is None else dispatched_to
        if self.rebuild_from is None or offset < self.rebuild_from:
            self.rebuild_from = offset
        _log.warning(
            "consume_queue_damaged",
            topic=queue.topic,
            queue_id=queue.queue_id,
            reason=what,
            rebuild_from=offset,
        )

    # -- looking up ------------------------------------------------------------------------------

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue; None if no record was ever put into it."""
        return self._queues.get((topic, queue_id))

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(list(self._queues.values()))

    def __len__(self) -> int:
        return len(self._queues)

    @property
    def file_size(self) -> int:
        """Bytes of each file."""
        return self._files.file_size

    def distrust(self) -> None:
        """Have all units checked when they are read: other bytes were written into the log."""
        for queue in self._queues.values():
            queue.trusted_from = queue.next_offset

    # -- deleted topics --------------------------------------------------------------------------

    def is_deleted(self, topic: str, physic_offset: int) -> bool:
        """Whether the record at an offset belonged to a topic when that was deleted."""
        deletion = self.deleted.get(topic)
        return deletion is not None and physic_offset < deletion.log_offset

    def next_offset_of_deleted(self, topic: str, queue_id: int) -> int:
        """Return where a queue of a deleted topic would continue; 0 for any other."""
        deletion = self.deleted.get(topic)
        return 0 if deletion is None else deletion.next_offsets.get(queue_id, 0)

    def delete_topics(self, deleted: Mapping[str, DeletedTopic]) -> list[str]:
        """Put deletions in force, in place of those before.

        Return directories for ``remove_trees``.  The deletions are durable already; what is done
        here is done again by the next opening, and what a DiskError leaves undone by the next call.
        A topic that was made again meanwhile keeps the queues with new messages, from the first of
        them on; without the others, ``put`` never appends a deleted record's unit.  The flush of
        the queues must pause meanwhile.  Raises DiskError.
        """
        changed = {topic for topic in deleted if self.deleted.get(topic) != deleted[topic]}
        self.deleted = dict(deleted)
        self._undeleted = (self._undeleted | changed) & deleted.keys()
        queues: dict[str, list[ConsumeQueue]] = {topic: [] for topic in self._undeleted}
        for queue in self:
            if queue.topic in queues:
                queues[queue.topic].append(queue)
        for topic, of_topic in queues.items():
            log_offset = deleted[topic].log_offset
            if not any(queue.max_physic_offset > log_offset for queue in of_topic):
                if _is_usable(topic, 0):
                    self._set_aside(f"{self.path}/{topic}", of_topic)
            else:
                for queue in of_topic:
                    if queue.max_physic_offset > log_offset:
                        self._drop_front(queue, log_offset)
                    else:
                        self._set_aside(queue.path, [queue])
            self._undeleted.discard(topic)
        return list(self._trees)

    @property
    def has_undeleted(self) -> bool:
        """Whether files of deleted topics are left, which the next ``delete_topics`` removes."""
        return bool(self._undeleted or self._trees)

    def _set_aside(self, path: str, queues: Iterable[ConsumeQueue]) -> None:
        """Rename a directory, for ``remove_trees``, and forget its queues."""
        disk = self._files.disk
        if disk.exists(path):
            while disk.exists(new_path := f"{self.path}/{DELETED_PREFIX}{self._moved}"):
                self._moved += 1
            disk.rename(path, new_path)
            self._trees[new_path] = None
        for queue in queues:
            queue.abandon()
            self._forget((queue.topic, queue.queue_id), queue)
        self._files.new_dirs.pop(path, None)

    @staticmethod
    def _drop_front(queue: ConsumeQueue, min_physic_offset: int) -> int:
        """Remove a queue's files below an offset, and raise its ``min_offset``; return how many."""
        files = queue.take_expired(min_physic_offset)
        for index, file in enumerate(files):
            try:
                queue.remove_taken(file)
            except BaseException:
                queue.give_back(files[index:])
                raise
        return len(files)

    def remove_trees(self, paths: Iterable[str]) -> None:
        """Remove what ``delete_topics`` has moved; blocks, and may run in any thread."""
        for path in paths:
            self._files.disk.remove_tree(path)
            self._trees.pop(path, None)

    # -- putting ---------------------------------------------------------------------------------

    def put(  # noqa: PLR0917 - it runs once a message, and names cost time
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        physic_offset: int,
        size: int,
        tags_code: int,
    ) -> None:
        """Put one record's unit, in the log's order; putting it again changes nothing."""
        queue = self._queues.get((topic, queue_id))
        end = physic_offset + size
        if (
            queue is not None
            and queue_offset == queue.next_offset
            and end > queue.max_physic_offset
        ):
            tail = queue.tail
            if not tail:
                self._waiting[queue] = None
            tail += _pack(physic_offset, size, tags_code)
            queue.next_offset = queue_offset + 1
            queue.max_physic_offset = end
            return
        self._put_special(topic, queue_id, queue_offset, physic_offset, size, tags_code)

    def put_units(self, topic: str, queue_id: int, queue_offset: int, units: bytes) -> None:
        """Put the units of consecutive queue offsets, as ``put`` would one after another."""
        queue = self._queues.get((topic, queue_id))
        first_offset, first_size, _ = UNIT.unpack_from(units)
        if (
            queue is None
            or queue_offset != queue.next_offset
            or first_offset + first_size <= queue.max_physic_offset
        ):
            for index, unit in enumerate(UNIT.iter_unpack(units)):
                self.put(topic, queue_id, queue_offset + index, *unit)
            return
        if not queue.tail:
            self._waiting[queue] = None
        queue.tail += units
        queue.next_offset += len(units) // UNIT_SIZE
        last_offset, last_size, _ = UNIT.unpack_from(units, len(units) - UNIT_SIZE)
        queue.max_physic_offset = last_offset + last_size

    def restore(  # noqa: PLR0917 - as put
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        physic_offset: int,
        size: int,
        tags_code: int,
    ) -> None:
        """Put the unit of a record that was written into the log in place of other bytes.

        Its index may be blank, or after the queue's end, if the record was the last one.
        """
        queue = self._queues.get((topic, queue_id))
        if self.is_deleted(topic, physic_offset):
            return
        if queue is None or queue.is_empty or queue_offset >= queue.next_offset:
            self.put(topic, queue_id, queue_offset, physic_offset, size, tags_code)
            return
        is_restored = queue.repair(queue_offset, _pack(physic_offset, size, tags_code))
        if is_restored:
            queue.begins_before(queue_offset)
            self._waiting[queue] = None
        elif is_restored is None:
            reason = "another record has this queue offset"
            self._warn(topic, queue_id, queue_offset, physic_offset, reason)

    def _put_special(  # noqa: PLR0917 - as put
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        physic_offset: int,
        size: int,
        tags_code: int,
    ) -> None:
        """Put a queue's first unit, an existing one, or one after a gap."""
        if self.is_deleted(topic, physic_offset):
            return  # a queue that a deletion has left ends behind it, so ``put`` comes here
        end = physic_offset + size
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            if not _is_usable(topic, queue_id) or not 0 <= queue_offset <= _QUEUE_OFFSET_MAX:
                reason = "no queue can have this name"
                self._warn(topic, queue_id, queue_offset, physic_offset, reason)
                return
            queue = ConsumeQueue(self._files, self.path, topic, queue_id)
            self._queues[topic, queue_id] = queue
        unit = _pack(physic_offset, size, tags_code)
        if queue.is_empty and 0 <= queue_offset <= _QUEUE_OFFSET_MAX:
            queue.begin_at(queue_offset)
        elif queue_offset < queue.next_offset:
            is_known = end <= queue.max_physic_offset
            if queue.repair_from <= queue_offset < queue.repair_to:
                is_repaired = queue.repair(queue_offset, unit)
                is_known = is_known or is_repaired is not None
                if is_repaired:
                    self._waiting[queue] = None
            if not is_known:
                reason = "an earlier record has this queue offset"
                self._warn(topic, queue_id, queue_offset, physic_offset, reason)
            return
        elif end <= queue.max_physic_offset:
            return
        elif queue_offset - queue.next_offset > GAP_UNITS_MAX:
            if queue.min_offset == queue.next_offset and queue_offset <= _QUEUE_OFFSET_MAX:
                queue.restart_at(queue_offset)
                self._append(queue, unit, queue_offset, end)
                return
            reason = f"the queue is at {queue.next_offset}, too far away"
            self._warn(topic, queue_id, queue_offset, physic_offset, reason)
            return
        else:
            what = f"no records for queue offsets {queue.next_offset} to {queue_offset - 1}"
            self._record_damage(queue, what)
            queue.fill_to(queue_offset)
        self._append(queue, unit, queue_offset, end)

    def _append(self, queue: ConsumeQueue, unit: bytes, queue_offset: int, end: int) -> None:
        queue.tail += unit
        queue.next_offset = queue_offset + 1
        queue.max_physic_offset = end
        self._waiting[queue] = None

    def _warn(
        self, topic: str, queue_id: int, queue_offset: int, physic_offset: int, reason: str
    ) -> None:
        """Log the first record of each queue that cannot be put, and count the others.

        There may be many, of as many topics as a hostile master likes to name.
        """
        if (topic, queue_id) in self._warned or len(self._warned) >= _WARNED_MAX:
            self._unlogged += 1
            return
        self._warned.add((topic, queue_id))
        more, self._unlogged = self._unlogged, 0
        _log.warning(
            "record_in_no_consume_queue",
            topic=topic,
            queue_id=queue_id,
            queue_offset=queue_offset,
            physic_offset=physic_offset,
            reason=reason,
            **({"more": more} if more else {}),
        )

    def commit(self) -> list[ConsumeQueue]:
        """Write the units that were put and make them readable; return the queues that grew.

        Raises DiskError; then the next commit tries again, the other queues first, and also returns
        the queues that grew in this one.
        """
        grown = None
        while grown is None:
            grown = self.commit_step()
        return grown

    def commit_step(self) -> list[ConsumeQueue] | None:
        """Commit a few queues; return None while others wait, then the result of ``commit``.

        A new queue is two directories and a file, so a thousand of them take a while.
        """
        files = self._files
        opened_max = files.opened + FILES_A_STEP
        queues = list(self._waiting)
        self._waiting = {}
        for index, queue in enumerate(queues):
            if index == QUEUES_A_STEP or files.opened >= opened_max:
                self._waiting = dict.fromkeys(queues[index:])
                return None
            try:
                if queue.write_tail():
                    self._grown[queue] = None
                self._written_physic_offset = max(
                    self._written_physic_offset, queue.max_physic_offset
                )
            except DiskError:
                self._waiting = dict.fromkeys((*queues[index + 1 :], queue))
                raise
        self.max_physic_offset = max(self.max_physic_offset, self._written_physic_offset)
        grown, self._grown = self._grown, {}
        return list(grown)

    # -- cutting ---------------------------------------------------------------------------------

    def cut_stale(self, stale: Sequence[StaleUnit], before_change: Callable[[int], None]) -> None:
        """Cut, durably, stale units at a queue's end; make each with good units after it a blank.

        ``stale`` has each queue's units from its end on, and all are kept elsewhere already.  Their
        indexes may belong to records whose units RocketMQ dropped: ``rebuild_from`` is lowered.  It
        is known in memory only, so ``before_change`` gets the lowest offset that the next start has
        to begin at, too, if this one is killed.
        """
        self.stale_from = min((one.unit.physic_offset for one in stale), default=None)
        by_queue: dict[ConsumeQueue, list[int]] = {}
        for queue, queue_offset, _ in stale:
            by_queue.setdefault(queue, []).append(queue_offset)
        trailing: dict[ConsumeQueue, int] = {}  # how many of the stale units end their queue
        for queue, queue_offsets in by_queue.items():
            end, count = queue.max_offset, 0
            for queue_offset in queue_offsets:
                last = queue.last_unit_below(end, None)
                if last is None or last[0] != queue_offset:
                    break
                end, count = queue_offset, count + 1
            trailing[queue] = count
            before = queue.last_unit_below(queue_offsets[-1], None)
            dispatched_to = 0 if before is None else before[1].physic_offset + before[1].size
            what = f"{len(queue_offsets)} units from queue offset {queue_offsets[-1]} on named no"
            what += f" record of this queue: {count} cut, {len(queue_offsets) - count} made blanks"
            self._record_damage(queue, what, dispatched_to)
        if self.stale_from is None or self.rebuild_from is None:
            return
        before_change(min(self.rebuild_from, self.stale_from))
        for queue, count in trailing.items():
            queue_offsets = by_queue[queue]
            if queue_offsets[count:]:
                queue.blank(queue_offsets[count:])
            if count:
                queue.cut(queue.last_unit_below(queue_offsets[count - 1], None))
            if queue.is_empty:
                self._forget((queue.topic, queue.queue_id), queue)
        self._find_max_physic_offset()

    def truncate(self, physic_offset: int) -> None:
        """Drop, durably, the units of all records that end after ``physic_offset``."""
        for key, queue in list(self._queues.items()):
            if queue.truncate(physic_offset) and queue.is_empty:
                self._forget(key, queue)
        self._find_max_physic_offset()

    def delete_expired(self, min_physic_offset: int) -> int:
        """Remove files whose records all lie below ``min_physic_offset``; return their number.

        It also corrects each queue's ``min_offset``.  Blocks; ``ConsumeQueue.take_expired`` does it
        for one queue, and allows removing in a thread.
        """
        return sum(self._drop_front(queue, min_physic_offset) for queue in self)

    def _forget(self, key: tuple[str, int], queue: ConsumeQueue) -> None:
        del self._queues[key]
        self._waiting.pop(queue, None)
        self._grown.pop(queue, None)

    # -- to the disk -----------------------------------------------------------------------------

    def dirty_files(self, least_pages: int = 0) -> list[DiskFile]:
        """Return at most 128 files to sync; call again, after ``mark_flushed``, until it is empty.

        ``least_pages``: only files with this many dirty pages, and full ones.  They stay open until
        they are passed to ``mark_flushed``.
        """
        return self._files.dirty_files(least_pages)

    def mark_flushed(self, disk_files: Iterable[DiskFile]) -> None:
        """Record that these files were synced after ``dirty_files`` returned them."""
        self._files.mark_flushed(disk_files)

    @property
    def is_flushed(self) -> bool:
        """Whether every unit that was committed is on the disk."""
        return self._files.is_flushed

    def dirty_dirs(self) -> list[str]:
        """Return the directories with new files, which are to be synced too."""
        self._returned_dirs = dict(self._files.new_dirs)
        return list(self._returned_dirs)

    def mark_dirs_flushed(self, paths: Iterable[str]) -> None:
        """Record that these directories were synced after ``dirty_dirs`` returned them.

        A directory that got another file meanwhile stays dirty: the sync may have missed it.
        """
        new_dirs = self._files.new_dirs
        for path in paths:
            if new_dirs.get(path) == self._returned_dirs.get(path):
                new_dirs.pop(path, None)

    def settle(self) -> None:
        """Write and sync all units, for a clean close; blocks.  Raises DiskError."""
        self.commit()
        while files := self.dirty_files():
            for file in files:
                file.sync()
            self.mark_flushed(files)
        dirs = self.dirty_dirs()
        for path in dirs:
            self._files.disk.sync_dir(path)
        self.mark_dirs_flushed(dirs)

    def close(self) -> None:
        """Close all files and drop pending units.

        Only an unclean stop may drop units: after a clean one no record below the end of any queue
        is dispatched again.
        """
        self._files.close()


def _is_usable(topic: str, queue_id: int) -> bool:
    """Whether topic and queue id can name directories, which a terminal may list."""
    if any(char < " " or "\x7f" <= char < "\xa0" for char in topic):
        return False
    if queue_id < 0 or topic in {"", ".", ".."} or "/" in topic or "\0" in topic:
        return False
    return len(topic.encode(errors="surrogateescape")) <= _TOPIC_SIZE_MAX
