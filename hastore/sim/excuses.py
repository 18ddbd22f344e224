"""What excuses a node that ends by itself: a fault that was put to it, and not one like it.

FlushFailedError   a sync of this boot failed
DiskFullError      no room, and at its start only: a node that serves stays up on a full disk (P7)
DiskError          a sync or a read of this boot failed
nothing            it was asked to stop
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hastore.errors import DiskError, DiskFullError, FlushFailedError

if TYPE_CHECKING:
    from hastore.sim.cluster import SimNode


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
