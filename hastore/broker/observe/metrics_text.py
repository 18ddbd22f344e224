"""A status as Prometheus reads it: the text format 0.0.4.

::

    # HELP hastore_put_total Puts since the start, by their status.
    # TYPE hastore_put_total counter
    hastore_put_total{status="PUT_OK"} 12345

Pure.  What is not known has no sample: a missing lag is not a lag of 0.  A slave's name here is its
address on the master, so one that connects anew is a new series; ``max()`` over them is the thing
to alert on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hastore.concurrency.latency_histogram import BUCKETS, LatencyHistogram
from hastore.status import BrokerRole, HAClientState, HAConnectionState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hastore.broker.observe.node_status import MasterLink, NodeStatus, SlaveRow

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
# Buckets 2^i µs; every other one up to 67 s is enough for a graph, and half the series.
_SHOWN_BUCKETS: Final = range(2, 27, 2)
_SLAVE_STATES: Final = (
    HAConnectionState.CONNECTED,
    HAConnectionState.CATCHING_UP,
    HAConnectionState.STREAMING,
)

Labels = dict[str, str]
Sample = tuple[Labels, float | int | None]


def metrics_text(status: NodeStatus) -> str:
    """Give the whole page."""
    return "".join(f"{line}\n" for line in _lines(status))


def _lines(status: NodeStatus) -> Iterator[str]:
    info = {
        "name": status.name,
        "cluster": status.cluster,
        "flush": status.flush_disk_type,
    }
    yield from _family("hastore_info", "gauge", "Which node this is.", [(info, 1)])
    roles: list[Sample] = [
        ({"role": role.value}, int(role.value == status.role)) for role in BrokerRole
    ]
    yield from _family("hastore_role", "gauge", "1 for what the node is.", roles)
    for name, text, value in _single_values(status):
        yield from _family(name, "gauge", text, [({}, value)])
    if status.master_link is None:
        yield from _master(status)
    else:
        yield from _link(status.master_link)
    yield from _stages(status)


def _single_values(status: NodeStatus) -> list[tuple[str, str, float | int | None]]:
    return [
        ("hastore_uptime_seconds", "Time since the start.", status.uptime_s),
        ("hastore_commitlog_min_offset", "First byte of the log.", status.min_offset),
        ("hastore_commitlog_max_offset", "End of the log.", status.max_offset),
        ("hastore_commitlog_flushed_offset", "End of what is on disk.", status.flushed_offset),
        ("hastore_commitlog_confirm_offset", "Consumers may read up to.", status.confirm_offset),
        ("hastore_disk_free_bytes", "Free on the store's file system.", status.disk_free_bytes),
        ("hastore_disk_used_ratio", "How full that is, 0 to 1.", status.disk_used_ratio),
        (
            "hastore_dispatch_behind_bytes",
            "Confirmed, and not readable by consumers yet.",
            status.dispatch_behind_bytes,
        ),
    ]


def _master(status: NodeStatus) -> Iterator[str]:
    puts: list[Sample] = [({"status": name}, n) for name, n in status.put_counts.items()]
    yield from _family("hastore_put_total", "counter", "Puts since the start, by status.", puts)
    is_refusing = int(status.puts_refused_because is not None)
    has_slave = int(status.slave_unavailable_because is None)
    for name, text, value in (
        ("hastore_put_waiting", "Puts that wait for a slave now.", status.waiting_for_slave),
        ("hastore_put_refused", "1 while puts are refused.", is_refusing),
        ("hastore_ha_slaves", "Slaves that follow now.", len(status.current_followers)),
        ("hastore_ha_slave_available", "1 while one is near enough to wait for.", has_slave),
        ("hastore_ha_acks_needed", "Acks that make a put PUT_OK.", status.acks_needed),
        (
            "hastore_ha_acknowledged_offset",
            "Highest end that a slave has acknowledged.",
            status.push2_slave_max_offset,
        ),
    ):
        yield from _family(name, "gauge", text, [({}, value)])
    yield from _slaves(status.slaves)


def _slaves(slaves: Sequence[SlaveRow]) -> Iterator[str]:
    def each(name: str, kind: str, text: str, values: list[float | int | None]) -> Iterator[str]:
        rows = zip(slaves, values, strict=True)
        yield from _family(name, kind, text, [({"slave": row.address}, v) for row, v in rows])

    yield from each(
        "hastore_ha_slave_sent_offset", "gauge", "Sent up to.", [row.sent_offset for row in slaves]
    )
    yield from each(
        "hastore_ha_slave_ack_offset", "gauge", "Acknowledged.", [row.ack_offset for row in slaves]
    )
    yield from each(
        "hastore_ha_slave_lag_bytes", "gauge", "Bytes behind.", [row.lag_bytes for row in slaves]
    )
    yield from each(
        "hastore_ha_slave_lag_seconds",
        "gauge",
        "How long ago the log's end passed what it has acknowledged.",
        [row.lag_s for row in slaves],
    )
    yield from each(
        "hastore_ha_slave_lag_seconds_is_least",
        "gauge",
        "1 where it is at least that: what it lacks is older than this node's start.",
        [None if row.lag_s is None else int(row.lag_s_is_least) for row in slaves],
    )
    yield from each(
        "hastore_ha_slave_last_report_age_seconds",
        "gauge",
        "Time since it was last heard.",
        [row.last_report_age_s for row in slaves],
    )
    yield from each(
        "hastore_ha_slave_sent_bytes_total",
        "counter",
        "Bytes sent on this connection.",
        [row.sent_bytes for row in slaves],
    )
    states: list[Sample] = [
        ({"slave": row.address, "state": state.value}, int(row.state == state.value))
        for row in slaves
        for state in _SLAVE_STATES
    ]
    yield from _family("hastore_ha_slave_state", "gauge", "1 for its state.", states)


def _link(link: MasterLink) -> Iterator[str]:
    states: list[Sample] = [
        ({"state": state.value}, int(link.state == state.value)) for state in HAClientState
    ]
    yield from _family("hastore_ha_link_state", "gauge", "1 for the state of the link.", states)
    for name, kind, text, value in (
        ("hastore_ha_link_lag_bytes", "gauge", "Bytes behind, as known here.", link.lag_bytes),
        ("hastore_ha_link_lag_seconds", "gauge", "Age of what comes in.", link.lag_s),
        (
            "hastore_ha_link_last_read_age_seconds",
            "gauge",
            "Time since the master was last heard.",
            link.last_read_age_s,
        ),
        (
            "hastore_ha_link_received_bytes_total",
            "counter",
            "Bytes received since the start.",
            link.received_bytes,
        ),
        (
            "hastore_ha_link_connections_total",
            "counter",
            "Connections made since the start.",
            link.connections,
        ),
    ):
        yield from _family(name, kind, text, [({}, value)])


def _stages(status: NodeStatus) -> Iterator[str]:
    name = "hastore_ha_ack_seconds"
    yield f"# HELP {name} What a put waits for, by stage; append is a sample."
    yield f"# TYPE {name} histogram"
    for stage, data in status.stages.items():
        histogram = LatencyHistogram.from_dict(data)
        below = [0]
        for count in histogram.buckets[: BUCKETS - 1]:
            below.append(below[-1] + count)
        for bucket in _SHOWN_BUCKETS:  # what is less than 2^i µs is in buckets 0 to i
            labels = {"stage": stage, "le": repr((1 << bucket) / 1e6)}
            yield _sample(f"{name}_bucket", labels, below[bucket + 1])
        yield _sample(f"{name}_bucket", {"stage": stage, "le": "+Inf"}, histogram.count)
        yield _sample(f"{name}_sum", {"stage": stage}, histogram.sum_s)
        yield _sample(f"{name}_count", {"stage": stage}, histogram.count)


def _family(name: str, kind: str, text: str, samples: list[Sample]) -> Iterator[str]:
    """One metric; nothing at all where no sample is known."""
    known = [(labels, value) for labels, value in samples if value is not None]
    if not known:
        return
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for labels, value in known:
        yield _sample(name, labels, value)


def _sample(name: str, labels: Labels, value: float) -> str:
    pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{pairs}}} {value!r}" if pairs else f"{name} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
