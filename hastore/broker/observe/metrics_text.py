"""A status as Prometheus reads it: the text format 0.0.4.

::

    # HELP hastore_put_total Messages put since the start, by status.
    # TYPE hastore_put_total counter
    hastore_put_total{status="PUT_OK"} 12345.0

Pure.  An unknown value has no sample: it is not a lag of 0.  The ``slave`` label is the slave's
address on the master, so one that connects again is a new series; alerts should use ``max()``.
In a replica group the ``node`` label is the node's id, which stays.

prometheus_client takes 25 ms to import, so only nodes with a metrics port import it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hastore.broker.observe.coordinator_status import NO_SPACE
from hastore.broker.observe.findings import faults
from hastore.concurrency.latency_histogram import BUCKETS, LatencyHistogram
from hastore.status import BrokerRole, HAClientState, HAConnectionState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from enum import Enum

    from hastore.broker.observe.coordinator_status import CoordinatorStatus
    from hastore.broker.observe.node_status import (
        AccessStatus,
        DiskRow,
        MasterLink,
        NodeStatus,
        SlaveRow,
    )
    from hastore.broker.observe.sync_state_status import GroupNodeRow, SyncStateStatus
    from hastore.tls.tls_contexts import TlsStatus

# Buckets 2^i µs; every other one up to 67 s is enough for a graph, and half the series.
_SHOWN_BUCKETS: Final = range(2, 27, 2)
_SLAVE_STATES: Final = (
    HAConnectionState.CONNECTED,
    HAConnectionState.CATCHING_UP,
    HAConnectionState.STREAMING,
)
_LINK_STATES: Final = tuple(
    state for state in HAClientState if state is not HAClientState.UNASSIGNED
)

Labels = dict[str, str]
Number = float | int | None


def metrics_text(status: NodeStatus) -> bytes:
    """Return the whole page."""
    return generate_latest(_StatusCollector(status))


@final
@attrs.frozen
class _StatusCollector(Collector):
    """The metrics of one status."""

    status: NodeStatus

    def collect(self) -> Iterator[Metric]:
        """Return the metrics that have a sample."""
        return (metric for metric in _metrics(self.status) if metric.samples)


def _metrics(status: NodeStatus) -> Iterator[Metric]:
    info = {"name": status.name, "cluster": status.cluster, "flush": status.flush_disk_type}
    yield _metric("hastore_info", "Which node this is.", [(info, 1)])
    roles = _one_of("role", BrokerRole, status.role)
    yield _metric("hastore_role", "1 for the node's role.", roles)
    for name, text, value in (
        ("uptime_seconds", "Time since the start.", status.uptime_s),
        ("commitlog_min_offset", "First byte of the log.", status.min_offset),
        ("commitlog_max_offset", "End of the log.", status.max_offset),
        ("commitlog_flushed_offset", "End of what is on the disk.", status.flushed_offset),
        ("commitlog_confirm_offset", "End of what consumers may read.", status.confirm_offset),
        ("epoch", "Newest epoch of the log, in a replica group.", status.epoch),
        ("seen_epoch", "Newest epoch that the node has heard of.", status.seen_epoch),
        (
            "disk_free_bytes",
            "Free bytes on the fullest of the store's file systems.",
            status.disk_free_bytes,
        ),
        ("disk_used_ratio", "Used part of that file system, 0 to 1.", status.disk_used_ratio),
        (
            "failed_writes",
            "Files and directories that could not be stored, and still are not.",
            len(status.failed_writes),
        ),
        (
            "dispatch_behind_bytes",
            "Confirmed bytes that consumers cannot read yet.",
            status.dispatch_behind_bytes,
        ),
    ):
        yield _metric(f"hastore_{name}", text, [({}, value)])
    for name, text, value_of in _OF_DIRECTORY:
        samples = [
            ({"directory": directory}, value_of(row))
            for row in status.disks
            for directory in row.directories
        ]
        yield _metric(f"hastore_directory_disk_{name}", text, samples)
    if status.master_link is None:
        yield from _master(status)
    else:
        yield from _link(status.master_link)
        for name, text, value in (
            ("cuts_total", "Cuts of the log since the start.", status.cuts),
            ("cut_bytes_total", "Bytes cut off the log since the start.", status.cut_bytes),
        ):
            yield _metric(f"hastore_{name}", text, [({}, value)])
    if status.clock is not None:
        in_doubt = int(status.clock.in_doubt_because is not None)
        lead_s = status.clock.store_time_lead_s
        for name, text, value in (
            ("clock_in_doubt", "1 while the clock is in doubt.", in_doubt),
            ("store_time_lead_seconds", "Log's last store time minus the clock; 0: past.", lead_s),
        ):
            yield _metric(f"hastore_{name}", text, [({}, value)])
    if status.coordinator is not None:
        yield from _coordinator(status.coordinator)
    refusals = [({"quota": name}, count) for name, count in status.quota_refusals.items()]
    text = "Requests that were refused because a quota was used up, since the start, by quota."
    yield _metric("hastore_quota_refusals_total", text, refusals)
    if status.access is not None:
        yield from _access(status.access)
    if status.tls is not None:
        yield from _tls(status.tls)
    yield _stages(status)


_OF_DIRECTORY: Final[Sequence[tuple[str, str, Callable[[DiskRow], Number]]]] = (
    ("free_bytes", "Free bytes on the directory's file system.", lambda row: row.free_bytes),
    ("used_ratio", "Used part of that file system, 0 to 1.", lambda row: row.used_ratio),
    ("free_inodes", "Files that can still be made on it.", lambda row: row.free_inodes),
)


def _master(status: NodeStatus) -> Iterator[Metric]:
    puts = [({"status": name}, count) for name, count in status.put_counts.items()]
    yield _metric("hastore_put_total", "Messages put since the start, by status.", puts)
    batches = [({"status": name}, count) for name, count in status.put_batch_counts.items()]
    yield _metric("hastore_put_batch_total", "Batches among them, by status.", batches)
    is_refusing = int(bool(faults(status, "puts")))
    has_slave = int(status.slave_unavailable_because is None)
    for name, text, value in (
        ("put_waiting", "Puts that wait for a slave now.", status.waiting_for_slave),
        ("put_refused", "1 while puts are refused.", is_refusing),
        ("ha_slaves", "Slaves that follow now.", len(status.current_followers)),
        ("ha_slave_available", "1 while a slave is available.", has_slave),
        ("ha_acks_needed", "Acks that make a put PUT_OK.", status.acks_needed),
        (
            "ha_acknowledged_offset",
            "Highest offset that a slave has acknowledged.",
            status.push2_slave_max_offset,
        ),
    ):
        yield _metric(f"hastore_{name}", text, [({}, value)])
    yield from _slaves(status.slaves)
    if status.sync_state is not None:
        yield from _group(status.sync_state)


_OF_SLAVE: Final[Sequence[tuple[str, str, Callable[[SlaveRow], Number]]]] = (
    ("sent_offset", "End of what was sent to it.", lambda row: row.sent_offset),
    ("ack_offset", "End of what it has acknowledged.", lambda row: row.ack_offset),
    ("lag_bytes", "Bytes behind.", lambda row: row.lag_bytes),
    (
        "lag_seconds",
        "How long ago the log's end passed what it has acknowledged.",
        lambda row: row.lag_s,
    ),
    (
        "lag_seconds_is_least",
        "1 if the lag may be longer: it began before this node's start.",
        lambda row: None if row.lag_s is None else int(row.lag_s_is_least),
    ),
    (
        "last_report_age_seconds",
        "Time since its last report.",
        lambda row: row.last_report_age_s,
    ),
    ("sent_bytes_total", "Bytes sent on this connection.", lambda row: row.sent_bytes),
)


def _slaves(slaves: Sequence[SlaveRow]) -> Iterator[Metric]:
    for name, text, value in _OF_SLAVE:
        samples = [({"slave": row.address}, value(row)) for row in slaves]
        yield _metric(f"hastore_ha_slave_{name}", text, samples)
    states = [
        ({"slave": row.address, **labels}, is_so)
        for row in slaves
        for labels, is_so in _one_of("state", _SLAVE_STATES, row.state)
    ]
    yield _metric("hastore_ha_slave_state", "1 for its state.", states)


_OF_NODE: Final[Sequence[tuple[str, str, Callable[[GroupNodeRow], Number]]]] = (
    ("in_sync", "1 for a member of the SyncStateSet.", lambda row: int(row.is_member)),
    ("connected", "1 while its link is up.", lambda row: int(row.is_connected)),
    ("ack_offset", "End of what it has acknowledged.", lambda row: row.ack_offset),
    ("lag_bytes", "Bytes behind.", lambda row: row.lag_bytes),
    (
        "lag_seconds",
        "How long ago the log's end passed what it has acknowledged.",
        lambda row: row.lag_s,
    ),
)


def _group(group: SyncStateStatus) -> Iterator[Metric]:
    proposal = group.proposal
    for name, text, value in (
        ("epoch_start_offset", "First byte of the master's epoch.", group.epoch_start_offset),
        ("epoch_age_seconds", "Time since the master's epoch began.", group.epoch_age_s),
        ("sync_state_set_members", "Nodes of the SyncStateSet.", len(group.members)),
        (
            "sync_state_set_members_min",
            "With fewer puts are refused: min_in_sync_replicas.",
            group.min_in_sync_replicas,
        ),
        (
            "acknowledged_copies",
            "Nodes that have a message which is PUT_OK now; none while puts are refused.",
            group.copies,
        ),
        (
            "sync_state_set_proposal_age_seconds",
            "How long a change of the set has not been answered.",
            0.0 if proposal is None else proposal.age_s,
        ),
        ("confirm_lag_bytes", "From the confirm offset to the end.", group.confirm_lag_bytes),
        (
            "confirm_lag_seconds",
            "How long ago the log's end passed the confirm offset.",
            group.confirm_lag_s,
        ),
    ):
        yield _metric(f"hastore_{name}", text, [({}, value)])
    # An observer may have the id of a node, and never counts.
    nodes = [row for row in group.nodes if row.role not in {"master", "observer"}]
    for name, text, of_node in _OF_NODE:
        samples = [({"node": str(row.node_id)}, of_node(row)) for row in nodes]
        yield _metric(f"hastore_ha_node_{name}", text, samples)


def _link(link: MasterLink) -> Iterator[Metric]:
    states = _one_of("state", _LINK_STATES, link.state)
    yield _metric("hastore_ha_link_state", "1 for the state of the link.", states)
    for name, text, value in (
        ("lag_bytes", "Bytes behind, as known here.", link.lag_bytes),
        ("lag_seconds", "Lag in time, as estimated here.", link.lag_s),
        (
            "last_read_age_seconds",
            "Time since the master was last heard.",
            link.last_read_age_s,
        ),
        ("received_bytes_total", "Bytes received since the start.", link.received_bytes),
        ("connections_total", "Connections made since the start.", link.connections),
        ("masters_epoch", "The epoch that the master named last.", link.masters_epoch),
    ):
        yield _metric(f"hastore_ha_link_{name}", text, [({}, value)])


def _coordinator(coordinator: CoordinatorStatus) -> Iterator[Metric]:
    for name, text, value in (
        ("reachable", "1 while the coordinator answers.", int(coordinator.is_reachable)),
        (
            "last_contact_age_seconds",
            "Time since the coordinator said something.",
            coordinator.last_contact_age_s,
        ),
        ("epoch", "The group's epoch at the coordinator.", coordinator.epoch),
        (
            "lease_left_seconds",
            "For how long this master may decide about puts.",
            coordinator.lease_left_s,
        ),
        (
            "failsafe",
            "1 while this master leads by the promises of its members.",
            int(coordinator.is_failsafe),
        ),
        ("alarm", "1 while the alarm stops elections.", int(coordinator.alarm is not None)),
        ("paused", "1 while elections are paused.", int(coordinator.is_paused)),
        (
            "full",
            "1 while the coordinator takes no writes for want of space.",
            int(NO_SPACE in coordinator.etcd_alarms),
        ),
    ):
        yield _metric(f"hastore_coordinator_{name}", text, [({}, value)])


def _access(access: AccessStatus) -> Iterator[Metric]:
    for name, text, value in (
        (
            "failed_attempts_total",
            "Requests with an unknown access key or a wrong signature, since the start.",
            access.failed_attempts,
        ),
        (
            "file_refused",
            "1 while the present version of the permissions file is not in force.",
            int(access.fault is not None),
        ),
    ):
        yield _metric(f"hastore_access_{name}", text, [({}, value)])


def _tls(tls: TlsStatus) -> Iterator[Metric]:
    for name, text, value in (
        (
            "certificate_not_after_seconds",
            "Until when the node's certificate is valid, in seconds since 1970.",
            tls.not_after,
        ),
        (
            "ca_not_after_seconds",
            "Until when the CA's certificate is valid, in seconds since 1970.",
            tls.ca_not_after,
        ),
        (
            "crl_next_update_seconds",
            "When the list of withdrawn certificates must be replaced, in seconds since 1970.",
            tls.crl_next_update,
        ),
        (
            "files_refused",
            "1 while the present version of the certificate files is not in force.",
            int(tls.fault is not None),
        ),
    ):
        yield _metric(f"hastore_tls_{name}", text, [({}, value)])


def _stages(status: NodeStatus) -> Metric:
    name = "hastore_ha_ack_seconds"
    metric = Metric(name, "What a put waits for, by stage; append is a sample.", "histogram")
    for stage, data in status.stages.items():
        histogram = LatencyHistogram.from_dict(data)
        below = [0]
        for count in histogram.buckets[: BUCKETS - 1]:
            below.append(below[-1] + count)
        # Times below 2^i µs are in buckets 0 to i.
        shown = [(repr((1 << bucket) / 1e6), below[bucket + 1]) for bucket in _SHOWN_BUCKETS]
        for le, count in (*shown, ("+Inf", histogram.count)):
            metric.add_sample(f"{name}_bucket", {"stage": stage, "le": le}, count)
        metric.add_sample(f"{name}_sum", {"stage": stage}, histogram.sum_s)
        metric.add_sample(f"{name}_count", {"stage": stage}, histogram.count)
    return metric


def _one_of(label: str, members: Iterable[Enum], value: str) -> list[tuple[Labels, Number]]:
    """Return a sample for each member: 1 for the one that has this value."""
    return [({label: member.value}, int(member.value == value)) for member in members]


def _metric(name: str, text: str, samples: Iterable[tuple[Labels, Number]]) -> Metric:
    """Return a metric with the known samples: a counter if its name ends in ``_total``."""
    base = name.removesuffix("_total")
    metric = Metric(base, text, "gauge" if base == name else "counter")
    for labels, value in samples:
        if value is not None:
            metric.add_sample(name, labels, value)
    return metric
