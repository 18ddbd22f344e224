"""The two files that say which process has a store open: ``lock`` and ``abort``.

``lock``: byte 0 is locked (fcntl) while a process has the store open, as by RocketMQ's FileLock;
the content is the word ``lock``.  ``abort`` exists while the store is open and holds the process id
in ASCII (RocketMQ 5.x; 4.x leaves it empty).  A clean close removes it, so an ``abort`` found at
the start means that the last stop was unclean.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.errors import DiskError
from hastore.store.reserve_file import write_beside_reserve

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.env.interface import DirectoryLock, Disk

LOCK_FILE: Final = "lock"
ABORT_FILE: Final = "abort"
_NAMED_IN: Final = ("config", "trimmed")


@final
@attrs.define(eq=False)
class StoreLock:
    """Holds the directory ``path`` for this process until ``release``."""

    disk: Disk
    path: str
    _lock: DirectoryLock
    # Tables that a start found torn, by file name: why, and what it read instead.
    torn_tables: dict[str, str] = attrs.field(factory=dict, init=False)
    # Called with whether the stop was clean, before the directory is released.
    _at_release: list[Callable[[bool], None]] = attrs.field(factory=list, init=False)
    _process_id: int | None = attrs.field(default=None, init=False)  # in ``abort``, once written

    @classmethod
    def take(cls, disk: Disk, path: str) -> StoreLock:
        """Lock the directory.  Raises StoreLockedError if a process, even this one, has it open."""
        return cls(disk, path, disk.lock(f"{path}/{LOCK_FILE}"))

    @property
    def last_exit_ok(self) -> bool:
        """Whether the store was closed cleanly; ask before ``write_abort``."""
        return not self.disk.exists(f"{self.path}/{ABORT_FILE}")

    def write_abort(self, process_id: int) -> None:
        """Mark the store as open, durably."""
        path = f"{self.path}/{ABORT_FILE}"
        write_beside_reserve(self.disk, path, str(process_id).encode())
        self._process_id = process_id

    def sync_names(self) -> None:
        """Sync directories in which a killed process may have made files.

        Opening ``commitlog``, ``consumequeue`` and ``index`` syncs those.
        """
        parent = self.path.rpartition("/")[0] or ("/" if self.path.startswith("/") else ".")
        with contextlib.suppress(DiskError):  # not ours, and perhaps not even readable
            self.disk.sync_dir(parent)
        for path in (self.path, *(f"{self.path}/{name}" for name in _NAMED_IN)):
            if self.disk.exists(path):
                self.disk.sync_dir(path)

    def at_release(self, call: Callable[[bool], None]) -> None:
        """Call ``call`` with whether the stop was clean, once, before the directory is released."""
        self._at_release.append(call)

    def release(self, *, clean: bool) -> None:
        """Release the directory; a clean stop removes ``abort`` first.

        Any other stop writes it again if somebody has removed it.
        """
        path, is_clean = f"{self.path}/{ABORT_FILE}", False
        try:
            if clean:
                self.disk.remove(path)
                is_clean = True
            elif self._process_id is not None and not self.disk.exists(path):
                with contextlib.suppress(DiskError):
                    self.disk.remove(path)  # a watched disk makes no lost file again
                    self.write_abort(self._process_id)
        finally:
            for call in self._at_release:
                call(is_clean)
            self._at_release.clear()
            self._lock.release()
