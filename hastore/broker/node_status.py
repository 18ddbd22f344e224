"""What a node says of itself: one value, its JSON form, and nothing that does I/O.

``to_dict`` gives the form ``hastore.status/1``: its keys are stable, offsets and sizes are bytes,
durations end in ``_s``.  ``from_dict`` reads it back and ignores keys that it does not know.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

SCHEMA: Final = "hastore.status/1"


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


@attrs.frozen(kw_only=True)
class RefusalRow:
    """A connection to the HA port that was refused."""

    address: str
    reason: str
    hint: str | None
    reported_offset: int | None
    age_s: float


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
    disk_free_bytes: int | None
    push2_slave_max_offset: int | None = None
    slaves: tuple[SlaveRow, ...] = ()
    refused: tuple[RefusalRow, ...] = ()
    slave_unavailable_because: str | None = None
    master_link: MasterLink | None = None
    put_counts: dict[str, int] = attrs.field(factory=dict)
    waiting_for_slave: int = 0
    dispatch_behind_bytes: int = 0  # confirmed, and not yet readable by consumers
    dispatch_fault: str | None = None  # why dispatch stands still

    def to_dict(self) -> dict[str, Any]:
        """Give the JSON form."""
        return {"schema": SCHEMA, **attrs.asdict(self)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> NodeStatus:
        """Read the JSON form back."""
        known = _pick(cls, data)
        known["slaves"] = tuple(SlaveRow(**_pick(SlaveRow, row)) for row in data["slaves"])
        known["refused"] = tuple(RefusalRow(**_pick(RefusalRow, row)) for row in data["refused"])
        link = data.get("master_link")
        known["master_link"] = MasterLink(**_pick(MasterLink, link)) if link else None
        return cls(**known)


def _pick(kind: type[attrs.AttrsInstance], data: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in attrs.fields(kind)}
    return {key: value for key, value in data.items() if key in names}
