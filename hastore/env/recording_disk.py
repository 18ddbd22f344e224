"""A disk that remembers which changes of small files and directories fail.

::

    a node ──► RecordingDisk ──► RealDisk, or the simulator's
                    └─► FailedWrites ──► status

Everything that a node stores beside its log goes through here, so a table that a later version adds
is watched as well.  Not recorded: ``create_file``, whose callers (of the log's next file, and of
the reserve) say themselves when that fails; and writes to open files, whose errors their services
report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, final

import attrs

from hastore.env.failed_writes import Change, FailedWrites
from hastore.errors import DiskError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hastore.env.interface import (
        DirectoryLock,
        Disk,
        DiskFile,
        DiskSpace,
        Env,
        FileStamp,
        FileStat,
        HeldName,
        NamedFile,
    )

T = TypeVar("T")


@final
@attrs.define(eq=False)
class RecordingDisk:
    """``disk``, whose failed changes are recorded in ``failed_writes``."""

    disk: Disk
    failed_writes: FailedWrites

    def _change(self, path: str, call: Callable[[], T], change: Change = Change.WRITE) -> T:
        try:
            done = call()
        except DiskError as error:
            self.failed_writes.failed(path, str(error), error.hint, change=change)
            raise
        self.failed_writes.succeeded(path, change)
        return done

    # -- changes ---------------------------------------------------------------------------------

    def make_dirs(self, path: str) -> None:
        """Create a directory and its parents."""
        self._change(path, lambda: self.disk.make_dirs(path), Change.OPEN)

    def open_sparse_file(
        self, path: str, size: int, *, creates: bool = True, make_dirs: bool = True
    ) -> DiskFile:
        """Open a file for ``pread`` and ``pwrite``; create it."""

        def opened() -> DiskFile:
            return self.disk.open_sparse_file(path, size, creates=creates, make_dirs=make_dirs)

        return self._change(path, opened, Change.OPEN)

    def sync_dir(self, path: str) -> None:
        """Force a directory's entries to the disk."""
        self._change(path, lambda: self.disk.sync_dir(path))

    def write_file(self, path: str, data: bytes) -> None:
        """Replace a small file durably."""
        self._change(path, lambda: self.disk.write_file(path, data))

    def remove(self, path: str) -> None:
        """Remove a file."""
        self._change(path, lambda: self.disk.remove(path), Change.REMOVE)

    def remove_tree(self, path: str) -> None:
        """Remove a directory with its contents."""
        self._change(path, lambda: self.disk.remove_tree(path), Change.REMOVE)

    def rename(self, path: str, new_path: str) -> None:
        """Rename within one file system."""
        self._change(path, lambda: self.disk.rename(path, new_path), Change.RENAME)

    # -- the rest --------------------------------------------------------------------------------

    def list_dir(self, path: str) -> Sequence[FileStat]:
        """Return a directory's entries."""
        return self.disk.list_dir(path)

    def cannot_move(self, path: str) -> str | None:
        """Return what keeps a directory where it is."""
        return self.disk.cannot_move(path)

    def exists(self, path: str) -> bool:
        """Whether the path exists."""
        return self.disk.exists(path)

    def stamp(self, path: str) -> FileStamp:
        """Return a file's stamp."""
        return self.disk.stamp(path)

    def create_file(self, path: str, size: int) -> DiskFile:
        """Create a file of zeros."""
        return self.disk.create_file(path, size)

    def open_file(self, path: str, *, writable: bool) -> DiskFile:
        """Open an existing file."""
        return self.disk.open_file(path, writable=writable)

    def read_file(self, path: str) -> bytes:
        """Return the bytes of a small file."""
        return self.disk.read_file(path)

    def lock(self, path: str) -> DirectoryLock:
        """Take the exclusive lock."""
        return self.disk.lock(path)

    def hold(self, path: str) -> HeldName:
        """Hold the file or directory at a path."""
        return self.disk.hold(path)

    def first_lost(self, named: Sequence[NamedFile]) -> NamedFile | None:
        """Return the first whose name no longer leads to it."""
        return self.disk.first_lost(named)

    def space(self, path: str) -> DiskSpace:
        """Return how full the file system is."""
        return self.disk.space(path)


def recording(env: Env) -> Env:
    """Return the env of one node: its disk records what fails in ``failed_writes``."""
    failed_writes = FailedWrites(env.wall_clock.now_ms)
    disk = RecordingDisk(env.disk, failed_writes)
    return attrs.evolve(env, disk=disk, failed_writes=failed_writes)
