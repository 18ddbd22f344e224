"""Decides whether a fault excuses that a node ended, a slave failed or records are missing.

A node may end by itself with::

    FlushFailedError   a sync of this boot failed
    StoreError         files of this boot were removed: it notices that, or opens its store again
    DiskFullError      no room, at its start only: a serving node stays up on a full disk (P7)
    DiskError          a sync or a read of this boot failed
    nothing            it was asked to stop

A slave may fail if its log is damaged or is not a prefix of its master's.  A master may lack the
records after the bytes that were safe when it crashed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs
import trio

from hastore.errors import DiskError, DiskFullError, FlushFailedError, StoreError
from hastore.sim.log_bytes import first_damage, log_range
from hastore.sim.violation import ViolationError
from hastore.status import FlushDiskType

if TYPE_CHECKING:
    from hastore.sim.cluster import SimCluster, SimNode
    from hastore.sim.disk import SimDisk


def may_end(node: SimNode, error: BaseException | None) -> bool:
    """Whether the faults of a node's last boot explain why it ended."""
    boot = node.last_boot
    assert boot is not None
    if error is None:
        return boot.is_asked_to_stop
    disk = boot.disk
    if disk.files_lost and isinstance(error, StoreError):
        return True
    if isinstance(error, FlushFailedError):
        return disk.syncs_failed > 0
    if isinstance(error, DiskFullError):
        return disk.times_full > 0 and boot.node is None
    return isinstance(error, DiskError) and disk.syncs_failed + disk.reads_failed > 0


@final
@attrs.define(eq=False)
class Losses:
    """The records that a master may have lost by its crashes."""

    cluster: SimCluster
    may_be_short: bool = False  # after a crash, its log may end before those of its slaves
    # Of each crash, its time and the end of what was kept.
    _crashes: list[tuple[float, int]] = attrs.field(factory=list)
    _kept: int = 0  # the end of what the last crash kept

    def master_crashed(self, *, lost_power: bool) -> int | None:
        """Record a crash; return the end of what is safe if the mode allows a loss, else None."""
        config, master = self.cluster.config, self.cluster.master
        boot = master.boot or master.last_boot
        assert boot is not None
        end = kept = self._kept
        if boot.node is not None:
            end, kept = boot.node.commit_log.max_offset, boot.node.commit_log.readable_offset
        if lost_power or boot.disk.syncs_failed:
            kept = _durable_end(boot.disk, kept, config.mapped_file_size)
        self.may_be_short = self.may_be_short or kept < end
        self._kept = kept
        is_sync = config.master_flush is FlushDiskType.SYNC_FLUSH
        if not config.transient_store_pool and (is_sync or not lost_power):
            return None
        self._crashes.append((trio.current_time(), kept))
        return kept

    def master_stopped(self) -> None:
        """Record a clean stop: nothing is lost."""
        boot = self.cluster.master.last_boot
        if boot is not None and boot.node is not None:
            self._kept = boot.node.commit_log.max_offset

    def may_lack(self, at: float, next_offset: int) -> bool:
        """Whether a put that was acknowledged at ``at`` may be lost."""
        return any(at <= crashed_at and next_offset > kept for crashed_at, kept in self._crashes)

    def check_refusal(self, slave: SimNode, *, is_rotten: bool) -> None:
        """Raise ViolationError if a slave failed or diverged without reason."""
        node, master = self.cluster.serving_slave(slave), self.cluster.serving_master
        if node is None or master is None:
            return
        client = node.ha_client
        if client.state.value == "failed":
            if not is_rotten and first_damage(slave.live_disk) is None:
                raise ViolationError("refusal", f"{slave.name} is undamaged: {client.reason}")
            return
        end, size = node.max_offset, self.cluster.config.mapped_file_size
        if end > master.max_offset:
            if not self.may_be_short:
                raise ViolationError("refusal", f"{slave.name} is ahead, but nothing was lost")
            return
        ours = log_range(self.cluster.master.live_disk, 0, end, size, durable=False)
        if ours == log_range(slave.live_disk, 0, end, size, durable=False):
            raise ViolationError("refusal", f"{slave.name} is a prefix of its master, but refused")


def _durable_end(disk: SimDisk, end: int, mapped_file_size: int) -> int:
    """Return the offset up to which platter and page cache agree."""
    cached = log_range(disk, 0, end, mapped_file_size, durable=False)
    durable = log_range(disk, 0, end, mapped_file_size, durable=True)
    if cached == durable:
        return len(durable)
    both = enumerate(zip(cached, durable, strict=False))
    return next((at for at, (one, other) in both if one != other), len(durable))
