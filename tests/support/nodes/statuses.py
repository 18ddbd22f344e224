"""The status of a master with two slaves, and that of a slave."""

import itertools
from typing import Any

import attrs

from hastore.broker.observe.node_status import MasterLink, NodeStatus, SlaveRow
from hastore.broker.observe.sync_state_status import GroupNodeRow, SyncStateStatus

MASTER = NodeStatus(
    name="n1",
    cluster="c",
    role="SYNC_MASTER",
    state="serving",
    address="127.0.0.1:10911",
    ha_address="127.0.0.1:10912",
    data_dir="D1",
    process_id=1,
    uptime_s=750.0,
    mapped_file_size=1 << 30,
    mapped_files=1,
    flush_disk_type="ASYNC_FLUSH",
    min_offset=0,
    max_offset=1_073_921,
    flushed_offset=1_073_905,
    disk_free_bytes=5 << 30,
    push2_slave_max_offset=1_073_921,
    slaves=(
        SlaveRow(
            address="127.0.0.1:50212",
            state="streaming",
            sent_offset=1_073_921,
            ack_offset=1_073_921,
            lag_bytes=0,
            connected_s=9.0,
            last_report_age_s=0.003,
            rate_bytes_per_s=41.2 * (1 << 20),
            sent_bytes=1,
            lag_s=0.0,
        ),
        SlaveRow(
            address="127.0.0.1:50213",
            state="connected",
            sent_offset=None,
            ack_offset=None,
            lag_bytes=None,
            connected_s=9.0,
            last_report_age_s=3.1,
            rate_bytes_per_s=0.0,
            sent_bytes=0,
        ),
    ),
    put_counts={"PUT_OK": 12_345, "FLUSH_SLAVE_TIMEOUT": 0, "SLAVE_NOT_AVAILABLE": 2},
    waiting_for_slave=3,
    messages_per_s=1204.4,
)


SLAVE = attrs.evolve(
    MASTER,
    name="n2",
    role="SLAVE",
    state="diverged",
    ha_address=None,
    slaves=(),
    put_counts={},
    push2_slave_max_offset=None,
    master_link=MasterLink(
        address="127.0.0.1:10912",
        state="diverged",
        reason="master at 7, slave at 9",
        hint="hastore log diff",
        reported_offset=1_073_921,
        master_offset=1_173_921,
        last_read_age_s=None,
        rate_bytes_per_s=0.0,
        received_bytes=0,
        connections=1,
    ),
)


# A slave of a replica group whose log had to be cut.
MEMBER = attrs.evolve(
    SLAVE,
    state="streaming",
    ha_protocol="autoswitch",
    node_id=2,
    replica_group="g1",
    epoch=5,
    seen_epoch=5,
    confirm_offset=1_073_000,
    last_cut={
        "offset": 47_859,
        "end": 75_710,
        "reason": "the log of master 127.0.0.1:10912 agrees with this one up to 47859 only",
        "time_ms": 1_700_000_000_000,
        "epochs": [{"epoch": 1, "from": 47_859, "to": 75_710}],
        "messages": {"orders": 12, "audit": 3},
        "files": ["trimmed/00000000000000047859-1700000000000"],
    },
)

# The master of a replica group of three, whose third node has left.
GROUP_MASTER = attrs.evolve(
    MASTER,
    ha_protocol="autoswitch",
    node_id=1,
    replica_group="g1",
    epoch=7,
    epoch_start_offset=1_000_000,
    confirm_offset=1_073_921,
    acks_needed=1,
    slave_timeout_s=3.0,
    slaves=(attrs.evolve(MASTER.slaves[0], node_id=2, node_role="member"),),
    sync_state=SyncStateStatus(
        epoch=7,
        epoch_start_offset=1_000_000,
        epoch_age_s=720.0,
        members=(1, 2),
        configured_ids=(1, 2, 3),
        has_coordinator=False,
        proposal=None,
        in_sync_replicas="all",
        min_in_sync_replicas=2,
        confirm_offset=1_073_921,
        confirm_lag_bytes=0,
        confirm_lag_s=0.0,
        confirm_lag_s_is_least=False,
        may_lose_because=None,
        copies=2,
        nodes=(
            GroupNodeRow(
                node_id=1,
                role="master",
                address=None,
                is_connected=True,
                since_s=720.0,
                ack_offset=1_073_921,
                lag_bytes=0,
            ),
            GroupNodeRow(
                node_id=2,
                role="member",
                address="127.0.0.1:50212",
                is_connected=True,
                since_s=9.0,
                ack_offset=1_073_921,
                lag_bytes=0,
                lag_s=0.0,
            ),
            GroupNodeRow(
                node_id=3,
                role="learner",
                address=None,
                is_connected=False,
                since_s=61.0,
                ack_offset=None,
                lag_bytes=None,
                why_not="it closed its link",
            ),
        ),
    ),
)


def group_master(
    *nodes: dict[str, Any], status: dict[str, Any] | None = None, **group: Any
) -> NodeStatus:
    """GROUP_MASTER with changes to its nodes (the master's first), its set, and itself."""
    sync_state = GROUP_MASTER.sync_state
    assert sync_state is not None
    changes = itertools.chain(nodes, itertools.repeat({}))
    rows = map(lambda row, change: attrs.evolve(row, **change), sync_state.nodes, changes)
    changed = attrs.evolve(sync_state, nodes=tuple(rows), **group)
    return attrs.evolve(GROUP_MASTER, sync_state=changed, **(status or {}))
