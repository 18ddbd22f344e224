"""What excuses a node that ends, gives up or lacks something: a fault that it had, not its like.

A node ends by itself with::

    FlushFailedError   a sync of this boot failed
    DiskFullError      no room, and at its start only: who serves stays up on a full disk (P7)
    DiskError          a sync or a read of this boot failed
    nothing            it was asked to stop

and a slave gives up where its log is damaged, or is no prefix of its master's.  What a master may
lack is what was behind the bytes that were safe when it crashed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs
import trio

from hastore.errors import DiskError, DiskFullError, FlushFailedError
from hastore.sim.bit_rot import first_damage
from hastore.sim.log_bytes import log_range
from hastore.sim.violation import ViolationError
from hastore.status import FlushDiskType

if TYPE_CHECKING:
    from hastore.sim.cluster import SimCluster, SimNode
    from hastore.sim.disk import SimDisk


def may_end(node: SimNode, error: BaseException | None) -> bool:
    """Whether what befell a node's last boot is why it ended."""
    boot = node.last_boot
    assert boot is not None
    if error is None:
        return boot.is_asked_to_stop
    disk = boot.disk
    if isinstance(error, FlushFailedError):
        return disk.syncs_failed > 0
    if isinstance(error, DiskFullError):
        return disk.times_full > 0 and boot.node is None
    return isinstance(error, DiskError) and disk.syncs_failed + disk.reads_failed > 0


@final
@attrs.define(eq=False)
class Losses:
    """What the crashes of a master may have cost it."""

    cluster: SimCluster
    may_be_short: bool = False  # a crash may have left it with less than slaves have
    _crashes: list[tuple[float, int]] = attrs.field(factory=list)  # when, and up to where was kept
    _kept: int = 0  # by the last crash

    def master_crashed(self, *, lost_power: bool) -> int | None:
        """Look at what is safe; gives its end where the mode allows to lose what is behind it."""
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
        """Take note of a clean stop: nothing is lost."""
        boot = self.cluster.master.last_boot
        if boot is not None and boot.node is not None:
            self._kept = boot.node.commit_log.max_offset

    def may_lack(self, at: float, next_offset: int) -> bool:
        """Whether a put that was acknowledged at ``at`` may be gone."""
        return any(at <= crashed_at and next_offset > kept for crashed_at, kept in self._crashes)

    def check_refusal(self, slave: SimNode, *, is_rotten: bool) -> None:
        """Look at why a slave gave up."""
        node, master = self.cluster.serving_slave(slave), self.cluster.serving_master
        if node is None or master is None:
            return
        client = node.ha_client
        if client.state.value == "failed":
            if not is_rotten and first_damage(slave.live_disk) is None:
                raise ViolationError("refusal", f"{slave.name} is sound: {client.reason}")
            return
        end, size = node.max_offset, self.cluster.config.mapped_file_size
        if end > master.max_offset:
            if not self.may_be_short:
                raise ViolationError("refusal", f"{slave.name} is ahead, and nothing was lost")
            return
        ours = log_range(self.cluster.master.live_disk, 0, end, size, durable=False)
        if ours == log_range(slave.live_disk, 0, end, size, durable=False):
            raise ViolationError("refusal", f"{slave.name} is a prefix of its master, and refused")


def _durable_end(disk: SimDisk, end: int, mapped_file_size: int) -> int:
    """Give up to where platter and page cache agree."""
    cached = log_range(disk, 0, end, mapped_file_size, durable=False)
    durable = log_range(disk, 0, end, mapped_file_size, durable=True)
    if cached == durable:
        return len(durable)
    both = enumerate(zip(cached, durable, strict=False))
    return next((at for at, (one, other) in both if one != other), len(durable))
