"""The status of a master with two slaves, and that of a slave."""

import attrs

from hastore.broker.observe.node_status import MasterLink, NodeStatus, SlaveRow

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
