"""Several nodes' statuses as one picture: a master knows of its slaves only what they report.

A slave says where its end of the link is, and its master shows that very address.  Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.broker.observe.node_status import NodeStatus, SlaveRow


def merge(statuses: Sequence[NodeStatus]) -> list[NodeStatus]:
    """Give each master's rows what those slaves say of themselves; all else stays."""
    slaves = {
        status.master_link.local_address: status
        for status in statuses
        if status.master_link is not None and status.master_link.local_address is not None
    }
    return [
        attrs.evolve(
            status, slaves=tuple(_known(row, slaves.get(row.address)) for row in status.slaves)
        )
        for status in statuses
    ]


def _known(row: SlaveRow, slave: NodeStatus | None) -> SlaveRow:
    if slave is None:
        return row
    return attrs.evolve(
        row,
        name=slave.name,
        written_offset=slave.max_offset,
        flushed_offset=slave.flushed_offset,
        ack_level=slave.ack_level,
        messages_per_s=slave.messages_per_s,
    )


def worth_a_table(merged: Sequence[NodeStatus]) -> list[NodeStatus]:
    """Leave out the slaves that are in a master's rows and have nothing to complain of."""
    rowed = {row.address for status in merged for row in status.slaves if row.name is not None}
    return [status for status in merged if not _is_told(status, rowed)]


def _is_told(status: NodeStatus, rowed: set[str]) -> bool:
    link = status.master_link
    return (
        link is not None
        and link.local_address in rowed
        and link.reason is None
        and status.dispatch_fault is None
    )
