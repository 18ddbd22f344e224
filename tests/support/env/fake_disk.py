"""A disk in memory that fails on demand, crashes, and records what was synced.

It is the simulator's disk, with a test's script around it.  ``kill()`` returns the disk as the next
process finds it after kill -9.  ``cut_power()`` returns it as the next boot finds it: for each
512-byte sector ``choose`` decides whether it has the synced bytes or the ones written since.  File
names are durable at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hastore.sim.disk import SimDisk
from hastore.sim.inode import Inode
from tests.support.env.scripted_disk import ScriptedDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

START_MS = 1_700_000_000_000


def _empty() -> SimDisk:
    return SimDisk(lambda: START_MS)


@attrs.define(eq=False)
class FakeDisk(ScriptedDisk):
    """Files in memory; what programs see and what was synced is in ``inodes``, by path."""

    disk: SimDisk = attrs.field(factory=_empty)
    used: float | None = 0.5

    @property
    def inodes(self) -> dict[str, Inode]:
        """Every file by its path."""
        return self.disk.inodes

    @property
    def locked(self) -> set[str]:
        """The lock files that are held."""
        return set(self.disk.locked)

    def files(self, under: str = "/d/commitlog/") -> dict[str, bytes]:
        """Return the bytes that programs see in each file of a directory, by name."""
        return {
            path.removeprefix(under): inode.seen()
            for path, inode in sorted(self.inodes.items())
            if path.startswith(under)
        }

    def put(self, path: str, data: bytes) -> None:
        """Create a file that is already durable."""
        self.disk.make_dirs(path.rpartition("/")[0])
        self.inodes[path] = Inode(bytearray(data), bytes(data), modified_ms=START_MS)

    def overwrite(self, path: str, position: int, data: bytes) -> None:
        """Overwrite a part of a file in the page cache."""
        self.inodes[path].cache[position : position + len(data)] = data

    def set_modified_ms(self, paths: Iterable[str], modified_ms: int) -> None:
        """Set the modification time of files."""
        for path in paths:
            self.inodes[path].modified_ms = modified_ms

    def kill(self) -> FakeDisk:
        """Return the disk after kill -9: nothing is open or locked, and all pages are synced."""
        disk = self.disk.after_kill()
        for inode in disk.inodes.values():
            inode.durable, inode.clean = inode.seen(), None
        return FakeDisk(disk=disk)

    def cut_power(self, choose: Callable[[], bool] = lambda: False) -> FakeDisk:
        """Return the disk after a power cut; ``choose()`` true keeps an unsynced sector."""
        for inode in self.inodes.values():
            inode.is_name_durable = True
        self.disk.dirs = dict.fromkeys(self.disk.dirs, True)
        return FakeDisk(disk=self.disk.after_power_cut(choose))
