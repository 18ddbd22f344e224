"""The status of a node: one value and its JSON form, without I/O.

``to_dict`` returns the form ``hastore.status/1``: its keys are stable, offsets and sizes are bytes,
durations end in ``_s``.  ``from_dict`` reads it back and
ignores unknown keys.  Unknown values are
None: a slave reports one offset to its master, so only the slave itself knows both what it has
written and what it has flushed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypedDict

import attrs

# Not for type checkers alone: ``read_shape`` looks the fields' types up in this module.
from hastore.broker.clock.clock_status import ClockStatus  # noqa: TC001
from hastore.broker.observe.coordinator_status import CoordinatorStatus  # noqa: TC001
from hastore.broker.observe.sync_state_status import SyncStateStatus  # noqa: TC001
from hastore.concurrency.latency_histogram import HistogramRow  # noqa: TC001
from hastore.tls.tls_contexts import TlsStatus  # noqa: TC001
from hastore.wire.json_shape import read_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA: Final = "hastore.status/1"
SILENT_MAX_S: Final = 20.0  # if a node's status does not have it


@attrs.frozen(kw_only=True)
class SlaveRow:
    """One connected slave as its master sees it; offsets are None before its first report."""

    address: str
    state: str
    sent_offset: int | None
    ack_offset: int | None
    lag_bytes: int | None
    connected_s: float
    last_report_age_s: float
    rate_bytes_per_s: float
    sent_bytes: int
    # How long ago the master's end passed its ack; ``is_least``: that, or longer.
    lag_s: float | None = None
    lag_s_is_least: bool = False
    eta_s: float | None = None  # until it has caught up at the present rates
    # From the slave's own status, if the program that asks has merged both.
    name: str | None = None
    written_offset: int | None = None
    flushed_offset: int | None = None
    ack_level: str | None = None
    messages_per_s: float | None = None
    note: str | None = None  # why the offset where it began is suspicious
    node_id: int | None = None  # of the node of a replica group whose acks count on this link
    node_role: str | None = None  # that node's ``GroupNodeRow.role``

    @property
    def is_awaited(self) -> bool:
        """Whether a put may wait for it: not for a learner, nor for an observer."""
        return self.node_role not in {"learner", "observer"}


@attrs.frozen(kw_only=True)
class RefusalRow:
    """A connection to the HA port that was refused."""

    address: str
    reason: str
    hint: str | None
    reported_offset: int | None
    age_s: float
    is_id_taken: bool = False  # another node of the replica group has its id


@attrs.frozen(kw_only=True)
class MasterLink:
    """A slave's link to its master."""

    address: str
    state: str
    reason: str | None
    hint: str | None
    reported_offset: int | None
    master_offset: int | None
    last_read_age_s: float | None
    rate_bytes_per_s: float
    received_bytes: int
    connections: int
    local_address: str | None = None  # our end of the link: the slave's address on its master
    # Bytes announced by the master that it does not have; under load an estimate by the age of its
    # newest record.
    lag_bytes: int | None = None
    lag_is_estimate: bool = False
    lag_s: float | None = None  # how old the newest record was when bytes last came
    newest_record_age_s: float | None = None  # by two machines' wall clocks
    # The longest silence of the master before the slave closes the link (housekeeping).
    silent_max_s: float | None = None
    masters_epoch: int | None = None  # named by the newest handshake; None: none, or classic

    @property
    def is_silent(self) -> bool:
        """Whether the master has been silent for too long."""
        limit_s = SILENT_MAX_S if self.silent_max_s is None else self.silent_max_s
        return self.last_read_age_s is not None and self.last_read_age_s > limit_s


@attrs.frozen(kw_only=True)
class TableCopies:
    """What a slave copies beside the log: topics, groups, consumer and delay offsets."""

    address: str  # of the client port that is asked
    reason: str | None  # why the last attempt to ask failed; None: it did not, or there was none
    hint: str | None
    age_s: float | None  # since all tables were asked for; None: never
    refused: dict[str, str] = attrs.field(factory=dict)  # table → why it was not taken
    delay_offsets_wait: bool = False  # until this log has the deliveries that they pass


@attrs.frozen(kw_only=True)
class DiskRow:
    """A file system, and which directories of the store are on it."""

    directories: tuple[str, ...]  # below the data directory, which itself is "."
    used_ratio: float
    free_bytes: int
    free_inodes: int | None = None  # None if the file system has no such limit


@attrs.frozen(kw_only=True)
class FailedWriteRow:
    """What could not be stored, or removed, and still is not."""

    path: str  # below the data directory
    reason: str
    hint: str | None
    is_removal: bool
    since_s: float


@attrs.frozen(kw_only=True)
class PutFailure:
    """The last put that failed through its master alone: its disk, its next file."""

    status: str
    reason: str | None
    count: int  # of such failures without a success between
    age_s: float
    is_over: bool  # the disk has taken a put since, or whatever failed works again


@attrs.frozen(kw_only=True)
class AccessStatus:
    """The permissions in force; ``fault``: why the file's present version is not."""

    file: str
    accounts: int
    failed_attempts: int  # since the start, with an unknown key or a wrong signature
    fault: str | None
    hint: str | None


@attrs.frozen(kw_only=True)
class UnverifiedLog:
    """Messages in [begin, end) of the log may be missing or wrong (``why``).

    The node is not elected until its whole log has been compared with its master's.
    """

    begin: int
    end: int
    why: str
    compared_to: int | None = None  # an offset, while it compares; None: it does not
    waits_because: str | None = None  # why it does not compare now, if known


@attrs.frozen(kw_only=True)
class LogDamage:
    """A record inside the log is damaged; a member has met it in a comparison with its own log."""

    physic_offset: int
    reason: str  # such as bad-body-crc


class _Cut(TypedDict):
    """What readers of a status need of ``LogCut.to_json``."""

    offset: int
    end: int
    reason: str
    time_ms: int
    messages: dict[str, int]


@attrs.frozen(kw_only=True)
class NodeStatus:
    """A node at one instant."""

    name: str
    cluster: str
    role: str
    state: str
    address: str | None
    ha_address: str | None
    data_dir: str
    process_id: int
    uptime_s: float
    mapped_file_size: int
    mapped_files: int
    flush_disk_type: str
    min_offset: int
    max_offset: int
    flushed_offset: int
    disk_free_bytes: int | None  # of the fullest file system, as ``disk_used_ratio``
    push2_slave_max_offset: int | None = None
    slaves: tuple[SlaveRow, ...] = ()
    observer_address: str | None = None  # a group's port for classic slaves that never count
    observers: tuple[SlaveRow, ...] = ()  # those; they get what is below ``confirm_offset``
    refused: tuple[RefusalRow, ...] = ()
    slave_unavailable_because: str | None = None
    master_link: MasterLink | None = None
    # Messages by status, and how many batches these came in; one message alone is no batch.
    put_counts: dict[str, int] = attrs.field(factory=dict)
    put_batch_counts: dict[str, int] = attrs.field(factory=dict)
    waiting_for_slave: int = 0
    dispatch_behind_bytes: int = 0  # confirmed, and not yet readable by consumers
    dispatch_fault: str | None = None  # why the dispatch has stopped
    cannot_store_because: str | None = None  # what fails that it writes; None: it can store
    acks_needed: int = 0  # slaves that must acknowledge a put before it is PUT_OK
    ack_level: str | None = None  # a slave: what it acknowledges is "received" or "flushed"
    slave_lag_max: int | None = None  # a slave further behind does not count as available
    slave_timeout_s: float | None = None  # how long a put waits for its acks
    puts_refused_because: str | None = None
    confirm_offset: int | None = None  # consumers may read what is below
    written_bytes_per_s: float | None = None
    messages_per_s: float | None = None  # appended, over the last seconds
    wall_time_ms: int | None = None  # this node's clock when it answered
    disk_used_ratio: float | None = None
    disk_full_ratio: float | None = None  # above it puts are refused
    failed_writes: tuple[FailedWriteRow, ...] = ()  # the longest first
    next_file_fault: str | None = None  # why the log's next file cannot be made
    log_is_full: bool = False  # nothing can be appended before the next file is made
    put_failure: PutFailure | None = None  # a master's
    disks: tuple[DiskRow, ...] = ()  # the fullest first; empty if they cannot be read
    metrics_address: str | None = None
    start_id: str | None = None  # of its process, as in node.json: so this node has that directory
    ha_protocol: str | None = None  # "classic" or "autoswitch"
    node_id: int | None = None  # in its replica group
    replica_group: str | None = None
    epoch: int | None = None  # the newest of its log; None: none, or not autoswitch
    epoch_start_offset: int | None = None  # the first byte of ``epoch``
    end_epoch: int | None = None  # of the log's last byte: ``epoch`` may begin at its end, or above
    seen_epoch: int | None = None  # the newest that it has heard of
    last_cut: dict[str, Any] | None = None  # LogCut's JSON form: the newest that is kept
    cuts: int | None = None  # of a slave's log by this process; None: not in a replica group
    cut_bytes: int | None = None  # by all of these
    cut_refused_because: str | None = None  # a cut that is needed, and was not made
    sync_state: SyncStateStatus | None = None  # the master of a replica group
    table_copies: TableCopies | None = None  # a slave's; None: it asks nobody
    coordinator: CoordinatorStatus | None = None  # None: it has none
    unverified: UnverifiedLog | None = None  # of a node of a replica group; None: all counts
    log_damage: LogDamage | None = None  # None: no member has met any
    # Tables that the start found torn, by path: why, and what it read instead.
    torn_tables: dict[str, str] = attrs.field(factory=dict)
    access: AccessStatus | None = None  # None: its client port needs no access keys
    tls: TlsStatus | None = None  # None: it has no certificate
    clock: ClockStatus | None = None  # None: an earlier version's status
    # Requests that were refused because a quota was used up, by the quota's setting.
    quota_refusals: dict[str, int] = attrs.field(factory=dict)
    # "append", "flush", "sent", "acknowledged" → LatencyHistogram's JSON form, since the start
    stages: dict[str, HistogramRow] = attrs.field(factory=dict)

    @property
    def followers(self) -> tuple[SlaveRow, ...]:
        """The connections that have reported; others may not be slaves."""
        return tuple(row for row in self.slaves if row.ack_offset is not None)

    @property
    def current_slaves(self) -> tuple[SlaveRow, ...]:
        """The connections, each slave once: without its old sockets that are still open."""
        return without_old_sockets(self.slaves)

    @property
    def current_followers(self) -> tuple[SlaveRow, ...]:
        """Those of ``current_slaves`` that have reported."""
        return tuple(row for row in self.current_slaves if row.ack_offset is not None)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; what few nodes have, such as ``tls``, only where there is one."""
        status = {"schema": SCHEMA, **attrs.asdict(self)}
        for name in ("tls", "unverified", "log_damage", "torn_tables"):
            if not status[name]:
                del status[name]
        return status

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> NodeStatus:
        """Read the JSON form of this version or another one back.  Raises ProtocolError."""
        status = read_shape(cls, data, "the status")
        if status.last_cut is not None:
            read_shape(_Cut, status.last_cut, "the status's last_cut")
        return status


def without_old_sockets(slaves: Sequence[SlaveRow]) -> tuple[SlaveRow, ...]:
    """Leave out the sockets whose slaves have probably connected again.

    A slave whose link broke connects again at once; its master may consider the old socket open
    until the housekeeping closes it.  An old socket has the address of a newer one, and has been
    silent since that was connected.  A slave reports every 5 s, so of two slaves at one address
    (one host, or one NAT) the older may be taken for the other's old socket that long.  Each newer
    socket belongs to one slave, so it accounts for at most one old socket.
    """
    followers = [index for index, row in enumerate(slaves) if row.ack_offset is not None]
    followers.sort(key=lambda index: slaves[index].connected_s)  # the newest first
    old: set[int] = set()
    for place, newer in enumerate(followers):
        came_s, host = slaves[newer].connected_s, _host(slaves[newer].address)
        for before in followers[place + 1 :]:
            row = slaves[before]
            is_silent = row.connected_s > came_s <= row.last_report_age_s
            if is_silent and before not in old and _host(row.address) == host:
                old.add(before)
                break
    return tuple(row for index, row in enumerate(slaves) if index not in old)


def _host(address: str) -> str:
    """Return the host of ``host:port`` or ``[host]:port``; one spelling for IPv4."""
    host = address.rpartition(":")[0].strip("[]").lower()
    return host.removeprefix("::ffff:") if "." in host else host
