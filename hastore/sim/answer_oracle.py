"""Checks that every weak answer to a put has a reason in what happened to the cluster.

::

    FLUSH_SLAVE_TIMEOUT        its time has passed, a slave was connected, none had the record in
                               that time, and something was wrong with the cluster or the slave
                               was behind
    FLUSH_DISK_TIMEOUT         its time has passed, and something was wrong with the cluster
    SLAVE_NOT_AVAILABLE        no slave that has reported was connected and close enough
    CREATE_MAPPED_FILE_FAILED  its time has passed, or the disk had reported a failure

A put is checked when it is appended and when it is answered: what is decided at its append may be
answered only after its flush.  The append of a put that waits for the next file is not seen: only
its times are checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.sim.cluster import HA_PORT
from hastore.sim.violation import ViolationError
from hastore.status import HAConnectionState, PutMessageStatus

if TYPE_CHECKING:
    from hastore.broker.node.master import Master
    from hastore.concurrency.group_commit_request import GroupCommitRequest
    from hastore.sim.cluster import SimCluster, SimNode
    from hastore.sim.put import Put

SYNC_FLUSH_TIMEOUT_S: Final = 5.0  # StoreConfig's
NEXT_FILE_TIMEOUT_S: Final = 5.0  # likewise
_TICK_S: Final = 0.002
# How long nothing must have been wrong before a put, so that the cluster has recovered.
_SETTLED_S: Final = 5.0
_COUNTS: Final = (HAConnectionState.CATCHING_UP, HAConnectionState.STREAMING)


@final
@attrs.define(eq=False)
class AnswerOracle:
    """Records the state of the cluster at each put, and checks the put's answer against it."""

    cluster: SimCluster
    rotten: dict[str, int]  # the oracle's: slaves with a flipped bit
    _unwell_at: float = 0.0  # when something was last wrong
    # When ``push2_slave_max_offset`` came to what, of the master that serves; both rise.
    _acks: list[tuple[float, int]] = attrs.field(factory=list)

    def check_step(self) -> None:
        """Record whether something is wrong with the cluster now, and what slaves have."""
        self._record_ack()
        reset_at = self.cluster.network.last_reset_at  # a reset is over within its step
        self._unwell_at = (
            trio.current_time() if self._is_unwell() else max(self._unwell_at, reset_at)
        )

    def _record_ack(self) -> None:
        master = self.cluster.serving_master
        pushed = 0 if master is None else master.ha_service.ack_table.push2_slave_max_offset
        last = self._acks[-1][1] if self._acks else 0
        if pushed < last:
            self._acks.clear()  # of an earlier boot
        elif pushed > last:
            self._acks.append((trio.current_time(), pushed))

    def submitted(self, put: Put, master: Master, request: GroupCommitRequest) -> None:
        """Record the state of the cluster in the step in which a put was submitted."""
        service, appended = master.ha_service, request.append_result
        # A put that waits for the next file is appended later, when a slave may be connected.
        put.waits_for_file = appended is None and request.status is None
        put.had_slave = put.waits_for_file or bool(service.connections)
        if appended is None:
            return
        limit = service.config.ha_slave_fallbehind_max
        put.had_near_slave = any(
            connection.progress.ended_because is None
            and connection.progress.state in _COUNTS
            and connection.progress.ack_offset is not None
            and appended.next_offset - connection.progress.ack_offset < limit
            for connection in service.connections.values()
        )
        self.check_step()
        put.was_well = trio.current_time() - self._unwell_at > _SETTLED_S
        put.was_followed = put.was_well and any(
            self._follows(slave, appended.physic_offset) for slave in self.cluster.slaves
        )

    def answered(self, put: Put) -> None:
        """Check a status at the instant of the answer.  Raises ViolationError."""
        self._check_time(put)
        match put.status:
            case PutMessageStatus.FLUSH_SLAVE_TIMEOUT:
                self._check_slave_timeout(put)
            case PutMessageStatus.FLUSH_DISK_TIMEOUT if put.was_well:
                self._check_well(put)
            case PutMessageStatus.SLAVE_NOT_AVAILABLE if put.had_near_slave:
                detail = f"put {put.number} is SLAVE_NOT_AVAILABLE, but a slave was available"
                raise ViolationError("unavailable", detail, put.number)
            case PutMessageStatus.CREATE_MAPPED_FILE_FAILED:
                self._check_no_file(put)
            case _:
                pass

    # -- the rules ---------------------------------------------------------------------------------

    def _check_time(self, put: Put) -> None:
        """Raise ViolationError for a time-out before its time."""
        waited_s, longest_s = put.at - put.submitted_at, self._timeout_s(put.status)
        if waited_s < longest_s - _TICK_S:
            detail = f"put {put.number} timed out after {waited_s:.3f} of {longest_s} s"
            raise ViolationError("timeout", detail, put.number)

    def _timeout_s(self, status: PutMessageStatus | None) -> float:
        if self._is_master_ending():
            return 0.0  # a master that stops answers all puts at once
        if status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT:
            return self.cluster.config.slave_timeout_ms / 1000
        return SYNC_FLUSH_TIMEOUT_S if status is PutMessageStatus.FLUSH_DISK_TIMEOUT else 0.0

    def _is_master_ending(self) -> bool:
        boot = self.cluster.master.boot
        return boot is None or boot.is_asked_to_stop or boot.disk.syncs_failed > 0

    def _check_slave_timeout(self, put: Put) -> None:
        """Raise ViolationError if a slave had the record, none was connected, or all was well.

        A slave may have it by now that had not within the put's time: its flush may take longer.
        """
        master = self.cluster.serving_master
        if master is None:
            return
        if not put.had_slave:
            detail = f"put {put.number} waited, but no slave was connected"
            raise ViolationError("timeout", detail, put.number)
        until = put.submitted_at + self.cluster.config.slave_timeout_ms / 1000
        if any(at <= until and pushed >= put.next_offset for at, pushed in self._acks):
            detail = f"put {put.number} was acknowledged, but timed out"
            raise ViolationError("timeout", detail, put.number)
        if put.was_followed:
            self._check_well(put)

    def _check_well(self, put: Put) -> None:
        """Raise ViolationError if nothing was wrong from long before the put until now."""
        self.check_step()
        if self._unwell_at < put.submitted_at and not self._is_master_ending():
            detail = f"put {put.number} timed out, but nothing is wrong with the cluster"
            raise ViolationError("timeout", detail, put.number)

    def _check_no_file(self, put: Put) -> None:
        """Raise ViolationError if the put did not wait for the next file and no disk failed."""
        boot = self.cluster.master.boot
        if boot is None or put.at - put.submitted_at >= NEXT_FILE_TIMEOUT_S - _TICK_S:
            return
        if not boot.disk.times_full + boot.disk.syncs_failed + boot.disk.reads_failed:
            detail = f"put {put.number} got no next file, but its master's disk has room"
            raise ViolationError("next file", detail, put.number)

    # -- the state of the cluster ------------------------------------------------------------------

    def _follows(self, slave: SimNode, physic_offset: int) -> bool:
        """Whether a slave has the log up to an offset, and a working link for the rest."""
        node = self.cluster.serving_slave(slave)
        return (
            node is not None
            and node.ha_client.is_in_step
            and node.max_offset >= physic_offset
            and self.cluster.network.are_connected(slave.host, self.cluster.master.host, HA_PORT)
        )

    def _is_unwell(self) -> bool:
        """Whether a fault is active or pending, or a node is starting or stopping."""
        if self.rotten or self.cluster.network.is_disturbed:
            return True
        for node in self.cluster.nodes:
            boot = node.boot
            if boot is None or boot.node is None or boot.is_asked_to_stop:
                return True
            if node.frozen is not None or node.slow_disk_s:
                return True
            if boot.disk.is_full or boot.disk.sync_failures or boot.disk.read_failures:
                return True
        return False
