"""What a node of a replica group does by its coordinator, and what it has of it."""

from __future__ import annotations

from typing import Final, final

import attrs

NO_SPACE: Final = "NOSPACE"  # etcd's alarm: its database is full
NO_SPACE_HINT: Final = (
    "make room in etcd: etcdctl compact REVISION (see etcdctl endpoint status -w json), etcdctl"
    " defrag for each server, etcdctl alarm disarm; and start it with --auto-compaction-mode"
)
UNLISTED_HINT: Final = (
    "if that is another group, give this one another name: [node] group; else add them to group_ids"
)


@final
@attrs.frozen(kw_only=True)
class CoordinatorStatus:
    """A snapshot of one node's view."""

    is_reachable: bool  # whether it answers
    doing: str  # what the node does or waits for: "it follows node 2"
    lease_left_s: float | None = None  # a master: for how long it may decide; None: no master
    is_failsafe: bool = False  # it leads by the promises of its members alone
    alarm: str | None = None  # why elections have stopped, until a person has looked
    epoch: int | None = None  # of the group's state there, as far as this node knows
    last_contact_age_s: float | None = None  # since it said something; None: never
    is_paused: bool = False  # elections wait for ``hastore cluster resume``
    # An epoch that began although no member had proved that it has all that was acknowledged;
    # None once an operator has confirmed it.
    unproven_epoch: int | None = None
    # What is wrong with etcd itself, such as NOSPACE.
    etcd_alarms: tuple[str, ...] = ()
    # Why it cannot be used although it answers; None if it is silent, or fine.  If it is reachable,
    # it refuses what the node asks for; else nothing is decided by what it says (a damaged key).
    unusable_because: str | None = None
    # Which nodes the group has that this node's ``group_ids`` lacks; None: none.
    unlisted_because: str | None = None
    # Why the present version of [cluster] ca, cert, key and password_file is not in force.
    files_fault: str | None = None
    files_hint: str | None = None
    # Why etcd may refuse the certificate in [cluster] cert, which is in force: it is out of date.
    files_warning: str | None = None
