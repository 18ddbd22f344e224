"""Lists a directory with a commit log in any state, for read-only tools.

    DIR/commitlog/00000000000000000000   DIR is a store's root, or the commitlog directory itself
    DIR/commitlog/00000000000000065536   one size, named by start offset; the front may be gone
    DIR/commitlog/lost+found             a stray: reported, otherwise ignored

Unlike opening a store, this refuses nothing: the walk over the files reports other sizes and gaps.
Nothing is created, locked or changed, so the log may be in use.

If a cut of the log is not finished (``DIR/cut.json``), the log ends where the cut will end it: what
follows is half zeroed, no damage.
"""

from __future__ import annotations

import collections
import contextlib
from typing import TYPE_CHECKING

import attrs

from hastore.errors import DiskError, NotAStoreError, UnfinishedCutError
from hastore.store.log.mapped_file_queue import is_file_name
from hastore.store.log.store_directory import COMMIT_LOG_DIR
from hastore.store.record.layout import BLANK_SIZE_MIN
from hastore.store.recovery.log_cut import CutIntent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hastore.env.interface import Disk, FileStat
    from hastore.store.recovery.log_cut import LogCut


@attrs.frozen(kw_only=True)
class LogFile:
    """One file of the log; ``size`` is its own, which may differ from the others'."""

    path: str
    name: str
    physic_offset: int
    size: int

    @property
    def next_offset(self) -> int:
        """The offset right after the file."""
        return self.physic_offset + self.size


@attrs.frozen(kw_only=True)
class LogDirectory:
    """The files of a log; ``mapped_file_size`` is the most frequent size, None for an empty log.

    ``root`` is the store around the log (with ``abort`` and ``lock``), None without one.
    ``unfinished_cut`` is the cut that is under way; files after its offset are left out.
    """

    root: str | None
    path: str
    files: tuple[LogFile, ...]
    strays: tuple[str, ...]
    mapped_file_size: int | None
    unfinished_cut: LogCut | None = None

    @property
    def cut_at(self) -> int | None:
        """The offset where an unfinished cut will end the log; None without one."""
        return None if self.unfinished_cut is None else self.unfinished_cut.physic_offset

    def refuse_unfinished_cut(self) -> None:
        """Raise UnfinishedCutError if a cut is not finished: a command would meet half of it."""
        if self.unfinished_cut is not None:
            raise UnfinishedCutError(
                f"a cut of {self.path} at offset {self.cut_at} is not finished",
                path=self.path,
                physic_offset=self.cut_at,
                hint="start the node on it once: a start finishes the cut",
            )

    @property
    def min_offset(self) -> int:
        """The first offset; 0 for an empty log."""
        return self.files[0].physic_offset if self.files else 0

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def file_at(self, physic_offset: int) -> LogFile | None:
        """Return the file that holds an offset; the first one, if a file is too long."""
        for file in self.files:
            if file.physic_offset <= physic_offset < file.next_offset:
                return file
        return None


def is_written(disk: Disk, file: LogFile) -> bool:
    """Whether a file's first bytes are written; then every earlier file is complete.

    Raises DiskError.
    """
    return any(read_file(disk, file, 0, BLANK_SIZE_MIN))


def read_at(disk: Disk, log: LogDirectory, physic_offset: int, size: int) -> bytes:
    """Read up to ``size`` bytes, at most to the file's end; b"" if no file has the offset.

    Raises DiskError.
    """
    file = log.file_at(physic_offset)
    return b"" if file is None else read_file(disk, file, physic_offset - file.physic_offset, size)


def read_file(disk: Disk, file: LogFile, position: int, size: int) -> bytes:
    """Read up to ``size`` bytes of one file, at most to its end.  Raises DiskError."""
    with contextlib.closing(disk.open_file(file.path, writable=False)) as opened:
        return opened.pread(min(size, file.size - position), position)


def find_log(disk: Disk, path: str) -> LogDirectory:
    """List the log in ``path``: a store's root or a commitlog directory.

    Raises NotAStoreError if there is none, DiskError if it cannot be read, UnfinishedCutError if
    nobody can say where the log ends.
    """
    path = path.rstrip("/") or "/"
    if not disk.exists(path):
        raise NotAStoreError(
            f"{path}: no such directory",
            path=path,
            hint="name a store's directory, or its commitlog",
        )
    try:
        entries = disk.list_dir(path)
    except DiskError as error:
        if not isinstance(error.__cause__, NotADirectoryError):
            raise
        raise NotAStoreError(
            f"{path} is a file, not a directory with a log",
            path=path,
            hint="name a store's directory, or its commitlog",
        ) from error
    for entry in entries:
        if entry.name == COMMIT_LOG_DIR and entry.is_dir:
            log_path = f"{path.rstrip('/')}/{COMMIT_LOG_DIR}"
            return _from_entries(disk, path, log_path, disk.list_dir(log_path))
    if path.rpartition("/")[2] == COMMIT_LOG_DIR:
        return _from_entries(disk, _parent(path), path, entries)
    if any(_is_log_file(entry) for entry in entries):
        return _from_entries(disk, None, path, entries)
    raise NotAStoreError(
        f"{path} holds no commitlog/ and no file named by a 20-digit offset",
        path=path,
        hint="name a store's directory (hastore master --data DIR), or its commitlog",
    )


def _parent(path: str) -> str:
    directory, slash, _ = path.rpartition("/")
    return directory or slash or "."


def _is_log_file(entry: FileStat) -> bool:
    return is_file_name(entry.name) and not entry.is_dir


def _from_entries(
    disk: Disk, root: str | None, path: str, entries: Iterable[FileStat]
) -> LogDirectory:
    intent = None if root is None else CutIntent.load(disk, root)
    files, strays = [], []
    for entry in sorted(entries, key=lambda entry: entry.name):
        if _is_log_file(entry):
            offset = int(entry.name)
            file_path = f"{path.rstrip('/')}/{entry.name}"
            files.append(
                LogFile(path=file_path, name=entry.name, physic_offset=offset, size=entry.size)
            )
        else:
            strays.append(f"{entry.name}/" if entry.is_dir else entry.name)
    sizes = collections.Counter(file.size for file in files if file.size)
    log = LogDirectory(
        root=root,
        path=path,
        files=tuple(files),
        strays=tuple(strays),
        mapped_file_size=sizes.most_common(1)[0][0] if sizes else None,
        unfinished_cut=None if intent is None else intent.cut,
    )
    if log.cut_at is None:
        return log
    kept = [file for file in files if file.physic_offset < log.cut_at]
    return attrs.evolve(log, files=tuple(kept or files[:1]))
