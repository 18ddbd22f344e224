"""The two files that say whose a store directory is: ``lock`` and ``abort``.

``lock``: byte 0 is locked (fcntl) while a process has the store open, as RocketMQ's FileLock does;
the content is the word ``lock``.  ``abort``: there while the store is open, holds the process id in
ASCII (RocketMQ 5.x; 4.x leaves it empty) and is removed by a clean close, so one that is found at
start means that the last stop was unclean.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.errors import DiskError

if TYPE_CHECKING:
    from hastore.env.interface import DirectoryLock, Disk

LOCK_FILE: Final = "lock"
ABORT_FILE: Final = "abort"
_NAMED_IN: Final = ("config", "trimmed")


@final
@attrs.define(eq=False)
class StoreLock:
    """The directory ``path`` is this process's own until ``release``."""

    disk: Disk
    path: str
    _lock: DirectoryLock

    @classmethod
    def take(cls, disk: Disk, path: str) -> StoreLock:
        """Lock the directory; StoreLockedError where a process (this one too) has it open."""
        return cls(disk, path, disk.lock(f"{path}/{LOCK_FILE}"))

    @property
    def last_exit_ok(self) -> bool:
        """Whether the store was closed cleanly; ask before ``write_abort``."""
        return not self.disk.exists(f"{self.path}/{ABORT_FILE}")

    def write_abort(self, process_id: int) -> None:
        """Say that the store is open, durably."""
        self.disk.write_file(f"{self.path}/{ABORT_FILE}", str(process_id).encode())

    def sync_names(self) -> None:
        """Make durable what a process has named that was killed before it could.

        Its files below ``commitlog``, ``consumequeue`` and ``index`` are seen to by who opens them.
        """
        parent = self.path.rpartition("/")[0] or ("/" if self.path.startswith("/") else ".")
        with contextlib.suppress(DiskError):  # not ours, and perhaps not even readable
            self.disk.sync_dir(parent)
        for path in (self.path, *(f"{self.path}/{name}" for name in _NAMED_IN)):
            if self.disk.exists(path):
                self.disk.sync_dir(path)

    def release(self, *, clean: bool) -> None:
        """Give the directory up; a clean stop removes ``abort`` first."""
        try:
            if clean:
                self.disk.remove(f"{self.path}/{ABORT_FILE}")
        finally:
            self._lock.release()
