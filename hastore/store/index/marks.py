"""The mark of an index (``layout``), and what the next flush has to write.

    flush n     covers entries below a count, records up to ``seen_offset``
    commit      writes that as the mark to the file, for a start after a kill
    flush n+1   makes it durable, and removes the marks of earlier files

If all entries are on disk and only records without keys came since, a flush moves the mark at once.

Invariants: a mark never covers more than is on disk; at least one file has a mark from the first
flush until the clean close.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs

from hastore.store.index.layout import IndexMark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.store.index.file import IndexFile, IndexFlush


@final
@attrs.frozen
class _Flushed:
    """What a flush covers: a file's entries below ``mark.index_count`` and all earlier files."""

    file: IndexFile
    mark: IndexMark


@final
@attrs.define(eq=False)
class IndexMarks:
    """The marks of one index; ``files`` are its service's own, oldest first."""

    files: list[IndexFile]
    _reopened: _Flushed | None = attrs.field(default=None, init=False)
    _in_flush: set[IndexFlush] = attrs.field(factory=set, init=False)
    _covers: _Flushed | None = attrs.field(default=None, init=False)
    _flushed: _Flushed | None = attrs.field(default=None, init=False)
    _is_due: bool = attrs.field(default=False, init=False)  # to be shown

    def reopen(self, file: IndexFile, seen_offset: int) -> None:
        """Begin with existing files, the last of which is ``file``."""
        mark = file.mark or IndexMark(file.index_count, seen_offset)
        self._reopened = self._flushed = _Flushed(file, mark)

    def reset(self) -> None:
        """Begin without files."""
        self._reopened = self._flushed = self._covers = None
        self._in_flush = set()
        self._is_due = False

    def make_first(self, first: IndexFile, seen_offset: int) -> None:
        """Write the very first file's mark, durably, unless there is one.

        None of its keys is on disk yet.  Without keys it covers all records that were seen.
        """
        if self._flushed is None:
            offset = first.begin_physic_offset if first.index_count > 1 else seen_offset
            mark = IndexMark(1, offset)
            first.write_mark(mark)
            self._flushed = _Flushed(first, mark)

    def write_due_mark(self, first_offset: int | None) -> None:
        """Write the mark to its file, so that a start after a kill knows how far it is flushed.

        ``first_offset``: of the first record seen since the start, None before that.
        """
        flushed = self._flushed
        if flushed is None:
            return
        if flushed is self._reopened and flushed.file.mark is None and first_offset is not None:
            # A clean stop left no mark; the index has all records before the first.
            mark = flushed.mark
            if first_offset > mark.seen_offset:
                mark = IndexMark(mark.index_count, first_offset)
                flushed = self._flushed = self._reopened = _Flushed(flushed.file, mark)
                self._is_due = True
        if self._is_due:
            flushed.file.put_mark(flushed.mark)
            self._is_due = False

    def begin_flush(self, seen_offset: int) -> list[IndexFlush]:
        """Return the flushes to sync, in this order; all records up to ``seen_offset`` were put.

        Every entry must be committed.
        """
        flushes = []
        reopened = self._reopened
        self._follow(seen_offset)
        for file, mark in zip(self.files, self._wanted(), strict=True):
            first = reopened.mark if reopened is not None and reopened.file is file else None
            is_due = mark != file.mark and self._flushed is not reopened
            if file.is_dirty or is_due:
                flushes.append(file.begin_flush(first_mark=first, mark=mark))
        self._in_flush = set(flushes)
        if flushes:
            newest = self.files[-1]
            self._covers = _Flushed(newest, IndexMark(newest.index_count, seen_offset))
        return flushes

    def _follow(self, seen_offset: int) -> None:
        """Move the mark past records without keys if everything else is on disk."""
        flushed = self._flushed
        if flushed is None or flushed.mark.seen_offset >= seen_offset:
            return
        newest = self.files[-1]
        is_all = flushed.file is newest and flushed.mark.index_count == newest.index_count
        if is_all and not any(file.is_dirty for file in self.files):
            self._flushed = _Flushed(newest, IndexMark(newest.index_count, seen_offset))

    def _wanted(self) -> Iterator[IndexMark | None]:
        """Yield the mark that each file should have: the newest file of the last flush has it.

        Earlier files lose theirs once that mark is on disk.
        """
        flushed = self._flushed
        is_before = flushed is not None
        for file in self.files:
            if flushed is not None and file is flushed.file:
                is_before = False
                yield flushed.mark
            elif is_before and flushed is not None and flushed.file.mark is not None:
                yield None
            else:
                yield file.mark

    def end_flush(self, flush: IndexFlush) -> None:
        """Record that one file was synced."""
        flush.file.end_flush(flush)
        self._in_flush.discard(flush)

    def end_flushes(self) -> None:
        """Move the mark if all files were synced."""
        if not self._in_flush and self._covers is not None:
            self._flushed, self._covers = self._covers, None
            self._is_due = self._flushed.mark != self._flushed.file.mark
