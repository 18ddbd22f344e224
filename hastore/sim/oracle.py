"""Checks the promises of a cluster: when a put is answered, after each step, and at the end.

At the instant of PUT_OK, the record would survive the worst crash of every node that the mode
promises (P1):

    SYNC_MASTER   SYNC_FLUSH    on the master's platter, and on that of a slave with SYNC_FLUSH
                  ASYNC_FLUSH   in the master's page cache, and in a slave's
    ASYNC_MASTER                the master alone

A comparison at the end alone would miss an early acknowledgement that happened to go well.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.errors import LogDamagedError
from hastore.sim.answer_oracle import NEXT_FILE_TIMEOUT_S, SYNC_FLUSH_TIMEOUT_S, AnswerOracle
from hastore.sim.cluster import DATA_DIR, HA_PORT
from hastore.sim.excuses import Losses, may_end
from hastore.sim.health_oracle import HealthOracle
from hastore.sim.link_oracle import LinkOracle
from hastore.sim.log_bytes import INTACT, first_damage, log_range
from hastore.sim.put import Put, PutOutcome, outcome_of
from hastore.sim.read_oracle import ReadOracle
from hastore.sim.violation import ViolationError
from hastore.status import BrokerRole, FlushDiskType
from hastore.store.record.record_check import RecordKind
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.log_walker import LogWalker

if TYPE_CHECKING:
    from hastore.message import PutMessageResult
    from hastore.sim.cluster import SimCluster, SimNode
    from hastore.sim.disk import SimDisk

_SYNC: Final = FlushDiskType.SYNC_FLUSH
_ANSWER_MARGIN_S: Final = 1.5
_SLOW_DISK_MARGIN_S: Final = 12.0  # where each call may take a second
_KEY: Final = re.compile(rb"KEYS\x01(put-\d+-)\x02")


@final
@attrs.define(eq=False)
class Oracle:
    """Records what was promised, and checks that it holds.  Broken rules raise ViolationError."""

    cluster: SimCluster
    puts: list[Put] = attrs.field(factory=list)
    waiting: dict[int, Put] = attrs.field(factory=dict)
    acknowledged: int = 0
    _compared: dict[str, tuple[int, int, int]] = attrs.field(factory=dict)
    _on_platter: dict[str, tuple[int, int]] = attrs.field(factory=dict)  # boots, checked up to
    losses: Losses = attrs.field(init=False)
    rotten: dict[str, int] = attrs.field(factory=dict)  # slave: log offset of a bit that flipped
    reads: ReadOracle = attrs.field(init=False)
    links: LinkOracle = attrs.field(init=False)
    answers: AnswerOracle = attrs.field(init=False)
    health: HealthOracle = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Make the oracles for reads, links, answers, health and losses."""
        self.health = HealthOracle(self.cluster)
        self.reads = ReadOracle(self.cluster)
        self.links = LinkOracle(self.cluster)
        self.answers = AnswerOracle(self.cluster, self.rotten)
        self.losses = Losses(self.cluster)

    # -- a put is answered -------------------------------------------------------------------------

    def answered(self, put: Put, result: PutMessageResult) -> None:
        """Check an answer at its instant."""
        put.status = result.status
        put.at = trio.current_time()
        if result.physic_offset is not None and result.next_offset is not None:
            put.physic_offset, put.next_offset = result.physic_offset, result.next_offset
        self.answers.answered(put)
        self.health.answered(put)
        put.outcome = outcome_of(result.status)
        if put.outcome is PutOutcome.OK:
            self.acknowledged += 1
            self._check_promise(put)

    def _check_promise(self, put: Put) -> None:
        config = self.cluster.config
        master = self.cluster.master
        start, end = put.physic_offset, put.next_offset
        record = log_range(master.live_disk, start, end, config.mapped_file_size, durable=False)
        if config.transient_store_pool and config.role is BrokerRole.ASYNC_MASTER:
            return  # in a write buffer: an ASYNC_MASTER promises no more
        if put.key not in record:
            raise ViolationError(
                "ack", f"put {put.number} is not in the master's log at {start}", put.number
            )
        on_platter = config.master_flush is _SYNC
        if on_platter and _durable(master, start, end, config.mapped_file_size) != record:
            detail = f"put {put.number} is not on the master's disk"
            raise ViolationError("ack", detail, put.number)
        if config.role is not BrokerRole.SYNC_MASTER:
            return
        wants_disk = config.slave_flush is _SYNC
        for slave in self.cluster.slaves:
            for disk in (slave.live_disk, *slave.lost_disks):  # its report may outlive the disk
                found = log_range(disk, start, end, config.mapped_file_size, durable=wants_disk)
                if found == record:
                    return
        where = "on a slave's disk" if wants_disk else "with any slave"
        detail = f"put {put.number} at {start} is not {where}"
        raise ViolationError("ack", detail, put.number)

    def master_crashed(self, *, lost_power: bool) -> None:
        """Record that messages which the mode does not promise to keep may be lost."""
        kept = self.losses.master_crashed(lost_power=lost_power)
        if kept is not None:
            self.reads.master_lost(kept)

    def node_ended(self, node: SimNode, error: BaseException | None) -> None:
        """Check that a failed disk or a damaged log explains why a node ended by itself.

        A master that failed may lose what it would lose by kill -9.
        """
        if error is not None and node.is_master:
            self.master_crashed(lost_power=False)
        elif node.is_master:
            self.losses.master_stopped()
        if isinstance(error, ViolationError):
            raise error
        if isinstance(error, LogDamagedError):
            if node.name not in self.rotten:
                raise ViolationError("damage", f"{node.name} refuses an intact log: {error}")
        elif not may_end(node, error):
            reason = "ended without error" if error is None else f"{type(error).__name__}: {error}"
            raise ViolationError("ended", f"{node.name}: {reason}") from error

    def heard(self, node: str, text: str) -> None:
        """Check what a node logs: the network corrupts nothing, so no frame is ever malformed."""
        if text.startswith("ha_link_broken") and "the master sent a frame" in text:
            raise ViolationError("frame", f"{node}: {text.partition('reason=')[2]}")

    def serves_with_flipped_bit(self, node: SimNode) -> bool:
        """Whether a slave with a flipped bit serves although its log is intact (P6).

        A start checks the last file, and never trims damage below the durable checkpoint: raises
        ViolationError if it trimmed this bit's record, or serves a log with damage.
        """
        slave, offset = self.cluster.serving_slave(node), self.rotten.get(node.name)
        if slave is None or offset is None:
            return False
        if slave.max_offset <= offset:
            detail = f"{node.name} trimmed a bad record at {offset} to {slave.max_offset}"
            raise ViolationError("trimmed damage", detail)
        if first_damage(node.live_disk) is not None:
            raise ViolationError("unseen damage", f"{node.name} serves a log rotten at {offset}")
        return True

    def _may_be_lost(self, put: Put) -> bool:
        return self.losses.may_lack(put.at, put.next_offset)

    # -- after each step ---------------------------------------------------------------------------

    def check_step(self) -> None:
        """Check what holds at any time: slaves are prefixes, acks are within the log."""
        for node in self.cluster.nodes:
            self._check_flushed(node)
        self.links.check_step()
        self.answers.check_step()
        self.health.check_step()
        master = self.cluster.serving_master
        if master is None:
            return
        log = master.commit_log
        if log.flushed_offset > log.max_offset:
            raise ViolationError("offsets", "the flushed offset is beyond the log's end")
        pushed = master.ha_service.ack_table.push2_slave_max_offset
        if pushed > log.max_offset:
            raise ViolationError(
                "offsets", f"a slave has acknowledged {pushed}, beyond the log's end"
            )
        for slave in self.cluster.slaves:
            self._check_prefix(slave)
        self._check_waiting()

    def _check_flushed(self, node: SimNode) -> None:
        """Compare what a node counts as flushed with what is on its platter (P7)."""
        serving = node.node
        if serving is None or node.name in self.rotten:
            return
        boots, start = self._on_platter.get(node.name, (0, 0))
        start, end = start if boots == node.boots else 0, serving.commit_log.flushed_offset
        if end <= start:
            return  # as after most steps
        start = max(start, serving.commit_log.min_offset)
        if end <= start:
            return
        size = self.cluster.config.mapped_file_size
        cached = log_range(node.live_disk, start, end, size, durable=False)
        if cached != log_range(node.live_disk, start, end, size, durable=True):
            detail = f"{node.name} counts {start}..{end} as flushed, but its disk has other bytes"
            raise ViolationError("flushed", detail)
        self._on_platter[node.name] = (node.boots, end)

    def _check_waiting(self) -> None:
        """Check that every put is answered in time, whatever disk and slaves do."""
        config, node = self.cluster.config, self.cluster.master
        if node.boot is None or node.frozen is not None:
            return
        flush_s = SYNC_FLUSH_TIMEOUT_S if config.master_flush is _SYNC else 0.0
        slave_s = config.slave_timeout_ms / 1000 if config.role is BrokerRole.SYNC_MASTER else 0.0
        now = trio.current_time() if self.waiting else 0.0
        for put in self.waiting.values():
            if put.boot is not node.boot:
                continue  # it died with the process
            since = max(put.submitted_at, node.went_on_at)
            longest = max(flush_s, slave_s) + _ANSWER_MARGIN_S
            if put.waits_for_file:
                longest += NEXT_FILE_TIMEOUT_S
            if node.slow_disk_s or node.slow_until >= since:
                longest += _SLOW_DISK_MARGIN_S
            if now - since > longest:
                detail = f"put {put.number} has no answer after {longest:.0f} s"
                raise ViolationError("answer", detail, put.number)

    def check_refusal(self, slave: SimNode) -> None:
        """Check that a slave's log had diverged or was damaged, if the slave says so."""
        self.losses.check_refusal(slave, is_rotten=slave.name in self.rotten)

    def _check_prefix(self, slave: SimNode) -> None:
        """Compare what a slave has received since the last check with its master's bytes (P3)."""
        node = self.cluster.serving_slave(slave)
        master = self.cluster.serving_master
        if node is None or master is None or node.ha_client.state.value != "streaming":
            return
        if not node.ha_client.is_in_step:
            return  # its log is not compared yet, and may turn out to have diverged
        boots = (self.cluster.master.boots, slave.boots)
        before = self._compared.get(slave.name)
        start = before[2] if before is not None and before[:2] == boots else 0
        end = min(node.max_offset, master.max_offset)
        if end <= start:
            return  # as after most steps
        if not self.cluster.network.are_connected(slave.host, self.cluster.master.host, HA_PORT):
            return  # it holds a half-open connection to an earlier boot, which may have lost a tail
        size = self.cluster.config.mapped_file_size
        ours = log_range(self.cluster.master.live_disk, start, end, size, durable=False)
        theirs = log_range(slave.live_disk, start, end, size, durable=False)
        if ours != theirs:
            at = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
            raise ViolationError("prefix", f"{slave.name} differs from its master at {start + at}")
        self._compared[slave.name] = (*boots, end)

    def unserved(self) -> str | None:
        """Return the key of a message that no consumer was served but should have been, or None."""
        if not self.cluster.config.listens or self.reads.is_lossy:
            return None
        served = self.reads.served_keys()
        return next(
            (key.decode() for key in keys(self.cluster.master.live_disk) if key not in served), None
        )

    # -- at the end --------------------------------------------------------------------------------

    def check_end(self) -> None:
        """Check the whole log: acknowledged messages are there once, failed ones are not."""
        found = keys(self.cluster.master.live_disk)
        for put in self.puts:
            count = found.get(put.key, 0)
            if count > 1:
                detail = f"put {put.number} is {count} times in the log"
                raise ViolationError("once", detail, put.number)
            if put.outcome is PutOutcome.OK and not count and not self._may_be_lost(put):
                detail = f"put {put.number} was acknowledged, but is lost"
                raise ViolationError("loss", detail, put.number)
            if put.outcome is PutOutcome.FAILED and count:
                detail = f"put {put.number} failed, but is in the log"
                raise ViolationError("false failure", detail, put.number)
        self.reads.check_end(found)
        size = self.cluster.config.mapped_file_size
        master = self.cluster.serving_master
        assert master is not None
        ours = log_range(self.cluster.master.live_disk, 0, master.max_offset, size, durable=False)
        for slave in self.cluster.slaves:
            theirs = log_range(slave.live_disk, 0, master.max_offset, size, durable=False)
            if ours != theirs:
                raise ViolationError("equal", f"{slave.name} and its master hold different logs")


def _durable(node: SimNode, start: int, end: int, mapped_file_size: int) -> bytes:
    return log_range(node.live_disk, start, end, mapped_file_size, durable=True)


def keys(disk: SimDisk) -> dict[bytes, int]:
    """Return how often each put's key is in a log.  Raises ViolationError for a damaged record."""
    found: dict[bytes, int] = {}
    if not disk.list_dir(f"{DATA_DIR}/commitlog"):
        return found
    for offset, check in LogWalker(disk, find_log(disk, DATA_DIR)).walk():
        if check.kind not in INTACT:
            raise ViolationError("damage", f"the log has {check.kind.name} at {offset}")
        if check.kind is RecordKind.MESSAGE:
            match = _KEY.search(check.properties)
            if match is not None:
                found[match[1]] = found.get(match[1], 0) + 1
    return found
