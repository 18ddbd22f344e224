"""The disk faults of a process's directory (`DiskFaults`), on real files.

A running node gets its faults through ``faulty_node``; those of a stopped one change its files.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, final

import attrs
import trio

from hastore_scenarios.judge.history import DISK_HEALED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hastore_scenarios.worlds.process.faulty_node import NodeFaults
    from hastore_scenarios.worlds.process.node import ProcessNode


@final
@attrs.define(eq=False)
class ProcessDisk:
    """A `DiskFaults`; ``on_change`` is called with each fault."""

    node: ProcessNode
    on_change: Callable[..., None]

    # -- while it runs

    def full(self) -> None:
        """Let allocations fail with ENOSPC."""
        self._faults.set(full=True)
        self.on_change("full", "full")

    def slow(self, extra_s: float) -> None:
        """Delay each sync by ``extra_s``."""
        self._faults.set(slow_s=extra_s)
        self.on_change("slow", f"each sync takes {extra_s:g} s longer")

    def fail_sync(self) -> None:
        """Let the log's next sync fail."""
        self._faults.set(fail_sync=True)
        self.on_change("fail-sync", "the next sync of the log fails")

    def heal(self) -> None:
        """End all faults."""
        if self.node.faults is not None:
            self.node.faults.heal()
        self.on_change(DISK_HEALED, "healed")

    @property
    def _faults(self) -> NodeFaults:
        faults = self.node.faults
        assert faults is not None, f"{self.node.name} was not started with faulty_disk=True"
        return faults

    # -- while it is stopped

    async def tear(self, size: int) -> None:
        """Overwrite the end of the log with zeros."""
        assert not self.node.is_running, f"{self.node.name} runs"
        end = await self.node.log_end()
        for path in self._files():
            begin = int(path.name)
            first, last = max(end - size, begin), min(end, begin + path.stat().st_size)
            if first < last:
                with path.open("r+b") as file:
                    file.seek(first - begin)
                    file.write(bytes(last - first))
                    os.fsync(file.fileno())
        self.on_change("tear", f"the last {size} bytes before {end} never reached it")

    async def expire(self, files: int) -> None:
        """Remove the oldest files."""
        assert not self.node.is_running, f"{self.node.name} runs"
        paths = self._files()
        assert len(paths) > files, f"{self.node.name} has {len(paths)} files"
        for path in paths[:files]:
            path.unlink()
        min_offset = int(paths[files].name)
        self.on_change("expire", f"files before {min_offset} have expired", min_offset=min_offset)
        await trio.lowlevel.checkpoint()

    async def wipe(self) -> None:
        """Remove the directory."""
        assert not self.node.is_running, f"{self.node.name} runs"
        shutil.rmtree(self.node.directory)
        self.on_change("wipe", "a new and empty one")
        await trio.lowlevel.checkpoint()

    def _files(self) -> list[Path]:
        return sorted((self.node.directory / "commitlog").glob("[0-9]*"))
