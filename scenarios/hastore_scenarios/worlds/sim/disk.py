"""The faults of a simulated disk (`DiskFaults`), and how its files are written to a real one."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs
import trio

from hastore.sim.cluster import DATA_DIR
from hastore.sim.disk import SimDisk
from hastore_scenarios.judge.history import DISK_HEALED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hastore_scenarios.worlds.sim.node import SimWorldNode

_LOG_DIR = f"{DATA_DIR}/commitlog/"


@final
@attrs.define(eq=False)
class SimDiskFaults:
    """A `DiskFaults`; ``on_change`` is called with each fault."""

    node: SimWorldNode
    on_change: Callable[..., None]

    # -- while it runs

    def full(self) -> None:
        """Let allocations fail with ENOSPC."""
        self.node.live_disk.fill()
        self.on_change("full", "full")

    def slow(self, extra_s: float) -> None:
        """Delay each blocking call by ``extra_s``."""
        self._slow(extra_s)
        self.on_change("slow", f"each sync takes {extra_s:g} s longer")

    def fail_sync(self) -> None:
        """Let the log's next sync fail."""
        disk = self.node.live_disk
        disk.sync_failures, disk.sync_failures_in = 1, _LOG_DIR
        self.on_change("fail-sync", "the next sync of the log fails")

    def heal(self) -> None:
        """End all faults."""
        disk = self.node.live_disk
        disk.make_room()
        disk.sync_failures = 0
        self._slow(0.0)
        self.on_change(DISK_HEALED, "healed")

    def _slow(self, extra_s: float) -> None:
        self.node.slow_s = extra_s
        if self.node.run is not None:
            self.node.run.offload.slow_s = extra_s

    # -- while it is stopped

    async def tear(self, size: int) -> None:
        """Overwrite the end of the log with zeros."""
        end = await self.node.log_end()
        for path in self._files():
            begin, inode = int(path.rpartition("/")[2]), self.node.disk.inodes[path]
            first, last = max(end - size, begin), min(end, begin + len(inode.cache))
            if first < last:
                inode.cache[first - begin : last - begin] = bytes(last - first)
                inode.durable = inode.seen()
        self.on_change("tear", f"the last {size} bytes before {end} never reached it")

    async def expire(self, files: int) -> None:
        """Remove the oldest files."""
        paths = self._files()
        assert len(paths) > files, f"{self.node.name} has {len(paths)} files"
        for path in paths[:files]:
            self.node.disk.remove(path)
        min_offset = int(paths[files].rpartition("/")[2])
        self.on_change("expire", f"files before {min_offset} have expired", min_offset=min_offset)
        await trio.lowlevel.checkpoint()

    async def wipe(self) -> None:
        """Replace the disk by an empty one."""
        assert not self.node.is_running, f"{self.node.name} runs"
        self.node.disk = SimDisk(self.node.wall_clock.now_ms)
        self.on_change("wipe", "a new and empty one")
        await trio.lowlevel.checkpoint()

    def _files(self) -> list[str]:
        assert not self.node.is_running, f"{self.node.name} runs"
        return sorted(path for path in self.node.disk.inodes if path.startswith(_LOG_DIR))


def write_out(disk: SimDisk, directory: Path) -> None:
    """Write all files of a simulated disk into a real directory, for the checker and the tools.

    A file whose sync has failed is written as it is on the platter: its page cache may hold bytes
    that never reached it, and no later sync reports that.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name in disk.dirs:
        if name.startswith(f"{DATA_DIR}/"):
            (directory / name[len(DATA_DIR) + 1 :]).mkdir(parents=True, exist_ok=True)
    for path, inode in disk.inodes.items():
        target = directory / path[len(DATA_DIR) + 1 :]
        target.parent.mkdir(parents=True, exist_ok=True)
        seen = inode.seen() if inode.clean is None else inode.durable
        with target.open("wb") as file:
            file.write(seen.rstrip(b"\0"))
            file.truncate(len(seen))
