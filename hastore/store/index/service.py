"""The index: which records carry a key, over all index files of a store.

    index/20231114221320000   full       index/20231114231500123   growing
          └ named by the local time when it was made; later names sort after earlier ones

    put ──► memory ── commit ──► file ── dirty_files, sync, mark_flushed ──► disk ── mark

``put`` touches no disk; ``commit`` writes the pass's entries by one call; a flush, in another
thread, writes slots and header and syncs.  Then the mark (``layout``) moves with the next commit
and reaches the disk with the next flush: a crash loses what was put since, and ``redispatch_from``
names the record from which to put again.  Putting a record again adds no key twice.  A clean
``close`` removes the mark: then the files are RocketMQ's, byte for byte.

Invariants: files before the last are full; a query sees committed entries only.
Source: RocketMQ ``IndexService``.
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Protocol, final

import attrs

from hastore.errors import DiskError
from hastore.store.index.file import IndexFile, IndexFlush
from hastore.store.index.layout import (
    FILE_NAME_DIGITS,
    PACKED_KEY,
    IndexLayout,
    key_hash,
    topic_hash,
)
from hastore.store.index.marks import IndexMarks
from hastore.store.index.recovery import (
    IndexCut,
    cut_back,
    find_cut,
    find_offset,
    last_record,
    open_index_files,
)
from hastore.store.index.search import IndexSearch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hastore.config import StoreConfig
    from hastore.env.interface import Env

INDEX_DIR: Final = "index"
_TOPICS_MAX: Final = 10_000


class IndexCheckpoint(Protocol):
    """The part of a StoreCheckpoint that the index needs."""

    index_msg_timestamp: int

    def flush(self) -> None:
        """Write it to disk."""


@final
@attrs.define(eq=False)
class IndexService:
    """The index files of one store, oldest first."""

    env: Env
    path: str
    layout: IndexLayout
    checkpoint: IndexCheckpoint
    files: list[IndexFile]
    _redispatch_from: int | None = None
    search: IndexSearch = attrs.field(init=False)
    _first_offset: int | None = attrs.field(default=None, init=False)  # first record seen, if any
    _seen_offset: int = attrs.field(default=-1, init=False)  # last record seen; all before were put
    _last_offset: int = attrs.field(default=-1, init=False)  # record of the newest entry
    _last_keys: int = attrs.field(default=0, init=False)  # entries of that record
    _uncommitted: list[IndexFile] = attrs.field(factory=list, init=False)
    _marks: IndexMarks = attrs.field(init=False)
    _topic_hashes: dict[str, int] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        """Share the list of files with search and marks."""
        self.search = IndexSearch(self.env.disk, self.files)
        self._marks = IndexMarks(self.files)

    @classmethod
    def load(
        cls,
        env: Env,
        data_dir: str,
        config: StoreConfig,
        checkpoint: IndexCheckpoint,
        *,
        last_exit_ok: bool,
        stale_from: int | None = None,
    ) -> IndexService:
        """Open the index of a store, and cut off what may not be on disk or is stale; blocks.

        ``stale_from`` is ``find_cut``'s.
        No file is made until the first record is seen.  Raises DiskError.
        """
        path = f"{data_dir}/{INDEX_DIR}"
        layout = IndexLayout(config.max_hash_slot_num, config.max_index_num)
        files = open_index_files(env.disk, path, layout, last_exit_ok=last_exit_ok)
        service = cls(env, path, layout, checkpoint, files)
        try:
            if not files and not last_exit_ok:
                service._redispatch_from = 0
            cut = find_cut(
                files,
                checkpoint.index_msg_timestamp,
                last_exit_ok=last_exit_ok,
                stale_from=stale_from,
            )
            if cut is not None:
                cut = cut_back(env.disk, files, cut)
                service._redispatch_from = cut.seen_offset
            service._begin(cut)
        except BaseException:
            service._close_files()
            raise
        return service

    def redispatch_from(self) -> int | None:
        """Return the offset from which all records must be put again; None if none must be.

        It may be below the log's first record, if the log's front was deleted since.
        """
        return self._redispatch_from

    @property
    def end_physic_offset(self) -> int:
        """The newest indexed record's offset, 0 if there is none."""
        return self.files[-1].end_physic_offset if self.files else 0

    def truncate(self, end_offset: int) -> None:
        """Remove records from ``end_offset`` on, which a recovered log no longer has.

        Called right after ``load``, before any put; blocks.
        """
        cut = find_offset(self.files, end_offset)
        if cut is None and self.files:
            mark = self.files[-1].mark
            if mark is not None and mark.seen_offset > end_offset:
                cut = IndexCut(len(self.files) - 1, mark.index_count, end_offset)
        if cut is not None:
            done = cut_back(self.env.disk, self.files, cut)
            self._begin(done)
            if done != cut and self._redispatch_from is None:
                self._redispatch_from = done.seen_offset
            end_offset = min(end_offset, done.seen_offset) if done != cut else end_offset
        if self._redispatch_from is not None:
            self._redispatch_from = min(self._redispatch_from, end_offset)
        self._seen_offset = min(self._seen_offset, end_offset)

    def _begin(self, cut: IndexCut | None) -> None:
        """Set where putting continues."""
        self._last_offset, self._last_keys = last_record(self.files)
        self._seen_offset = self._last_offset if cut is None else cut.seen_offset
        if not self.files:
            return
        file = self.files[-1]
        if not file.is_full:
            file.start_filling()
        self._marks.reopen(file, max(self._seen_offset, 0))

    # -- putting ---------------------------------------------------------------------------------

    def put(
        self, topic: str, keys: Sequence[str], physic_offset: int, store_timestamp_ms: int
    ) -> None:
        """Put the keys of one record: UNIQ_KEY, then the parts of KEYS, none of them empty.

        Records come in the log's order.  Keys that the index already has are skipped.
        """
        keys = keys[self._known_keys(physic_offset, len(keys)) :]
        hash_of_topic = self._topic_hashes.get(topic)
        if hash_of_topic is None:
            hash_of_topic = self._hash_topic(topic)
        file = self.files[-1] if self.files else self._add_file()
        for key in keys:
            if file.index_count >= file.layout.entry_count:
                file = self._add_file()
            file.put(key_hash(hash_of_topic, key), physic_offset, store_timestamp_ms)

    def put_keys(self, keys: bytes) -> None:
        """Put keys that are hashed and packed already (``PACKED_KEY``), in the log's order.

        All keys of a record come in one call; those that the index already has are skipped.
        """
        if not keys:
            return
        if PACKED_KEY.unpack_from(keys)[1] > self._last_offset:
            size = PACKED_KEY.size
            self._last_offset = PACKED_KEY.unpack_from(keys, len(keys) - size)[1]
            self._last_keys = 1
            for at in range(len(keys) - 2 * size, -1, -size):
                if PACKED_KEY.unpack_from(keys, at)[1] != self._last_offset:
                    break
                self._last_keys += 1
            self._fill(keys)
            return
        new = bytearray()
        for offset, group in groupby(PACKED_KEY.iter_unpack(keys), key=itemgetter(1)):
            of_record = list(group)
            for key in of_record[self._known_keys(offset, len(of_record)) :]:
                new += PACKED_KEY.pack(*key)
        self._fill(bytes(new))

    def _known_keys(self, physic_offset: int, count: int) -> int:
        """Return how many of a record's keys the index has; count the others as put."""
        if physic_offset < self._last_offset:
            return count
        known = self._last_keys if physic_offset == self._last_offset else 0
        self._last_offset = physic_offset
        self._last_keys = max(known, count)
        return known

    def _fill(self, keys: bytes) -> None:
        """Put packed keys into the newest file, and into new ones after it."""
        file = self.files[-1] if self.files else self._add_file()
        while keys:
            if file.is_full:
                file = self._add_file()
            size = (file.layout.entry_count - file.index_count) * PACKED_KEY.size
            file.put_keys(keys[:size])
            keys = keys[size:]

    def record_seen(self, first_offset: int, last_offset: int) -> None:
        """Record that all records up to ``last_offset`` were put or have no key.

        Called after their puts.  The first record makes the first file, and one after a full file
        the next, with or without a key: RocketMQ makes the file before it checks for keys, and a
        mark needs a file, else a crash after many records without keys means reading all of them.
        """
        self._seen_offset = max(self._seen_offset, last_offset)
        if self._first_offset is None:
            self._first_offset = first_offset
        if not self.files:
            self._add_file()
            return
        newest = self.files[-1]
        if newest.is_full and last_offset > newest.end_physic_offset:
            self._add_file()

    def _hash_topic(self, topic: str) -> int:
        if len(self._topic_hashes) >= _TOPICS_MAX:
            self._topic_hashes.clear()
        value = self._topic_hashes[topic] = topic_hash(topic)
        return value

    def _add_file(self) -> IndexFile:
        """Begin the next file, in memory; its name sorts after all others."""
        name = self.env.wall_clock.local_name(self.env.wall_clock.now_ms())
        before = self.files[-1] if self.files else None
        if before is not None and name <= before.name:  # the clock was set back, or summer ended
            name = f"{int(before.name) + 1:0{FILE_NAME_DIGITS}d}"
        file = IndexFile.new(self.env.disk, f"{self.path}/{name}", self.layout, before)
        if before is not None and before not in self._uncommitted:
            self._uncommitted.append(before)
        self._uncommitted.append(file)
        self.files.append(file)
        return file

    def commit(self) -> None:
        """Write the new entries, so that queries see them.

        Raises DiskError; then the next commit writes them again, and the caller must not put more
        until one succeeds, or memory grows.  The very first file is synced at once.
        """
        self._marks.write_due_mark(self._first_offset)
        if not self._uncommitted:
            if self.files:
                self.files[-1].commit()
            return
        self.env.disk.make_dirs(self.path)
        self._marks.make_first(self.files[0], self._seen_offset)
        for file in self._uncommitted:
            file.made_file()  # even if it has no entry yet
            file.commit()
        self._uncommitted.clear()

    # -- to disk ---------------------------------------------------------------------------------

    def dirty_files(self) -> list[IndexFlush]:
        """Return what a flush must sync, in this order and in any thread, before ``mark_flushed``.

        Empty if a commit is due, and after a FlushFailedError: then the state on disk is unknown,
        and the next start indexes again from the mark.
        """
        if self._is_broken or self._uncommitted:
            return []
        if any(file.committed_count < file.index_count for file in self.files):
            return []
        return self._marks.begin_flush(max(self._seen_offset, self._last_offset, 0))

    def mark_flushed(self, files: Sequence[IndexFlush]) -> None:
        """Record that files were synced; the mark moves once all of them are."""
        for flush in files:
            self._marks.end_flush(flush)
            if flush.file.is_full and flush.header.index_count == flush.file.index_count:
                self._record_timestamp(flush.file)
        self._marks.end_flushes()

    @property
    def _is_broken(self) -> bool:
        return any(file.flush_failed for file in self.files)

    def _record_timestamp(self, file: IndexFile) -> None:
        """Advance the checkpoint's time: after an unclean stop RocketMQ deletes later files."""
        checkpoint = self.checkpoint
        checkpoint.index_msg_timestamp = max(checkpoint.index_msg_timestamp, file.end_timestamp_ms)

    def close(self, *, clean: bool = True) -> None:
        """Close; idempotent.  ``clean``: first commit, flush and remove the mark.

        Raises DiskError if that fails.  Then, and without ``clean``, the mark stays, and the next
        start indexes again what it does not cover.
        """
        try:
            if clean and any(
                f.mark or f.is_dirty or f.committed_count < f.index_count for f in self.files
            ):
                self._settle()
        finally:
            self._close_files()

    def _settle(self) -> None:
        self.commit()
        if self._is_broken:
            raise DiskError(
                f"the index in {self.path} could not be flushed",
                path=self.path,
                hint="check the disk; the next start indexes again what may be missing",
            )
        flushes = self.dirty_files()
        for flush in flushes:
            flush.sync()
        self.mark_flushed(flushes)
        self._record_timestamp(self.files[-1])
        self.checkpoint.flush()
        for file in self.files:
            if file.mark is not None:
                flush = file.begin_flush(first_mark=None, mark=None)
                flush.sync()
                file.end_flush(flush)

    def _close_files(self) -> None:
        for file in (*self.files, *self.search.removed):
            file.close()
        self.files.clear()
        self._uncommitted.clear()

    # -- reading ---------------------------------------------------------------------------------

    def candidates(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield the records that may carry a key, newest first; see ``IndexSearch.candidates``."""
        return self.search.candidates(topic, key, begin_ms, end_ms)

    # -- removing --------------------------------------------------------------------------------

    def destroy(self) -> None:
        """Remove all files and begin again."""
        paths = [file.path for file in self.files if file.disk_file is not None]
        self._close_files()
        for path in paths:
            self.env.disk.remove(path)
        self._seen_offset = self._last_offset = -1
        self._first_offset = None
        self._redispatch_from = None
        self._marks.reset()
